"""Replicas that begin where the tier ends, on a disk that is stuck while it is to write that down: whatever becomes of
them meanwhile, they neither fetch, nor take anything, nor begin again before the disk is done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.partitions.replica import Role
from broker.tier.reconciling import TierEnd, begin_at_end
from common.errors import ErrorCode
from common.machine_disk import MachineDisk, MachineFile
from kraft.records import PartitionChangeRecord
from storage.disk.checkpoint_files import LEADER_EPOCHS
from storage.producers.producer_snapshot import Snapshot, SnapshotEntry, encode_snapshot
from tests.broker.replication_lab import NOW_MS, TOPIC_ID, LabBroker, batch, eventually, produce
from tests.broker.test_broker_tier import VALUE, filled
from tests.broker.tier_lab import TierLab


class StuckDisk(MachineDisk):
    """Its threads stand still before they write leader epochs, until `go_on` is set."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.go_on = threading.Event()
        self.inside = 0
        self.most = 0

    def open(self, path: str, *, create: bool = False) -> MachineFile:
        if create and LEADER_EPOCHS in path:
            self.inside += 1
            self.most = max(self.most, self.inside)
            assert self.go_on.wait(60)
            self.inside -= 1
        return super().open(path, create=create)


@contextmanager
def stuck(broker: LabBroker) -> Iterator[StuckDisk]:
    disk = broker.logs.context.disk = StuckDisk(broker.lab.root / f"broker-{broker.node_id}")
    try:
        yield disk
    finally:
        disk.go_on.set()


async def turns() -> None:
    """Whatever needs no thread and no other broker is done."""
    for _ in range(100):
        await asyncio.sleep(0)


async def dropped(lab: TierLab) -> None:
    """Broker 0's topic is in the tier, and its disk has the last segment alone."""
    await filled(lab)
    await lab.copied()
    assert await lab.drop_local() > 3


async def test_a_hundred_thousand_producers_are_read_beside_the_loop(tmp_path: Path) -> None:
    """The check of all tests, that nothing holds the loop, sees what took half a second of it."""
    count, end = 100_000, 200_000
    entries = [SnapshotEntry(number, 0, 0, 2 * number + 1, 0, NOW_MS, 0, 2 * number) for number in range(count)]
    snapshot = encode_snapshot(Snapshot(entries, []))
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        partition = lab.partition(1)
        await begin_at_end(
            partition, TierEnd(end, 0, [(0, 0)], snapshot), lambda: True, lab[1].plane.partitions.following
        )
        producers = partition.log.producers
        assert len(producers) == producers.count_opened(0, end) == count
        assert producers.count_opened(10, 21) == 6
        named = producers.opened(10, end, 3)
        assert [one.transaction_start_offset for one in named] == [10, 12, 14]


async def test_nobody_leads_before_it_is_durable_where_it_began_as_a_follower(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, local_retention_ms="0")
        await dropped(lab)
        with stuck(lab[1]) as disk:
            lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1)))
            await eventually(lambda: disk.inside)
            lab.controller.elect(1, isr=(1,))  # the leader is gone for good
            connection = await lab[1].connect()
            for _ in range(5):
                assert (await produce(connection, batch(VALUE))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
                await turns()
            assert lab.partition(1).role is Role.OFFLINE
            assert lab.partition(1).log.log_end_offset == lab.bucket.tier.tier_end_offset
            disk.go_on.set()
            await eventually(lambda: lab.partition(1).is_leader)
            row = await produce(connection, batch(VALUE))
            assert (row.error_code, row.base_offset) == (ErrorCode.NONE, lab.bucket.tier.tier_end_offset)
            assert disk.most == 1


@pytest.mark.parametrize("again", [False, True])
async def test_a_deposed_leader_follows_once_it_is_durable_where_it_began(tmp_path: Path, *, again: bool) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1, local_retention_ms="0")
        await filled(lab, 3)
        await lab.kill(1)
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, isr=(0,)))
        await dropped(lab)
        tier_end = lab.bucket.tier.tier_end_offset
        await lab[1].start()
        partition = lab.partition(1)
        with stuck(lab[1]) as disk:
            lab.controller.elect(1, isr=(1,))
            await eventually(lambda: disk.inside)
            assert (partition.role, partition.log.log_end_offset) == (Role.OFFLINE, tier_end)
            for leader in (0, 1, 0) if again else (0,):
                lab.controller.elect(leader, isr=(leader,))
                await turns()
            assert partition.role is Role.FOLLOWER
            assert lab[1].plane.fetchers.lagging_count == 1, "it does not fetch"
            assert disk.inside == 1
            disk.go_on.set()
            await eventually(lambda: lab.controller.isr == (0, 1))
            await filled(lab, 1)
            assert partition.log.log_end_offset == lab.partition(0).log.log_end_offset > tier_end
            assert partition.log.leader_epochs.entries() == lab.partition(0).log.leader_epochs.entries()
            assert disk.most == 1
            assert lab[1].logs.offline is None


async def test_a_replica_that_leaves_and_returns_begins_after_the_one_before(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, local_retention_ms="0")
        await dropped(lab)
        with stuck(lab[1]) as disk:
            lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1)))
            await eventually(lambda: disk.inside)
            before, store = lab.partition(1), lab.tiers[1].store
            asked = store.calls["get"]
            lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0,)))
            lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1)))
            await eventually(lambda: lab.partition(1) is not before)
            await eventually(lambda: store.calls["get"] == 2 * asked, "it knows where it is to begin")
            await turns()
            assert lab.partition(1).log.log_end_offset == 0
            disk.go_on.set()
            await eventually(lambda: lab.controller.isr == (0, 1))
            assert disk.most == 1
            assert lab[1].logs.offline is None
