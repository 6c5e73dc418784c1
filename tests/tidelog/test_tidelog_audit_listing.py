"""Which events `tidelog audit` lists: those that are asked for, the newest of them, whichever source tells them."""

from __future__ import annotations

import random
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from records.audit_event import AuditEvent, AuditKind, AuditSource, encode_audit_event
from tests.object_store.memory_store import MemoryStore
from tests.tiering.test_tiering_audit import ROOT, writer_of
from tidelog.admin import audit_listing
from tidelog.admin.audit_listing import Listing, NotAnswering, Wanted, read_store, read_topic
from tidelog.moments import LATEST_MS, milliseconds
from tiering.bucket.keys import PartitionPath
from tiering.exports.audit_export import AuditPiece

ONE, OTHER = bytes(range(16)).hex(), bytes(range(16, 32)).hex()


def told(sequence: int, kind: str = AuditKind.LOG_START_MOVED, **fields: Any) -> AuditEvent:
    given: dict[str, Any] = {
        "source": AuditSource.BROKER,
        "node": 1,
        "incarnation": "a",
        "wall_ms": 1_000 + sequence,
    } | fields
    return AuditEvent(event=kind, sequence=sequence, **given)


def listed(wanted: Wanted, events: list[AuditEvent], most: int = 100) -> list[int]:
    listing = Listing(wanted, most)
    for event in events:
        listing.add(event)
    return [event.sequence for event in listing.events()]


def test_a_topic_is_found_by_its_name_and_by_the_ids_it_had() -> None:
    events = [
        told(0, topic="t", topic_id=ONE, partition=0),
        told(1, topic_id=ONE, partition=1),  # segments of the tier do not tell the name
        told(2, topic="t", topic_id=OTHER, partition=-1),
        told(3, topic="u", topic_id="f" * 32, partition=0),
        told(4, AuditKind.UNCLEAN_START),
    ]
    assert listed(Wanted(), events) == [0, 1, 2, 3, 4]
    assert listed(Wanted(topic="t"), events) == [0, 1, 2]
    assert listed(Wanted(topic="t", topic_ids={OTHER}, of_one=True), events) == [2]
    assert listed(Wanted(topic="t", partition=1), events) == [1, 2], "with what concerns the topic as a whole"
    assert listed(Wanted(kinds=frozenset({AuditKind.UNCLEAN_START})), events) == [4]
    assert listed(Wanted(since_ms=1_003), events) == [3, 4]


def test_a_topic_is_known_by_any_event_of_it_and_by_its_name() -> None:
    events = [told(1, topic="t", topic_id=ONE, partition=3)]
    for wanted, known in (
        (Wanted(), True),
        (Wanted(topic="t"), True),
        (Wanted(topic="t", partition=1, since_ms=5_000, kinds=frozenset({AuditKind.UNCLEAN_START})), True),
        (Wanted(topic="u"), False),
        (Wanted(topic="t", topic_ids={OTHER}, of_one=True), False),
    ):
        listed(wanted, events)
        assert wanted.is_known == known
        wanted.knows(["t", "u"])
        assert wanted.is_known == (known or not wanted.of_one)


@pytest.mark.parametrize("seed", range(20))
def test_the_newest_are_kept_in_order_of_time(seed: int) -> None:
    chance = random.Random(seed)
    events = [told(number, wall_ms=chance.randrange(50)) for number in range(chance.randrange(1, 60))]
    most = chance.randrange(1, 40)
    listing = Listing(Wanted(), most)
    for event in events:
        listing.add(event)
    times = sorted(event.wall_ms for event in events)
    assert [event.wall_ms for event in listing.events()] == times[-most:]
    assert listing.left_out == max(len(events) - most, 0)


async def test_the_store_names_ids_that_no_event_tells() -> None:
    store = MemoryStore()
    await store.put(ROOT.manifest_prefix(PartitionPath("t", bytes.fromhex(ONE), 0)) + "0" * 20, b"")
    segment = told(5, AuditKind.TIER_SEGMENT_CHANGED, topic_id=ONE, partition=0, source=AuditSource.TIER)
    other = told(6, AuditKind.TIER_SEGMENT_CHANGED, topic_id=OTHER, partition=0, source=AuditSource.TIER)
    await writer_of(store).write(AuditSource.TIER, 0, AuditPiece(0, 7, [segment, other]))
    await writer_of(store).write(AuditSource.TIER, 0, AuditPiece(9, 10, [told(9, topic="t", topic_id=ONE)]))
    listing = Listing(Wanted(topic="t"), 10)
    await read_store(store, ROOT, listing)
    assert [event.sequence for event in listing.events()] == [5, 9]
    (problem,) = listing.problems
    assert "positions 7 to 9 are missed" in problem


