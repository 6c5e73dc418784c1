"""Where committed offsets are moved to, and what is said of it first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tidelog.admin.group_lag import Behind
from tidelog.admin.offset_reset import (
    CURRENT,
    EARLIEST,
    LATEST,
    LISTED,
    OFFSET,
    SHIFT,
    TIME,
    BadReset,
    Move,
    Target,
    chosen,
    csv_text,
    parse_csv,
    parse_duration,
    parse_topic,
    planned,
)
from tidelog.admin.transaction_doctor import Place
from tidelog.command_line import application
from tidelog.commands.group_offsets import _show_moves

PLACE = Place("t", 0)
offsets = st.integers(0, 1_000)


def moved(target: Target, current: int | None, begin: int, end: int, at_time: int = -1) -> Move:
    held = {} if current is None else {PLACE: current}
    (move,) = planned(target, [PLACE], held, {PLACE: begin}, {PLACE: end}, {PLACE: at_time})
    return move


@given(st.sampled_from([EARLIEST, LATEST, CURRENT, OFFSET, SHIFT, TIME]), st.integers(-2_000, 2_000), offsets, offsets,
       offsets, st.integers(-1, 1_000))  # fmt: skip
def test_a_new_offset_lies_in_its_partition_and_its_effect_is_what_is_read(
    kind: str, number: int, current: int, begin: int, size: int, at_time: int
) -> None:
    move = moved(Target(kind, number), current, begin, begin + size, at_time)
    assert begin <= move.new <= begin + size
    had_read = {offset for offset in range(begin, begin + size) if offset < current}
    will_read = set(range(move.new, begin + size))
    assert move.reads_again >= len(had_read & will_read)
    assert move.skips == len(set(range(begin, begin + size)) - had_read - will_read)
    assert not (move.reads_again and move.skips)


def test_each_kind_of_target() -> None:
    assert moved(Target(EARLIEST), 5, 2, 9).new == 2
    assert moved(Target(LATEST), 5, 2, 9).new == 9
    assert [moved(Target(CURRENT), held, 2, 9).new for held in (5, None, 99)] == [5, 9, 9]
    assert [moved(Target(OFFSET, number), 5, 2, 9).new for number in (0, 4, 10)] == [2, 4, 9]
    assert [moved(Target(SHIFT, number), 5, 2, 9).new for number in (-9, -1, 1, 9)] == [2, 4, 6, 9]
    assert [moved(Target(TIME), 5, 2, 9, found).new for found in (3, -1)] == [3, 9]
    assert moved(Target(LISTED, listed={PLACE: 7}), 5, 2, 9).effect == "skips 2"
    assert moved(Target(EARLIEST), 5, 2, 9).effect == "reads 3 again"
    assert moved(Target(CURRENT), 5, 2, 9).effect == "nothing"
    assert moved(Target(LATEST), None, 2, 9).effect == "skips 7"
    with pytest.raises(BadReset, match="--shift-by"):
        moved(Target(SHIFT, 1), None, 0, 1)
    with pytest.raises(BadReset, match="t-0: its leader does not answer"):
        planned(Target(LATEST), [PLACE], {}, {}, {}, {})


names = st.from_regex(r"[a-z][a-z0-9._-]{0,10}", fullmatch=True)


@given(st.dictionaries(st.builds(Place, names, st.integers(0, 9)), st.integers(0, 2**63 - 1), max_size=10))
def test_what_is_exported_can_be_given_again(found: dict[Place, int]) -> None:
    moves = [Move(place, None, offset, 0, 2**63 - 1) for place, offset in found.items()]
    assert parse_csv(csv_text(moves)) == found


@pytest.mark.parametrize("text", ["t,0", "t,0,1,2", "t,x,1", "t,0,-1", ",0,1", "t,0,1\nt,0,2", f"t,0,{2**63}", "t,٣,1"])
def test_a_file_that_is_none_is_refused_by_its_line(text: str) -> None:
    with pytest.raises(BadReset, match=f"line {len(text.splitlines())}"):
        parse_csv(text)


@pytest.mark.parametrize("text", ["t,0,1\n" + "x" * (1 << 18) + ",0,1", 't,0,1\nt,1,"' + "1" * (1 << 18)])
def test_a_field_that_is_too_long_is_refused_by_its_line(text: str) -> None:
    with pytest.raises(BadReset, match="line 2: field larger than"):
        parse_csv(text)


def test_durations() -> None:
    assert parse_duration("P1DT2H30M") == (86_400 + 9_000) * 1000
    assert parse_duration("PT0.5S") == 500
    for wrong in ("", "P", "PT", "1D", "P1D ", "P1Y", "P1DT", "PT-1S", "P" + "9" * 50 + "D"):
        with pytest.raises(BadReset):
            parse_duration(wrong)


def test_topics_and_their_partitions() -> None:
    known = [Place("a", 0), Place("a", 1), Place("b", 0)]
    assert parse_topic("a:0,1") == ("a", [0, 1])
    assert chosen([parse_topic("a")], known, None) == known[:2]
    assert chosen([parse_topic("a:1"), parse_topic("b")], known, None) == known[1:]
    assert chosen([], known, [Place("a", 1)]) == known[:2]
    for wrong in ("", ":1", "a:", "a:x", "a:1,", "a:99999999999"):
        with pytest.raises(BadReset, match="TOPIC"):
            parse_topic(wrong)
    for absent in ("c", "a:7"):
        with pytest.raises(BadReset, match="there is no"):
            chosen([parse_topic(absent)], known, None)


def test_a_lag_is_known_where_the_end_is() -> None:
    assert Behind("g", PLACE, 5, None).lag is None
    assert [Behind("g", PLACE, 5, end).lag for end in (3, 5, 9)] == [0, 0, 4]


@pytest.mark.parametrize("topic", ["parcels:0,x", ":0", ""])
def test_a_topic_that_cannot_be_is_bad_usage_before_a_cluster_is_asked(topic: str) -> None:
    words = ["groups", "reset-offsets", "depot", "--to-earliest", "--topic", topic, "--data", "/no/cluster"]
    result = CliRunner().invoke(application("groups"), words)
    assert result.exit_code == 2
    assert "it must be TOPIC or TOPIC:0,1" in result.output


def test_a_group_whose_name_a_terminal_would_obey_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _show_moves("a\x1b[31m", [], as_json=False, executed=True)
    _show_moves("a\x1b[31m", [], as_json=False, executed=False)
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
