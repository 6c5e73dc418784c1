"""Reading records: what is marked as what, and where a bounded step stops."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from console.formats.record_filter import Wanted, matcher
from console.queries.record_scan import OFFSETS_AT_ONCE, PARTITIONS_AT_ONCE, Scan, State, Step
from console.queries.record_write import Draft, Written, write
from records.builder import build_batch
from records.control import EndMarker, MarkerKind, build_marker
from records.record import Record
from tests.console.fake_cluster import TOPIC_ID, FakeClient, fetched, metadata, placed
from wire.messages import FetchResponse, ProduceResponse


def log() -> list[bytes]:
    """Offsets 0-1 plain, 2 of producer 7 aborted, 3 of producer 8 committed, 4 and 5 their ends, 6 a tombstone,
    7 of producer 9 undecided."""
    one = [Record(0, 5, b"k", b'{"n": 1}'), Record(0, 5, None, b"plain")]
    return [
        placed(build_batch(one), 0),
        placed(build_batch([Record(0, 5, b"a", b"gone")], producer_id=7, transactional=True), 2),
        placed(build_batch([Record(0, 5, b"c", b'{"n": 9}')], producer_id=8, transactional=True), 3),
        placed(build_marker(7, 0, EndMarker(MarkerKind.ABORT, 0, 5)), 4),
        placed(build_marker(8, 0, EndMarker(MarkerKind.COMMIT, 0, 5)), 5),
        placed(build_batch([Record(0, 5, b"k", None)]), 6),
        placed(build_batch([Record(0, 5, b"o", b"open")], producer_id=9, transactional=True), 7),
    ]


ALL = Wanted()


def scanned(at: int = 0, most: int = 100, wanted: Wanted = ALL, **options: Any) -> Step:
    answers = {"MetadataRequest": metadata("t"), "FetchRequest": fetched(log(), stable=7, aborted=[(7, 2)])}
    return Scan("t", {0: at}, {0: 8}, matcher(wanted), most, **options)(FakeClient(answers))  # type: ignore[arg-type]


def test_each_record_is_marked_with_what_became_of_its_transaction() -> None:
    found = {one.record.offset: one.state for one in scanned(shows_markers=True).rows}
    assert found == {
        0: State.PLAIN,
        1: State.PLAIN,
        2: State.ABORTED,
        3: State.COMMITTED,
        4: State.MARKER_ABORT,
        5: State.MARKER_COMMIT,
        6: State.PLAIN,
        7: State.OPEN,
    }


def test_a_step_ends_with_enough_and_the_next_one_goes_on_there() -> None:
    seen: list[int] = []
    at = 0
    for _ in range(20):
        step = scanned(at, most=2)
        seen += [one.record.offset for one in step.rows]
        at = step.next[0]
        if step.is_at_end:
            break
    assert seen == [0, 1, 2, 3, 6, 7]
    assert at == 8


def test_ends_of_transactions_count_as_rows() -> None:
    seen: list[int] = []
    at = 0
    while at < 8:
        step = scanned(at, most=1, shows_markers=True)
        assert len(step.rows) <= 1
        seen += [one.record.offset for one in step.rows]
        at = step.next[0]
    assert seen == list(range(8))


def test_a_step_ends_when_its_time_is_over() -> None:
    clock = itertools.count()
    step = scanned(step_s=1.0, now=lambda: float(next(clock)))
    assert not step.is_at_end
    assert step.next[0] == 7  # committed records were read once


@pytest.mark.parametrize(
    ("wanted", "offsets"),
    [
        (Wanted(condition="$.n > 5"), [3]),
        (Wanted(condition="$.n"), [0, 3]),
        (Wanted(key="k"), [0, 6]),
        (Wanted(key="k", condition="$.n == 1"), [0]),
        (Wanted(header="h"), []),
    ],
)
def test_filters(wanted: Wanted, offsets: list[int]) -> None:
    step = scanned(wanted=wanted)
    assert [one.record.offset for one in step.rows] == offsets
    assert step.looked_at == 6


@pytest.mark.parametrize(("kind", "state"), [(MarkerKind.ABORT, State.ABORTED), (MarkerKind.COMMIT, State.COMMITTED)])
@pytest.mark.parametrize("at", [0, 8])
def test_a_transaction_that_ends_while_it_is_read_is_marked_as_what_it_became(
    kind: MarkerKind, state: State, at: int
) -> None:
    """Two records of an undecided transaction; the end comes between the answer that says so and the next one."""
    both = [Record(0, 5, b"o", b"one"), Record(0, 5, b"o", b"two")]
    before = [*log()[:-1], placed(build_batch(both, producer_id=9, transactional=True), 7)]
    after = [*before, placed(build_marker(9, 0, EndMarker(kind, 0, 5)), 9)]
    ended = [(9, 7)] if kind is MarkerKind.ABORT else []
    isolations: list[int] = []
    now = fetched(before, stable=7, aborted=[(7, 2)], isolations=isolations)
    later = fetched(after, stable=10, aborted=[(7, 2), *ended], isolations=isolations)

    def answer(request: Any) -> Any:
        return later(request) if isolations else now(request)

    client = FakeClient({"MetadataRequest": metadata("t"), "FetchRequest": answer})
    step = Scan("t", {0: at}, {0: 9}, matcher(ALL), 100)(client)  # type: ignore[arg-type]
    states = {one.record.offset: one.state for one in step.rows if one.record.offset >= 7}
    assert states == dict.fromkeys(range(max(7, at), 9), state)
    assert step.is_at_end
    assert isolations == [1, 0, 1]


def test_a_leader_that_does_not_answer_is_said_and_does_not_stop_the_page() -> None:
    step = Scan("t", {0: 0}, {0: 8}, matcher(Wanted()), 10)(FakeClient({"MetadataRequest": metadata("t")}))  # type: ignore[arg-type]
    assert step.is_at_end
    assert not step.rows
    assert "no broker answers" in step.trouble[0]


def many(asked: list[int], size: int) -> Any:
    """Answers of partitions with one record each, no more than two megabytes at once. `asked`: how many were."""
    topic = FetchResponse.FetchableTopicResponse
    batch = placed(build_batch([Record(0, 5, None, b"v" * size)]), 0)

    def answer(request: Any) -> Any:
        wanted = request.topics[0].partitions
        asked.append(len(wanted))
        rows = [
            topic.PartitionData(
                partition_index=one.partition, error_code=0, high_watermark=1, last_stable_offset=1,
                log_start_offset=0, aborted_transactions=[],
                records=batch if number * len(batch) < request.max_bytes else b"",
            )
            for number, one in enumerate(wanted)
        ]  # fmt: skip
        return FetchResponse(error_code=0, responses=[topic(topic="t", topic_id=TOPIC_ID, partitions=rows)])

    return answer


@pytest.mark.parametrize(("size", "wanted"), [(100, [500]), (300_000, [500, *[PARTITIONS_AT_ONCE] * 4])])
def test_a_request_asks_many_partitions_while_their_records_fit_an_answer(size: int, wanted: list[int]) -> None:
    asked = list[int]()
    answers = {"MetadataRequest": metadata("t", partitions=500), "FetchRequest": many(asked, size)}
    at = dict.fromkeys(range(500), 0)
    step = Scan("t", at, dict.fromkeys(at, 1), matcher(ALL), 10)(FakeClient(answers))  # type: ignore[arg-type]
    assert len(step.rows) == 10
    assert asked == wanted


@pytest.mark.parametrize("left", [OFFSETS_AT_ONCE, 50])
def test_a_request_asks_few_partitions_with_much_left(left: int) -> None:
    asked = list[int]()
    answers = {"MetadataRequest": metadata("t", partitions=100), "FetchRequest": many(asked, 1)}
    at = dict.fromkeys(range(100), 0)
    Scan("t", at, dict.fromkeys(at, left), matcher(ALL), 1)(FakeClient(answers))  # type: ignore[arg-type]
    assert asked[0] == max(PARTITIONS_AT_ONCE, OFFSETS_AT_ONCE // left)


def test_a_damaged_batch_is_said_with_its_offset() -> None:
    whole = log()
    broken = bytearray(whole[1])
    broken[-1] ^= 1
    answers = {
        "MetadataRequest": metadata("t"),
        "FetchRequest": fetched([whole[0], bytes(broken)], stable=3),
    }
    step = Scan("t", {0: 0}, {0: 3}, matcher(Wanted()), 10)(FakeClient(answers))  # type: ignore[arg-type]
    assert [one.record.offset for one in step.rows] == [0, 1]
    assert "offset 2" in step.trouble[0]


def test_a_record_is_written_after_one_question_for_the_leader() -> None:
    topic = ProduceResponse.TopicProduceResponse
    row = topic.PartitionProduceResponse(index=2, error_code=0, base_offset=41)
    answers = {
        "MetadataRequest": metadata("t", partitions=3),
        "ProduceRequest": lambda _: ProduceResponse(responses=[topic(name="t", partition_responses=[row])]),
    }
    client = FakeClient(answers)
    assert write(client, "t", Draft(b"k", b"v", (), 2)) == Written(2, 41)  # type: ignore[arg-type]
    asked, sent = client.sent
    assert type(asked).__name__ == "MetadataRequest"
    assert sent.topic_data[0].topic_id == TOPIC_ID
    assert sent.topic_data[0].partition_data[0].index == 2
