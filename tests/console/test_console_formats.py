"""What pages show, without a page: conditions on JSON, records decoded, lists, numbers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.settings import SettingError
from console.access.answers import PATIENCE, PATIENCE_S_MAX, Answers
from console.formats.json_path import BadPath, parse_condition
from console.formats.limits import parse_limits
from console.formats.paging import found, paged
from console.formats.record_decoders import decoder_of, visible
from console.formats.setting_lines import parse_lines
from console.web.number_text import duration, size
from console.web.rendering import coded
from tidelog.streams.avro_schemas import BadSchema, Unfitting, avro_value, parse_schema

VALUE = {"a": {"b c": [1, {"d": "x"}, 2]}, "n": 5, "t": "yes", "none": None, "flag": True, "list": ["u", "v"]}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("$.n", True),
        ("$.none", False),
        ("$.missing", False),
        ("$.n == 5 && $.t == 'x", None),
        ('$.n == 5 && $.t == "yes"', True),
        ("$.t == 'yes'", True),
        ("$.n = 5", True),
        ("$.t == yes", True),
        ("$.n == true", False),
        ("$.flag == 1", False),
        ("$.n != 4", True),
        ("$.n < 5", False),
        ("$.n >= 5", True),
        ("$.t > 3", False),
        ("$.t ~ es", True),
        ('$.list ~ "v"', True),
        ('$["a"]["b c"][1].d == "x"', True),
        ('$.a["b c"][-1] == 2', True),
        ('$.a["b c"][*] == 2', True),
        ('$.a["b c"][*].d == "y"', False),
        ('$.a["b c"][9]', False),
        ("$", True),
        ("n == 5", None),
        ("$.n ==", None),
        ("$.n < {}", None),
        ("$.n 5", None),
        ("$" + ".a" * 40, None),
    ],
)
def test_conditions(condition: str, holds: bool | None) -> None:
    if holds is None:
        with pytest.raises(BadPath):
            parse_condition(condition)
    else:
        assert all(one.holds_in(VALUE) for one in parse_condition(condition)) is holds


@given(
    st.text(max_size=60),
    st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)),
)
def test_no_condition_and_no_value_breaks_it(condition: str, value: Any) -> None:
    try:
        criteria = parse_condition(condition)
    except BadPath:
        return
    assert all(one.holds_in(value) in (True, False) for one in criteria)


@given(st.text())
def test_what_is_shown_hides_nothing(text: str) -> None:
    assert all(one.isprintable() or one in "\n\t" for one in visible(text))


@given(st.binary(max_size=200), st.sampled_from(["auto", "json", "text", "hex"]))
def test_every_decoder_shows_every_bytes(data: bytes, name: str) -> None:
    shown = decoder_of(name)(data)
    assert all(one.isprintable() or one in "\n\t" for one in shown)


def test_avro_with_and_without_the_head_of_a_registry() -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]})
    decode = decoder_of("avro", schema)
    assert json.loads(decode(b"\x0a")) == {"a": 5}
    assert json.loads(decode(b"\x00\x00\x00\x00\x07\x0a")) == {"a": 5}
    assert "does not fit the schema" in decode(b"\x0a\x0a")
    with pytest.raises(BadSchema):
        decoder_of("avro", "{")


def test_pages_of_a_list() -> None:
    rows = [f"topic-{number}" for number in range(120)]
    assert paged(rows, 99).at == 3
    assert len(paged(rows, 3).rows) == 20
    assert found(rows, "PIC 11", str) == ["topic-11", *[f"topic-{number}" for number in range(110, 120)]]


def test_lines_of_settings_and_limits() -> None:
    assert parse_lines(" a=1\n\nb = x=y ") == {"a": "1", "b": "x=y"}
    assert parse_limits("a=5\nb=default") == {"a": 5, "b": -1}
    for wrong in ("a", "=1", "a=1\na=2"):
        with pytest.raises(SettingError):
            parse_lines(wrong)
    for wrong in ("a=x", "a=-1", f"a={2**63}"):
        with pytest.raises(SettingError):
            parse_limits(wrong)


def test_numbers_for_people() -> None:
    assert [size(one) for one in (None, 5, 2048, 3 << 30)] == ["\u2013", "5 B", "2.0 KiB", "3.0 GiB"]
    assert [duration(one) for one in (5, 1_500, 61_000, 90_000_000)] == ["5 ms", "1.5 s", "1 min 1 s", "1 d 1 h"]


LIST = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}


def test_a_schema_that_names_itself_reads_no_deeper_than_python() -> None:
    schema = parse_schema(json.dumps(LIST))
    assert avro_value(schema, b"\2\2\0") == {"next": {"next": {"next": None}}}
    with pytest.raises(Unfitting):
        avro_value(schema, b"\2" * 200_000 + b"\0")
    assert decoder_of("avro", json.dumps(LIST))(b"\2" * 150 + b"\0").startswith("{")


@pytest.mark.parametrize(
    ("schema", "is_recursive"),
    [
        (LIST, True),
        ({"type": "array", "items": LIST}, True),
        ({"type": "record", "name": "A", "fields": [{"name": "b", "type": {"type": "record", "name": "B", "fields": [
            {"name": "a", "type": {"type": "map", "values": "A"}}]}}]}, True),
        ({"type": "record", "name": "A", "fields": [{"name": "x", "type": {"type": "enum", "name": "E",
            "symbols": ["S"]}}, {"name": "y", "type": "E"}]}, False),
        ("int", False),
    ],
)  # fmt: skip
def test_which_schemas_name_themselves(schema: Any, is_recursive: bool) -> None:
    assert parse_schema(json.dumps(schema)).is_recursive is is_recursive


EMPTY: list[Any] = ["null", {"type": "record", "name": "E", "fields": []}, {"type": "fixed", "name": "F", "size": 0},
    {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}]  # fmt: skip


@pytest.mark.parametrize("items", EMPTY)
def test_a_record_cannot_count_items_that_have_no_bytes(items: Any) -> None:
    with pytest.raises(BadSchema, match="no bytes"):
        parse_schema(json.dumps({"type": "map", "values": {"type": "array", "items": items}}))


def doubled(times: int) -> Any:
    """Each record has the one before it twice, so one value is 2**times of them, without a byte."""
    schema: Any = {"type": "record", "name": "R0", "fields": []}
    for at in range(1, times):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{at - 1}"}]
        schema = {"type": "record", "name": f"R{at}", "fields": fields}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        doubled(60),
        {"type": "array", "items": doubled(60)},
        {"type": "record", "name": "W", "fields": [{"name": "n", "type": "int"}]
            + [{"name": f"f{at}", "type": "null"} for at in range(40)]},
    ],
)  # fmt: skip
def test_a_schema_makes_no_more_values_than_its_bytes_allow(schema: Any) -> None:
    with pytest.raises(BadSchema, match="too many values"):
        parse_schema(json.dumps(schema))


def test_records_of_records_with_bytes_and_a_few_nulls_are_taken() -> None:
    inner: Any = {
        "type": "record",
        "name": "I",
        "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": "null"}],
    }
    fields = [{"name": "a", "type": inner}, {"name": "b", "type": "I"}, {"name": "c", "type": "null"}]
    schema = parse_schema(json.dumps({"type": "record", "name": "O", "fields": fields}))
    assert not schema.is_recursive
    assert avro_value(schema, b"\2\4") == {"a": {"x": 1, "y": None}, "b": {"x": 2, "y": None}, "c": None}


@pytest.mark.parametrize("key", ["__fastavro_parsed", "__named_schemas", "\\u005f_fastavro_parsed"])
@pytest.mark.parametrize("form", ['{"type": "record", "name": "R", "fields": [], "%s": true}',
    '[{"type": "record", "name": "R", "fields": [], "%s": true}]'])  # fmt: skip
def test_no_schema_says_of_itself_that_it_was_checked(form: str, key: str) -> None:
    with pytest.raises(BadSchema, match="no key"):
        parse_schema(form % key)


def test_commands_in_a_finding_are_code_and_the_rest_is_text() -> None:
    assert coded("`tidelog <x>` & <b>") == "<code>tidelog &lt;x&gt;</code> &amp; &lt;b&gt;"
    assert "<script" not in coded("`<script>` <script>`")


def test_an_old_answer_is_shown_only_where_the_new_one_takes_long() -> None:
    now, asked = [0.0], [0]
    may_answer = asyncio.Event()

    async def ask() -> int:
        asked[0] += 1
        number = asked[0]
        await may_answer.wait()
        return number

    async def run() -> None:
        answers = Answers(lambda: now[0])
        may_answer.set()
        assert await answers.get("k", 5.0, ask, stale_s=60.0) == 1
        now[0] += 10.0
        assert await answers.get("k", 5.0, ask, stale_s=60.0) == 2, "it comes at once"
        now[0] += 10.0
        may_answer.clear()
        assert await answers.get("k", 5.0, ask, stale_s=60.0) == 2
        may_answer.set()
        assert await answers.get("k", 5.0, ask, stale_s=60.0) == 3
        assert asked[0] == 3

    asyncio.run(run())


def test_a_page_that_is_only_open_asks_seldom_for_what_takes_long() -> None:
    now, asked = [0.0], [0]

    async def ask() -> int:
        now[0] += 0.2
        asked[0] += 1
        return asked[0]

    async def run() -> None:
        answers = Answers(lambda: now[0])
        assert await answers.get("k", 5.0, ask) == 1
        now[0] += 6.0
        assert await answers.get("k", 5.0, ask, is_patient=True) == 1
        assert await answers.get("k", 5.0, ask) == 2, "a person gets what is new"
        now[0] += min(0.2 * PATIENCE, PATIENCE_S_MAX) + 1
        assert await answers.get("k", 5.0, ask, is_patient=True) == 3

    asyncio.run(run())


def test_answers_go_when_no_question_gets_them_any_more() -> None:
    now = [0.0]
    may_answer = asyncio.Event()

    async def ask() -> list[int]:
        await may_answer.wait()
        now[0] += 0.5
        return [0] * 5_000

    async def run() -> None:
        answers = Answers(lambda: now[0])
        late = asyncio.ensure_future(answers.get("late", 1.0, ask))
        await asyncio.sleep(0)
        now[0] += 60.0
        answers.drop_old()
        assert len(answers) == 1, "it is on its way"
        may_answer.set()
        await late
        answers.drop_old()
        assert not len(answers)
        for number in range(40):
            await answers.get(("audit", number), 15.0, ask)
        await answers.get("stale", 5.0, ask, stale_s=60.0)
        await answers.get("poll", 5.0, ask)
        await answers.get("poll", 5.0, ask, is_patient=True)
        now[0] += 15.0
        answers.drop_old()
        assert len(answers) == 2
        now[0] += 30.0
        answers.drop_old()
        assert len(answers) == 2, "pages may still show these"
        now[0] += PATIENCE_S_MAX
        answers.drop_old()
        assert not len(answers)

    asyncio.run(run())
