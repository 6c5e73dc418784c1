"""The audit in the object store: written in pieces that follow each other, kept by age, read back whole or with what is
wrong with it."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from common.errors import ErrorCode, ProtocolError
from common.machine import MachineClock
from records.audit_event import (
    ACTOR_CHARACTERS_MAX,
    AuditEvent,
    AuditKind,
    AuditSource,
    client_actor,
    decode_audit_event,
    encode_audit_event,
)
from tests.object_store.memory_store import MemoryStore
from tiering.bucket.keys import TierRoot
from tiering.exports.audit_export import AuditExporter, AuditExporterServices, AuditPiece, AuditWriter
from tiering.exports.audit_reading import (
    AuditKey,
    audit_key,
    iterate_audit,
    list_audit,
    parse_audit_key,
    read_audit,
)
from tiering.exports.export_rounds import ExportTrouble
from tiering.shard.tier_records import cause_and_actor, cause_text

ROOT = TierRoot("Y2x1c3Rlci1vZi10ZXN0cw")
TOPIC_ID = bytes(range(16))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class Guard:
    async def check(self) -> int:
        return 1


class Clock(MachineClock):
    now_ms = 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms


def event(sequence: int, source: str = AuditSource.BROKER, partition: int = 0) -> AuditEvent:
    return AuditEvent(
        event=AuditKind.LOG_START_MOVED,
        wall_ms=1_000 + sequence,
        source=source,
        node=1,
        incarnation="a" * 32,
        sequence=sequence,
        cause="DeleteRecords",
        actor="someone@somewhere",
        topic="t",
        topic_id=TOPIC_ID.hex(),
        partition=partition,
        before={"log_start_offset": sequence},
        after={"log_start_offset": sequence + 1},
    )


class Feed:
    """A source that holds one event at each position from `start` on, and gives a few at a time."""

    def __init__(self, source: str = AuditSource.BROKER, *, count: int = 0, at_once: int = 10, term: int = 1) -> None:
        self.source, self.scope, self.term = source, 3, term
        self.start, self.count, self.at_once = 0, count, at_once
        self.begin = 1 << 40
        self.asked: list[int] = []

    async def take(self, position: int) -> AuditPiece | None:
        self.asked.append(position)
        first = max(position, self.start)
        end = min(first + self.at_once, self.count)
        if first >= end:
            return None
        return AuditPiece(first, end, [event(number, self.source) for number in range(first, end)])


def writer_of(store: MemoryStore, keep_ms: int = -1, clock: Clock | None = None) -> AuditWriter:
    return AuditWriter(store, ROOT, Guard(), clock or Clock(), keep_ms)


def exporter_of(store: MemoryStore, *feeds: Feed) -> AuditExporter:
    writer = writer_of(store)
    return AuditExporter(
        AuditExporterServices(lambda: writer, lambda: list(feeds), MachineClock(), random.Random(1), 1.0)
    )


def test_an_event_is_a_line_of_json_to_which_fields_may_be_added() -> None:
    line = encode_audit_event(event(7))
    assert decode_audit_event(line) == event(7)
    assert decode_audit_event(line[:-1] + b',"new":1}') == event(7)
    for damaged in (b"", b"{}", line[:-1], b"[1]"):
        with pytest.raises(msgspec.MsgspecError):
            decode_audit_event(damaged)


def test_names_say_what_a_file_holds() -> None:
    key = AuditKey(AuditSource.TIER, 2, 7, 100, 250)
    assert parse_audit_key(ROOT, audit_key(ROOT, key)) == key
    assert audit_key(ROOT, key).startswith(ROOT.audit_prefix)
    for other in (audit_key(ROOT, key)[:-1], ROOT.metadata_prefix + "x.events", audit_key(ROOT, key).replace("-", "_")):
        assert parse_audit_key(ROOT, other) is None
    assert ROOT.parse_key(audit_key(ROOT, key)) is None, "nobody takes it for a partition's"


async def test_each_round_writes_what_is_new(store: MemoryStore) -> None:
    feed = Feed(count=25)
    exporter = exporter_of(store, feed)
    assert await exporter.round() == 25
    assert await exporter.round() == 0
    feed.count = 27
    assert await exporter.round() == 2
    keys = await list_audit(store, ROOT)
    assert [(key.first, key.end) for key in keys] == [(0, 10), (10, 20), (20, 25), (25, 27)]
    trail = await read_audit(store, ROOT)
    assert [one.sequence for one in trail.events] == list(range(27))
    assert not trail.problems


class BrokenFeed(Feed):
    """One whose log has a record that cannot be read."""

    async def take(self, position: int) -> AuditPiece | None:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, "no event")


async def test_a_source_that_cannot_be_read_holds_up_no_other(store: MemoryStore) -> None:
    first, last = Feed(count=5), Feed(AuditSource.TIER, count=7)
    exporter = exporter_of(store, first, BrokenFeed(AuditSource.METADATA), last)
    with pytest.raises(ProtocolError, match="no event"):
        await exporter.round()
    assert exporter.exported == 12
    events = (await read_audit(store, ROOT)).events
    assert [one.source for one in events] == [AuditSource.BROKER] * 5 + [AuditSource.TIER] * 7


async def test_trouble_is_told_until_a_round_succeeds(store: MemoryStore) -> None:
    broken = BrokenFeed()
    feeds: list[Feed] = [broken]
    rounds = asyncio.Event()
    asked = 0

    def current() -> list[Feed]:
        nonlocal asked
        asked += 1
        if asked == 3:
            assert exporter.trouble.reason and exporter.trouble.since_ms
            feeds.clear()
        if asked == 4:
            rounds.set()
        return feeds

    writer = writer_of(store)
    services = AuditExporterServices(lambda: writer, current, MachineClock(), random.Random(1), 0.001)
    exporter = AuditExporter(services)
    exporter.start()
    async with asyncio.timeout(30):
        await rounds.wait()
    await exporter.stop()
    assert exporter.trouble == ExportTrouble()


async def test_who_takes_over_goes_on_where_the_store_ends(store: MemoryStore) -> None:
    await exporter_of(store, Feed(count=12)).round()
    feed = Feed(count=30, term=2)
    assert await exporter_of(store, feed).round() == 18
    assert [one.sequence for one in (await read_audit(store, ROOT)).events] == list(range(30))


async def test_offsets_that_an_unclean_leader_gives_again_are_told(store: MemoryStore) -> None:
    await exporter_of(store, Feed(count=12)).round()
    feed = Feed(count=15, term=2)
    feed.begin = 8  # where its log ended when it began to lead
    assert await exporter_of(store, feed).round() == 7
    trail = await read_audit(store, ROOT)
    assert [one.sequence for one in trail.events] == list(range(15))
    assert not trail.problems


async def test_a_term_that_comes_back_asks_the_store_again(store: MemoryStore) -> None:
    feed, other = Feed(count=10), Feed(count=20, term=2)
    exporter = exporter_of(store, feed)
    await exporter.round()
    await exporter_of(store, other).round()
    feed.term, feed.count = 3, 25
    assert await exporter.round() == 5


async def test_files_that_overlap_tell_each_event_once(store: MemoryStore) -> None:
    for source in (AuditSource.BROKER, AuditSource.METADATA):
        writer = writer_of(store)
        await writer.write(source, 3, AuditPiece(0, 5, [event(n, source) for n in range(5)]))
        await writer.write(source, 3, AuditPiece(0, 8, [event(n, source) for n in range(8)]))
    trail = await read_audit(store, ROOT)
    assert [one.sequence for one in trail.events] == [*range(8), *range(8)]
    assert not trail.problems


async def test_what_is_missing_or_damaged_is_told_and_the_rest_is_read(store: MemoryStore) -> None:
    feed = Feed(count=40)
    await exporter_of(store, feed).round()
    keys = [audit_key(ROOT, key) for key in await list_audit(store, ROOT)]
    await store.delete([keys[1]])
    whole = await store.get(keys[2])
    await store.put(keys[2], whole[: len(whole) // 2])
    trail = await read_audit(store, ROOT)
    assert [one.sequence for one in trail.events] == [*range(10), *range(30, 40)]
    reasons = {(one.first, one.end): one for one in trail.problems}
    assert "missed" in reasons[10, 20].reason and reasons[20, 30].key == keys[2]


async def test_a_file_under_another_name_is_damage(store: MemoryStore) -> None:
    await exporter_of(store, Feed(count=5)).round()
    (name,) = [audit_key(ROOT, key) for key in await list_audit(store, ROOT)]
    moved = AuditKey(AuditSource.BROKER, 1, 4, 0, 5)
    await store.put(audit_key(ROOT, moved), await store.get(name))
    problems = [one for one in [item async for item in iterate_audit(store, ROOT)] if not isinstance(one, AuditEvent)]
    assert [one.scope for one in problems] == [4]


async def test_a_partition_finds_its_own(store: MemoryStore) -> None:
    topic_wide = AuditEvent(
        event=AuditKind.CONFIG_CHANGED,
        wall_ms=0,
        source=AuditSource.METADATA,
        node=0,
        incarnation="1",
        sequence=4,
        topic_id=TOPIC_ID.hex(),
    )
    writer = writer_of(store)
    await writer.write(AuditSource.BROKER, 0, AuditPiece(0, 3, [event(n, partition=n % 2) for n in range(3)]))
    await writer.write(AuditSource.METADATA, 0, AuditPiece(0, 5, [topic_wide]))
    trail = await read_audit(store, ROOT)
    assert trail.of_partition(TOPIC_ID, 0) == [topic_wide, event(0), event(2)]
    assert not trail.problems
    assert trail.of_partition(bytes(16), 0) == []


async def test_old_files_may_be_passed_over() -> None:
    clock = Clock()
    store = MemoryStore(clock.wall_ms)
    writer = writer_of(store, clock=clock)
    for number in range(40):
        clock.now_ms = number
        await writer.write(AuditSource.BROKER, 0, AuditPiece(number, number + 1, [event(number)]))
    found = [item async for item in iterate_audit(store, ROOT, written_since_ms=17)]
    assert found == [event(number) for number in range(17, 40)]


async def test_files_go_by_their_age(store: MemoryStore) -> None:
    clock = Clock()
    writer = writer_of(store, keep_ms=5_000, clock=clock)
    await writer.write(AuditSource.BROKER, 0, AuditPiece(0, 1, [event(0)]))
    (info,) = [one async for one in store.list(ROOT.audit_prefix)]
    clock.now_ms = info.modified_ms + 4_000
    assert await writer.prune(AuditSource.BROKER) == 0
    clock.now_ms = info.modified_ms + 6_000
    assert await writer.prune(AuditSource.METADATA) == 0
    assert await writer_of(store, clock=clock).prune(AuditSource.BROKER) == 0
    assert await writer.prune(AuditSource.BROKER) == 1
    assert not await list_audit(store, ROOT)


def test_who_moved_a_log_start_is_told_as_it_was_said() -> None:
    """Whatever a principal calls itself, its name is the actor's and not the cause's."""
    for cause, actor in (("DeleteRecords", "a by b@10.0.0.1"), ("retention.ms", ""), ("DeleteRecords", "x by@h")):
        assert cause_and_actor(cause_text(cause, actor)) == (cause, actor)
    assert len(client_actor("p" * 70_000, "10.0.0.1")) == ACTOR_CHARACTERS_MAX
    assert client_actor("broker", "") == "broker"
