"""Work on pending offsets that thousands of producers, groups or places could make long: it is counted and bounded."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from operator import eq

import pytest

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.offset_decisions import OFFSETS_AT_ONCE
from broker.coordination.groups.offset_store import OffsetStore
from broker.coordination.groups.offsets import read_value
from broker.coordination.groups.pending_group import Pending
from broker.coordination.groups.pending_offsets import DROPPED_MAX, PendingOffsets
from broker.coordination.groups.records import offset_record
from broker.coordination.groups.values import CommittedOffset
from broker.coordination.loading import LoadLimits, replay_chunk
from broker.coordination.packed_records import PART_BYTES, RUN_RECORDS_MAX, read_runs
from broker.coordination.shard import CoordinatorRecord, Now
from broker.partitions.transactional_appends import Marker
from common.decision import ProducerStamp
from common.errors import ErrorCode
from common.pacing import SLICE_COST, Work
from records.batch import stamp
from records.builder import build_batch
from records.record import Record
from tests.broker.coordinated_partition import marker_batch
from tests.broker.group_driver import GROUP
from tests.broker.test_groups_pending_offsets import QUICK, Driver
from tests.common.call_count import counted_calls

TOPIC_ID = bytes([7] * 16)
OTHERS = [10, 500]


def record(place: int, group: str = "g", offset: int = 1, metadata: str = "") -> CoordinatorRecord:
    return offset_record(group, "t", place, CommittedOffset(offset, 1, metadata, 5, -1, TOPIC_ID))


def tombstone(place: int) -> CoordinatorRecord:
    return offset_record("g", "t", place, None)


def shard_with(
    producers: int,
    places: int,
    *,
    config: GroupConfig = QUICK,
    metadata: str = "",
    topic_id_of: Callable[[str], bytes | None] = lambda _: TOPIC_ID,
) -> GroupShard:
    """All producers have offsets pending at the same places of one group."""
    shard = GroupShard(config, random.Random(1), topic_id_of)
    records = [record(place, metadata=metadata) for place in range(places)]
    for number in range(producers):
        shard.begin_batch(number)
        shard.replay_pending(ProducerStamp(number, 0), list(records))
    return shard


def slices_of(work: Work[object], done: Callable[[], int]) -> Iterator[int]:
    """What has changed of `done` in each slice of `work`, as a pacer would cut it."""
    spent, before = 0, done()
    for cost in work:
        spent += cost
        if spent >= SLICE_COST:
            yield abs(done() - before)
            spent, before = 0, done()
    yield abs(done() - before)


# what a record changes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pending", [True, False])
def test_what_a_commit_changes_is_found_without_a_look_at_the_producers_of_its_place(pending: bool) -> None:
    spent = []
    for producers in OTHERS:
        shard = shard_with(producers, 1)
        with counted_calls() as count:
            if pending:
                shard.before_pending(ProducerStamp(3, 0), record(0))
            else:
                shard.before(record(0))
        spent.append(count.calls)
    assert spent[0] == spent[1]


def test_a_tombstone_of_a_portion_removes_few_offsets() -> None:
    shard = shard_with(producers=50, places=300)
    decision = shard.delete_group("g")
    assert decision.reply is None
    assert len(decision.records) * 50 <= OFFSETS_AT_ONCE + 50
    asked = tuple(("t", place) for place in range(200))
    removed = shard.delete_offsets("g", asked)
    assert len(removed.reply) == len(removed.records) == len(decision.records)


@pytest.mark.parametrize("counting", [0, 150])
def test_a_portion_of_a_deletion_looks_at_a_portion_of_the_places(counting: int) -> None:
    spent = []
    for places in (1_000, 5_000):
        shard = shard_with(producers=1, places=places)
        for place in range(counting):
            one = record(place)
            shard.replay(one.key, one.value)
        with counted_calls() as count:
            shard.delete_group("g")
        spent.append(count.calls)
    assert spent[0] == spent[1]


def test_a_group_is_deleted_in_portions_that_come_to_an_end() -> None:
    driver = Driver(QUICK)
    for number in range(7):
        driver.commit_pending(ProducerStamp(number, 0), {("t", place): 1 for place in range(90)})
    driver.commit({("t", place): 1 for place in range(60, 120)})
    sizes, code = [], None
    while code is None:
        decision = driver.shard.delete_group(GROUP)
        driver.append(decision.records)
        sizes.append(len(decision.records))
        code = decision.reply
    assert code is ErrorCode.NONE
    assert sum(sizes) == 120
    assert not driver.shard.has_pending


# markers -----------------------------------------------------------------------------------------------------


def test_a_marker_costs_what_it_ends() -> None:
    few, groups = PendingOffsets(), PendingOffsets()
    for number in range(1_000):
        few.put(b"\0\1g", b"%d" % number, Pending(1, ProducerStamp(1, 0), b"v"))
        groups.put(b"\0\4%04d" % number, b"place", Pending(1, ProducerStamp(1, 0), b"v"))
    assert few.ending_cost(1) > 10 * few.ending_cost(2)
    assert groups.ending_cost(1) > 10 * few.ending_cost(1)
    few.end(1, 2, commit=True)
    assert few.ending_cost(1) == few.ending_cost(2) == 0


def test_markers_over_many_groups_are_loaded_in_slices_of_their_own() -> None:
    shard, batches = GroupShard(QUICK, random.Random(1), lambda _: TOPIC_ID), []
    for number in range(5):
        batch = marker_batch(Marker(number, 0, True, 1, new_protocol=True), 0)
        stamp(batch, 0, 10 + number, 1)
        batches.append(batch)
        shard.begin_batch(number)
        for group in range(100):
            one = record(0, f"g{number}-{group}")
            shard.replay_pending(ProducerStamp(number, 0), [one])
    work = replay_chunk(shard, b"".join(batches), 0, 10, 15, LoadLimits())
    ended = list(slices_of(work, lambda: shard.pending_count))
    assert (sum(ended), max(ended)) == (500, 100)


def test_what_a_producer_shares_with_others_is_ended_in_a_few_calls() -> None:
    shard = shard_with(producers=4, places=5_000)
    for number, commit in ((2, True), (0, True), (3, False), (1, True)):
        shard.begin_batch(10 + number)
        with counted_calls() as count:
            shard.end_transaction(ProducerStamp(number, 0), commit=commit)
        assert count.calls < 100
    assert not shard.has_pending


def references(places: list[bytes]) -> list[int]:
    return [sys.getrefcount(place) for place in places]


def test_places_that_have_ended_are_forgotten_while_others_come() -> None:
    """A group that is never without a transaction keeps no index of all that it has ever had."""
    pending, places = PendingOffsets(), [b"place %d" % number for number in range(100)]
    others = [b"other %d" % number for number in range(100)]
    before = references(places)
    pending.put(b"\0\1g", others[0], Pending(1, ProducerStamp(1, 0), b"v"))
    for number in range(100):
        pending.put(b"\0\1g", places[number], Pending(2, ProducerStamp(2, 0), b"v"))
    pending.end(2, 3, commit=True)
    for number in range(1, 100):
        pending.put(b"\0\1g", others[number], Pending(4, ProducerStamp(1, 0), b"v"))
    assert references(places) == before


def test_a_marker_frees_few_groups_and_each_record_that_comes_frees_one() -> None:
    """To free a thousand groups in which many had something takes as long as the rest of a marker."""
    pending, places = PendingOffsets(), [b"place %d" % number for number in range(DROPPED_MAX + 2)]
    before = references(places)

    def freed() -> int:
        return sum(map(eq, references(places), before))

    for number in range(len(places)):
        pending.put(b"\0\4%04d" % number, places[number], Pending(1, ProducerStamp(1, 0), b"v"))
    pending.end(1, 2, commit=False)
    assert not pending
    assert freed() == 2
    for number in range(3, 6):
        pending.put(b"\0\1g", b"other", Pending(number, ProducerStamp(2, 0), b"v"))
        assert freed() == number


# loads and snapshots -----------------------------------------------------------------------------------------


def test_loaded_tombstones_remove_few_offsets_in_a_slice() -> None:
    shard = shard_with(producers=100, places=200)
    batch = build_batch([Record(at, 1, tombstone(at).key, None, ()) for at in range(200)])
    stamp(batch, 0, 200, 1)
    work = replay_chunk(shard, bytes(batch), 0, 200, 400, LoadLimits())
    removed = list(slices_of(work, lambda: shard.pending_count))
    assert sum(removed) == 100 * 200
    assert max(removed) <= 4 * SLICE_COST


@pytest.mark.parametrize("metadata", ["", "m" * 4_000])
def test_a_part_of_a_snapshot_ends_however_many_have_something_at_a_place(metadata: str) -> None:
    shard = shard_with(producers=1_100, places=2, metadata=metadata)
    restored, found = GroupShard(QUICK, random.Random(1), lambda _: TOPIC_ID), 0
    for part, count in shard.pack():
        assert count <= RUN_RECORDS_MAX
        assert len(part) <= PART_BYTES + 5_000 + 20 * count
        found += count
        for run in read_runs(part):
            restored.unpack(run)
    assert found == 2_200
    for place in range(2):
        key = record(place).key
        name, at = key[2:5], key[5:]
        assert restored.pending.place_of(name, at) == shard.pending.place_of(name, at)


def test_a_snapshot_keeps_each_of_several_offsets_of_a_producer_at_a_place() -> None:
    """A load replays from before its snapshot what the snapshot has something newer of."""
    live, loaded, producer = OffsetStore(), OffsetStore(), ProducerStamp(1, 0)
    for at, offset in ((96, 30), (92, 20)):
        live.begin_batch(at)
        live.replay_pending(producer, [(record(0, offset=offset).key, record(0, offset=offset).value)])
    for data, _ in live.pack():
        for run in read_runs(data):
            loaded.unpack(run)
    for store in (live, loaded):
        store.begin_batch(94)
        store.end_transaction(producer, commit=True)
        store.begin_batch(98)
        store.end_transaction(producer, commit=False)
        found = store.counting.get("g", "t", 0)
        assert found is not None and found.offset == 20


@pytest.mark.parametrize("ended", [0, 99])
def test_a_step_of_a_snapshot_is_short_however_many_producers_share_the_places(ended: int) -> None:
    """Of each place all are found at the first producer; the others have nothing more there, or have ended."""
    shared = shard_with(producers=100, places=500)
    for number in range(ended):
        shared.begin_batch(1_000 + number)
        shared.end_transaction(ProducerStamp(number, 0), commit=True)
    worst: list[int] = []
    for shard in (shard_with(producers=1, places=RUN_RECORDS_MAX), shared):
        parts, spent, records, found = shard.pending.pack(), list[int](), 0, 0
        while records >= 0:
            found += records
            with counted_calls() as count:
                _, records = next(parts, (b"", -1))
            spent.append(count.calls)
        assert found == shard.pending_count
        worst.append(max(spent))
    assert worst[1] <= worst[0]


def test_the_memory_of_many_groups_is_known_without_a_walk() -> None:
    spent = []
    for groups in (10, 1_000):
        pending = PendingOffsets()
        for number in range(groups):
            pending.put(b"\0\4%04d" % number, b"place", Pending(1, ProducerStamp(1, 0), b"v"))
        with counted_calls() as count:
            pending.held_bytes()
        spent.append(count.calls)
    assert spent[0] == spent[1]


# retention ---------------------------------------------------------------------------------------------------


def test_retention_reads_little_that_is_pending_for_a_topic_that_is_there() -> None:
    shard = shard_with(producers=20, places=40)
    for place in range(20):
        one = record(place)
        shard.replay(one.key, one.value)
    now = before_retention(shard)
    with counted_calls(PendingOffsets.holds) as looks, counted_calls(read_value) as count:
        assert not shard.expire(now)
    assert looks.calls == 40
    assert count.calls == 20 + 20, "those that count, and where none does the first that is pending"


def before_retention(shard: GroupShard) -> Now:
    """The time at which the shard has retention to do, and nothing else."""
    shard.loaded(Now(0.0, 0))
    shard.expire(Now(1.0, 10**12))
    return Now(1_000.0, 10**12)


@pytest.mark.parametrize("now_id", [None, bytes([9] * 16)])
def test_a_step_of_retention_removes_few_offsets_of_a_deleted_topic(now_id: bytes | None) -> None:
    config = GroupConfig(group_initial_rebalance_delay_ms=0, expiries_per_turn_max=100)
    shard = shard_with(producers=20, places=50, config=config, topic_id_of=lambda _: now_id)
    shard.begin_batch(1_000)
    now, steps = before_retention(shard), list[int]()
    while records := shard.expire(now):
        for one in records:
            shard.replay(one.key, one.value)
        steps.append(len(records))
        now = now._replace(monotonic_s=now.monotonic_s + 1)
    assert sum(steps) == 50
    assert max(steps) * 20 <= 100 + 20
    assert not shard.has_pending


def test_a_round_of_retention_begins_without_a_list_of_all_groups() -> None:
    spent = []
    for groups in (300, 3_000):
        shard = GroupShard(QUICK, random.Random(1), lambda _: TOPIC_ID)
        for number in range(groups):
            shard.replay_pending(ProducerStamp(number // 100, 0), [record(0, f"group-{number}")])
        now = before_retention(shard)
        with counted_calls() as count:
            shard.expire(now)
        spent.append(count.calls)
    assert spent[0] == pytest.approx(spent[1], rel=0.01)


@pytest.mark.parametrize("parts", range(4))
def test_a_marker_between_two_parts_of_a_snapshot_ends_what_is_in_either(parts: int) -> None:
    """Two producers share more places than a part holds. The newer offsets count first, and must not be overtaken."""
    older, newer, places = ProducerStamp(1, 0), ProducerStamp(2, 0), RUN_RECORDS_MAX + RUN_RECORDS_MAX // 2
    live, loaded = OffsetStore(), OffsetStore()
    for at, producer, offset in ((80, older, 100), (85, newer, 200)):
        live.begin_batch(at)
        live.replay_pending(producer, [record(place, offset=offset) for place in range(places)])
    packing = (data for data, _ in live.pack())
    packed = list(islice(packing, parts))
    live.begin_batch(92)
    live.end_transaction(newer, commit=True)
    packed += packing
    for data in packed:
        for run in read_runs(data):
            loaded.unpack(run)
    loaded.begin_batch(92)
    loaded.end_transaction(newer, commit=True)
    for store in (live, loaded):
        store.begin_batch(95)
        store.end_transaction(older, commit=True)
        found = [store.counting.get("g", "t", place) for place in range(places)]
        assert [one and one.offset for one in found] == [200] * places
