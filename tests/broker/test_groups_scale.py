"""Large shards: the work that a load, a look or a removal takes is counted, and done in slices."""

from __future__ import annotations

import random

import pytest

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.offset_decisions import OFFSETS_AT_ONCE
from broker.coordination.groups.offset_store import OffsetStore
from broker.coordination.groups.records import offset_record
from broker.coordination.groups.retention import Retention
from broker.coordination.groups.tenant_index import ByTenant
from broker.coordination.groups.values import CommittedOffset, GroupState
from broker.coordination.loading import LoadLimits, load_shard, replay_chunk
from broker.coordination.shard import CoordinatorRecord, Now
from common.errors import ErrorCode
from common.pacing import SLICE_COST, Pacer, Work, at_once
from kraft.image.key_ranges import Keeping
from records.builder import build_batch
from records.compression import Compression
from records.record import Record
from tests.broker.coordinated_partition import MemoryPartition
from tests.broker.group_driver import GROUP, GroupDriver

QUICK = GroupConfig(group_initial_rebalance_delay_ms=0)
GROUPS, OFFSETS = 100, 200
COST_PER_OFFSET = 1.1  # units, beside its batch


def batch_of(records: list[CoordinatorRecord], codec: Compression = Compression.NONE) -> bytearray:
    return build_batch([Record(at, 1, one.key, one.value, ()) for at, one in enumerate(records)], compression=codec)


def log_of(partition: MemoryPartition, groups: int, offsets: int, codec: Compression = Compression.NONE) -> None:
    for number in range(groups):
        records = [
            offset_record(f"g{number}", "t", index, CommittedOffset(index, 1, "", 5, -1, bytes(16)))
            for index in range(offsets)
        ]
        partition.append_records(batch_of(records, codec), 1, 0)


def new_shard() -> GroupShard:
    return GroupShard(QUICK, random.Random(1), lambda _: bytes(16))


def costs(work: Work[object]) -> list[int]:
    return list(work)


async def test_a_load_is_done_in_slices_and_costs_little_for_each_offset() -> None:
    partition, shard, pacer = MemoryPartition(), new_shard(), Pacer()
    log_of(partition, GROUPS, OFFSETS)
    whole = b"".join(partition.log.batches)
    spent = costs(replay_chunk(new_shard(), whole, 0, 0, partition.log.log_end_offset, LoadLimits()))
    assert sum(spent) <= GROUPS * OFFSETS * COST_PER_OFFSET
    assert max(spent) <= SLICE_COST
    assert await load_shard(partition, shard, LoadLimits(), pacer) == GROUPS * OFFSETS
    assert pacer.costliest <= 2 * SLICE_COST
    assert shard.fetch_offset("g7", "t", 199) == CommittedOffset(199, 1, "", 5, -1, bytes(16))
    assert shard.offsets.count("g99") == OFFSETS


async def test_compressed_batches_are_loaded_between_others() -> None:
    partition, shard = MemoryPartition(), new_shard()
    log_of(partition, 2, 5)
    log_of(partition, 3, 600, Compression.GZIP)
    log_of(partition, 4, 1)
    assert await load_shard(partition, shard, LoadLimits(chunk_bytes=500), Pacer()) == 10 + 1_800 + 4
    assert [shard.offsets.count(f"g{number}") for number in range(4)] == [600, 600, 600, 1]


def test_groups_come_into_memory_when_they_are_asked_for_or_in_turns() -> None:
    before = GroupDriver(QUICK)
    before.stable_group(2)
    for number in range(300):
        before.stable_group(1, group=f"other-{number}")
    shard = GroupShard(QUICK, random.Random(1), before.topics.get)
    for record in before.log:
        shard.replay(record.key, record.value)
    now = before.now
    shard.loaded(now)
    assert not shard.groups
    assert shard.describe(GROUP).state is GroupState.STABLE
    assert list(shard.groups) == [GROUP]
    turns = 0
    while (deadline := shard.next_deadline()) is not None and deadline <= now.monotonic_s + 1:
        shard.expire(Now(deadline, now.wall_ms))
        turns += 1
    assert len(shard.groups) == 301
    assert turns > 3


@pytest.mark.parametrize("ends_early", [False, True])
def test_a_large_group_is_deleted_in_parts(ends_early: bool) -> None:
    driver = GroupDriver(QUICK)
    count = 3 * OFFSETS_AT_ONCE + 7
    driver.commit(dict.fromkeys((("t", index) for index in range(count)), 1))
    rounds = 0
    while (decision := driver.shard.delete_group(GROUP)).reply is None:
        assert len(decision.records) <= OFFSETS_AT_ONCE
        driver.append(decision.records)
        rounds += 1
        if ends_early and rounds == 2:
            driver.stable_group(1)
    assert decision.reply is (ErrorCode.NON_EMPTY_GROUP if ends_early else ErrorCode.NONE)
    driver.append(decision.records)
    assert rounds == (2 if ends_early else 3)
    assert driver.shard.offsets.count(GROUP) == (OFFSETS_AT_ONCE + 7 if ends_early else 0)


def test_what_is_read_of_a_large_group_is_read_in_slices() -> None:
    driver = GroupDriver(QUICK)
    driver.commit(dict.fromkeys((("t", index) for index in range(5_000)), 1))
    for work in (driver.shard.fetch_offsets(GROUP), driver.shard.records_of(GROUP), driver.shard.list_groups()):
        assert max(costs(work), default=0) <= SLICE_COST
    assert len(at_once(driver.shard.fetch_offsets(GROUP))["t"]) == 5_000


def test_members_get_back_the_time_in_which_this_node_was_stalled() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = driver.stable_group(1, session_ms=10_000)
    driver.now_s += 30.0  # nothing was read meanwhile: what the member sent waits in its socket
    stalled = driver.now._replace(spared_until_s=driver.now_s + 20.0)
    driver.append(driver.shard.expire(stalled))
    assert driver.heartbeat(ids[0], generation) is ErrorCode.NONE
    driver.now_s += 30.0
    driver.append(driver.shard.expire(driver.now))
    assert driver.heartbeat(ids[0], generation) is ErrorCode.UNKNOWN_MEMBER_ID, "the time is given back once"


class CountedName(str):
    """A group's id that counts how often any of its kind is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        CountedName.lookups += 1
        return super().__hash__()


def test_a_round_of_retention_begins_at_the_cost_of_its_first_groups() -> None:
    committed = ByTenant[bytes]()
    for number in range(5_000):
        committed[CountedName(f"g{number}")] = b""
    looked_at: list[str] = []

    def keeping_of(group_id: str) -> Keeping:
        looked_at.append(group_id)
        return Keeping.COMING

    retention = Retention(
        QUICK, OffsetStore(), committed, lambda _: None, topic_id_of=lambda _: None, keeping_of=keeping_of
    )
    CountedName.lookups = 0
    retention.step(Now(0.0, 0))
    assert CountedName.lookups < QUICK.expiries_per_turn_max * 5
    while retention.is_under_way:
        retention.step(Now(0.0, 0))
    assert looked_at == list(committed)
