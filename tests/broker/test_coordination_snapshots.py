"""Shards on the disk: what a start reads instead of a log's beginning, and when it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.coordination import snapshots
from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.records import group_record, offset_record
from broker.coordination.groups.values import CommittedOffset, GroupMetadata
from broker.coordination.hosted_shard import HostLimits
from broker.coordination.loading import LoadLimits, load_shard
from broker.coordination.partition_access import CoordinatedPartition
from broker.coordination.runtime import CoordinatorRuntime, RuntimeConfig
from broker.coordination.shard import CoordinatorRecord, Now, Shard
from broker.coordination.snapshots import (
    FILE_NAME,
    Progress,
    ShardSnapshots,
    SnapshotLimits,
    begin_shard,
    gather,
    still,
)
from broker.coordination.standby import StandbyLimits
from common.decision import Decision, ProducerStamp
from common.machine_disk import MachineDisk
from common.pacing import SLICE_COST, Pacer
from tests.broker.coordinated_partition import MemoryPartition
from tests.broker.test_coordination_runtime import TOPIC, eventually
from tests.broker.test_groups_scale import batch_of, new_shard
from tests.storage.log_workbench import ShiftedClock

pytestmark = pytest.mark.virtual_time

OFTEN = SnapshotLimits(records_min=50, interval_s=0.005)
EMPTY_GROUP = GroupMetadata("consumer", 1, None, None, 5, ())


def offset(group: str, partition: int, value: int, metadata: str = "") -> CoordinatorRecord:
    return offset_record(group, "t", partition, CommittedOffset(value, 1, metadata, 5, -1, bytes(16)))


class Broker:
    """One that starts again and again on the same disk and log."""

    def __init__(self, root: Path) -> None:
        self.clock = ShiftedClock()
        self.root = root
        self.partition = MemoryPartition()
        self.shard = new_shard()
        self.restarts()

    def restarts(self) -> None:
        self.snapshots = ShardSnapshots(MachineDisk(self.root), self.clock, Pacer(), OFTEN)

    def append(self, *records: CoordinatorRecord) -> None:
        """What the shard has as well."""
        for record in records:
            self.shard.replay(record.key, record.value)
        self.partition.append_records(batch_of(list(records)), self.partition.leader_epoch, 0)

    def fill(self, groups: int = 10, offsets: int = 20) -> None:
        for number in range(groups):
            self.append(*(offset(f"g{number}", at, at, "m" * (at % 3)) for at in range(offsets)))
        self.append(group_record("g0", EMPTY_GROUP))

    async def write(self) -> bool:
        return await self.snapshots.write(self.partition, self.shard, still(self.partition.log.log_end_offset))

    async def load(self) -> tuple[Shard, int]:
        """A shard as the next start has it, and where in the log that began to read."""
        self.restarts()
        shard, begin = await begin_shard(self.partition, new_shard, self.snapshots)
        await load_shard(self.partition, shard, LoadLimits(), Pacer(), begin)
        return shard, begin


def state(shard: Shard) -> dict[str, object]:
    assert isinstance(shard, GroupShard)
    offsets = {name: sorted(shard.offsets.items(name)) for name in sorted(shard.offsets.groups())}
    return {"offsets": offsets, "groups": sorted(shard.committed.items())}


@pytest.fixture
async def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


async def test_a_start_replays_only_what_came_after_the_snapshot(broker: Broker) -> None:
    broker.fill()
    assert await broker.write()
    written_at = broker.partition.log.log_end_offset
    broker.append(offset("g1", 3, 77), offset("g2", 5, 0)._replace(value=None))
    loaded, begin = await broker.load()
    assert begin == written_at == 201
    assert sum(len(region.data) for region in broker.partition.regions) == len(broker.partition.log.batches[-1])
    assert state(loaded) == state(broker.shard)


async def test_a_shard_goes_on_while_it_is_written(broker: Broker) -> None:
    broker.fill(groups=30)
    begin = broker.partition.log.log_end_offset
    parts, pack = 0, broker.shard.pack

    def changing_pack() -> object:
        nonlocal parts
        for part in pack():
            parts += 1
            broker.append(offset(f"g{parts % 7}", 1, 1_000 + parts), offset(f"new{parts}", 1, parts))
            if parts % 3 == 0:
                broker.append(*(offset("g29", at, 0)._replace(value=None) for at in range(20)))
            yield part

    broker.shard.pack = changing_pack  # type: ignore[assignment]

    def end() -> int:
        return broker.partition.log.log_end_offset

    assert await broker.snapshots.write(broker.partition, broker.shard, Progress(end, end, lambda: 0))
    loaded, begun = await broker.load()
    assert parts >= 30
    assert begun == begin
    assert state(loaded) == state(broker.shard)


def another_history(broker: Broker) -> None:
    """The end was lost, and others wrote in its place."""
    broker.partition.log.leader_epochs.truncate_from_end(200)
    broker.partition.log.leader_epochs.assign(9, 200)


def shorter(broker: Broker) -> None:
    broker.partition.log.batches.pop()
    broker.partition.log.log_end_offset -= 1


def records_deleted(broker: Broker) -> None:
    broker.partition.log.log_start_offset = 20


def old(broker: Broker) -> None:
    broker.clock.shift_s += broker.partition.log.config.delete_retention_ms / 1000 + 1


def damaged(broker: Broker) -> None:
    path = broker.root / FILE_NAME
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_off(broker: Broker) -> None:
    path = broker.root / FILE_NAME
    path.write_bytes(path.read_bytes()[:-30])


def holed(broker: Broker) -> None:
    """The device never got what lies behind the head: it reads as zeros."""
    path = broker.root / FILE_NAME
    data = path.read_bytes()
    head = snapshots._HEAD.size
    path.write_bytes(data[:head] + bytes(len(data) - head))


@pytest.mark.parametrize("happens", [another_history, shorter, records_deleted, old, damaged, cut_off, holed])
async def test_a_snapshot_that_does_not_fit_the_log_counts_for_nothing(
    broker: Broker, happens: Callable[[Broker], None]
) -> None:
    broker.fill()
    assert await broker.write()
    happens(broker)
    _, begin = await broker.load()
    assert begin == broker.partition.log.log_start_offset


async def test_what_was_taken_back_meanwhile_is_not_written(broker: Broker) -> None:
    broker.fill()
    end = broker.partition.log.log_end_offset
    undone = iter((0, 1))
    assert not await broker.snapshots.write(
        broker.partition, broker.shard, Progress(lambda: end, lambda: end, lambda: next(undone))
    )
    assert not await broker.snapshots.write(
        broker.partition, broker.shard, Progress(lambda: end, lambda: end + 1, lambda: 0)
    )
    assert not await broker.snapshots.write(
        broker.partition, broker.shard, Progress(lambda: end, lambda: end, lambda: -1)
    ), "a closed shard: the log may have gone another way since"
    assert list(broker.root.iterdir()) == []


async def test_it_is_written_after_so_many_records_and_again_before_it_is_old(broker: Broker) -> None:
    def due() -> bool:
        return broker.snapshots.is_due(broker.partition, broker.shard, broker.partition.log.log_end_offset)

    broker.append(offset("g", 0, 0))
    assert not due()
    broker.fill()
    assert due()
    assert await broker.write()
    assert not due()
    broker.fill(groups=3)
    assert not due()  # it has 201 records, so it waits for 100
    broker.fill(groups=2)
    assert due()
    assert await broker.write()
    broker.clock.shift_s += broker.partition.log.config.delete_retention_ms / 1000
    assert due()


@pytest.mark.parametrize("is_new", [False, True])
async def test_none_is_written_of_a_shard_that_may_have_more_than_was_replayed(broker: Broker, is_new: bool) -> None:
    """A shard that begins with a snapshot has some records of beyond where it begins, up to its end."""
    broker.fill()
    end = broker.partition.log.log_end_offset
    ends = iter((100, end))
    assert await broker.snapshots.write(
        broker.partition, broker.shard, Progress(lambda: next(ends), lambda: end, lambda: 0)
    )
    if is_new:
        broker.restarts()
        assert await broker.snapshots.restore(broker.partition, new_shard()) == 100
    broker.clock.shift_s += broker.partition.log.config.delete_retention_ms * 0.75 / 1000
    assert not broker.snapshots.is_due(broker.partition, broker.shard, end - 1)
    assert broker.snapshots.is_due(broker.partition, broker.shard, end)


def test_no_part_of_a_large_group_takes_long() -> None:
    shard = new_shard()
    for at in range(5_000):
        shard.replay(*offset("g", at, at))
    for at in range(300):
        shard.replay(*offset(f"g{at}", 0, 0))
    assert max(count for _, count in shard.pack()) <= 1_000
    assert max(gather(shard.pack())) <= SLICE_COST
    assert sum(gather(shard.pack())) <= 6_000


async def test_offsets_of_open_transactions_are_read_in_more_slices_than_others(broker: Broker) -> None:
    """They take several times as long each."""
    slices = []
    for is_pending in (False, True):
        broker.shard = new_shard()
        for at in range(2_000):
            one = offset("g", at, at)
            if is_pending:
                broker.shard.replay_pending(ProducerStamp(7, 0), [one])
            else:
                broker.shard.replay(*one)
        broker.fill(1, 1)
        assert await broker.write()
        pacer = Pacer()
        reader = ShardSnapshots(MachineDisk(broker.root), broker.clock, pacer, OFTEN)
        await begin_shard(broker.partition, new_shard, reader)
        slices.append(pacer.slices)
    assert slices[1] >= 2
    assert slices[1] > slices[0]


async def test_leaders_and_followers_write_and_a_leader_begins_with_it(tmp_path: Path) -> None:
    partition, made = MemoryPartition(), []

    def make(_: int) -> GroupShard:
        made.append(new_shard())
        return made[-1]

    def start() -> CoordinatorRuntime:
        runtime = CoordinatorRuntime(ShiftedClock(), RuntimeConfig(HostLimits()), Pacer())
        runtime.host(TOPIC, make)
        runtime.keep_snapshots(MachineDisk(tmp_path), OFTEN)
        return runtime

    runtime = start()
    runtime.elected(partition)
    await eventually(lambda: runtime.active(TOPIC) == [0])
    records = [offset("g", at, at) for at in range(100)]
    await runtime.write(TOPIC, 0, lambda shard, now, _: Decision(None, records))
    await eventually((tmp_path / FILE_NAME).exists)
    await runtime.stop()

    for _ in range(2):  # the second start finds what the follower wrote
        partition.regions.clear()
        runtime = start()
        runtime.elected(partition)
        await eventually(lambda: runtime.active(TOPIC) == [0])  # noqa: B023
        await runtime.stop()
        assert partition.regions == []
        assert made[-1].offsets.count("g") == 100
        (tmp_path / FILE_NAME).unlink()
        runtime = start()
        runtime.keep_standbys(lambda: [partition], StandbyLimits(1 << 20, 0.005))
        await eventually((tmp_path / FILE_NAME).exists)
        await runtime.stop()


@pytest.mark.parametrize("enough", [True, False])
async def test_a_clean_stop_writes_what_a_start_would_replay_for_long(tmp_path: Path, enough: bool) -> None:
    partition = MemoryPartition()
    limits = SnapshotLimits(interval_s=60.0, last_records_min=100)

    async def start() -> CoordinatorRuntime:
        runtime = CoordinatorRuntime(ShiftedClock(), RuntimeConfig(HostLimits()), Pacer())
        runtime.host(TOPIC, lambda _: new_shard())
        runtime.keep_snapshots(MachineDisk(tmp_path), limits)
        runtime.elected(partition)
        await eventually(lambda: runtime.active(TOPIC) == [0])
        return runtime

    def kept(shard: GroupShard, _: Now) -> int:
        return shard.offsets.count("g")

    records = [offset("g", at, at) for at in range(100 if enough else 99)]
    runtime = await start()
    await runtime.write(TOPIC, 0, lambda shard, now, _: Decision(None, records))
    await runtime.stop()
    assert (tmp_path / FILE_NAME).exists() == enough
    partition.regions.clear()
    runtime = await start()
    assert (partition.regions == []) == enough
    assert await runtime.read(TOPIC, 0, kept) == len(records)
    await runtime.stop()


async def test_a_clean_stop_waits_for_a_slow_device_within_a_limit(broker: Broker) -> None:
    """And begins with the shard that lacks most."""
    waiting, begun = asyncio.Event(), []

    class Stuck(ShardSnapshots):
        async def write(self, partition: CoordinatedPartition, shard: Shard, progress: Progress) -> bool:
            begun.append(partition.index)
            return await waiting.wait()

    served: list[tuple[CoordinatedPartition, Shard, Progress]] = []
    for index, count in ((0, 5), (1, 9), (2, 7)):
        served.append((MemoryPartition(index=index), new_shard(), still(count)))
    limits = SnapshotLimits(last_records_min=1, last_s=0.01)
    await Stuck(MachineDisk(broker.root), broker.clock, Pacer(), limits).write_last(served)
    assert begun == [1]
    waiting.set()
    await Stuck(MachineDisk(broker.root), broker.clock, Pacer(), SnapshotLimits(last_records_min=6)).write_last(served)
    assert begun == [1, 1, 2]