class FakeConsumer:
    """`__audit` of three partitions, the last one empty: a few records at a time, with pauses. While it has `moved`,
    this client knows who has led it before."""

    def __init__(self, values: dict[int, list[bytes]], *, moved: bool = False) -> None:
        self.values = values
        self.moved = moved
        self.positions: dict[TopicPartition, int] = {}
        self.polls = 0

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(self.values) or None

    def assign(self, places: list[TopicPartition]) -> None:
        self.positions = dict.fromkeys(places, -1)

    def topics(self) -> set[str]:
        self.moved = False
        return {"__audit"}

    def _ask_leaders(self, timeout_ms: int) -> None:
        if self.moved:
            raise KafkaTimeoutError(f"Failed to get offsets by timestamps in {timeout_ms} ms")

    def end_offsets(self, places: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        self._ask_leaders(timeout_ms)
        return {place: len(self.values[place.partition]) for place in places}

    def offsets_for_times(self, times: dict[TopicPartition, int], timeout_ms: int) -> dict[TopicPartition, Any]:
        self._ask_leaders(timeout_ms)
        return {place: SimpleNamespace(offset=0) if self.values[place.partition] else None for place in times}

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.positions[place] = offset

    def position(self, place: TopicPartition) -> int:
        return self.positions[place]

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        self.polls += 1
        found: dict[TopicPartition, list[Any]] = defaultdict(list)
        for place, at in self.positions.items():
            if self.polls % 2 and at < len(self.values[place.partition]):
                found[place] = [SimpleNamespace(offset=at, value=self.values[place.partition][at])]
                self.positions[place] = at + 1
        return dict(found)


def test_the_topic_is_read_to_its_end_and_what_is_no_event_is_told() -> None:
    values = {0: [encode_audit_event(told(n)) for n in range(5)], 1: [b"{}", encode_audit_event(told(7))], 2: []}
    listing = Listing(Wanted(), 10)
    read_topic(FakeConsumer(values), "__audit", listing)
    assert [event.sequence for event in listing.events()] == [0, 1, 2, 3, 4, 7]
    (problem,) = listing.problems
    assert problem.startswith("__audit-1, offset 0: ")
    nothing = Listing(Wanted(), 10)
    read_topic(FakeConsumer({}), "__audit", nothing)
    assert not nothing.events() and not nothing.problems


class Unreachable(FakeConsumer):
    """It never learns who leads now."""

    def topics(self) -> set[str]:
        return {"__audit"}


class Silent(FakeConsumer):
    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        return {}


def test_partitions_that_others_lead_by_now_are_read_all_the_same() -> None:
    listing = Listing(Wanted(), 10)
    values = {0: [encode_audit_event(told(n)) for n in range(5)]}
    read_topic(FakeConsumer(values, moved=True), "__audit", listing)
    assert [event.sequence for event in listing.events()] == [0, 1, 2, 3, 4]
    with pytest.raises(NotAnswering):
        read_topic(Unreachable(values, moved=True), "__audit", listing)


def test_brokers_that_fall_silent_end_it() -> None:
    with pytest.raises(NotAnswering, match=f"{audit_listing.SILENCE_S:g} s"):
        read_topic(Silent({0: [b"x"]}), "__audit", Listing(Wanted(), 10))


def test_moments_are_read_as_people_write_them() -> None:
    for text in ("2013-07-01T12:00:00Z", "2013-07-01T12:00:00", "2013-07-01 14:00:00+02:00", "1372680000000"):
        assert milliseconds("--since", text) == 1_372_680_000_000


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59.999Z", "0001-01-01", "0001-01-01T00:00:00+23:59"])
def test_a_moment_before_1970_is_the_first_one(text: str) -> None:
    assert milliseconds("--since", text) == 0, "a broker takes -1 for the end, and -2 for the beginning"


def test_no_moment_is_later_than_a_time_can_say() -> None:
    assert milliseconds("--since", "9999-12-31T23:59:59-23:59") == LATEST_MS
