"""Transactions whose records are in the tier and whose markers are not: a new leader aborts or reports them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.replication.cold_reading import ColdReading
from broker.tier.undecided import MARKERS_AT_ONCE
from common.errors import ErrorCode
from kraft.records import ClusterRecord, PartitionChangeRecord
from records.batch import read_header
from records.control import MarkerKind, read_marker
from storage.log.partition_log import PartitionLog
from tests.broker.lab_tier import LIMITS
from tests.broker.replication_lab import (
    NEVER_MS,
    NOW_MS,
    TOPIC,
    TOPIC_ID,
    batch,
    decode_all,
    eventually,
    fetch,
    produce,
    row_of,
)
from tests.broker.test_broker_tier_adoption import rebuilt
from tests.broker.tier_lab import ROOT, TierLab
from tests.broker.transaction_lab import TXN_ID, coordinated, marker, of_transaction
from tests.sim.bugs import planted
from tiering.bucket.cluster_file import begin_incarnation
from tiering.reading.remote_reader import RemoteReader
from tiering.upkeep.inventory import find_topics
from tiering.upkeep.restoring import NewTopic, copy_topic, remove_copies, write_manifests
from tiering.upkeep.undecided import undecided_transactions

pytestmark = pytest.mark.virtual_time

DECIDED, LOST = 7, 100
Objects = dict[str, Any]


async def old_bucket(root: Path, lost: int = 2, *, commit: bool = False) -> tuple[Objects, int, list[int]]:
    """The objects of an old cluster, where its tier ended, and where the transactions began whose markers lie behind
    that: `lost` of them, by the producers from LOST on. One transaction is decided within the tier."""
    async with TierLab(root) as old:
        old.create_tiered(0, segment_bytes="16384")  # room for all markers in one segment
        coordinated(old)
        connection = await old[0].connect()
        partition = old.partition()

        async def send(data: bytes, transactional_id: str | None = None) -> int:
            row = await produce(connection, data, transactional_id=transactional_id, version=11)
            assert row.error_code == ErrorCode.NONE
            return int(row.base_offset)

        await send(of_transaction(producer_id=DECIDED), TXN_ID)
        partition.append_marker(marker(producer_id=DECIDED), NOW_MS)
        begins = [
            await send(of_transaction(producer_id=LOST + number, value=b"v" * 100), f"{TXN_ID}-{number}")
            for number in range(lost)
        ]
        segments = len(partition.log.segments)
        while len(partition.log.segments) == segments:
            await send(batch(b"v" * 2_000))
        for number in range(lost):
            partition.append_marker(marker(producer_id=LOST + number, commit=commit), NOW_MS)
        end = next(one.base_offset for one in partition.log.segments if one.base_offset > begins[-1])
        await eventually(lambda: old.bucket.tier.tier_end_offset >= end)
        await old.copied()
        tier_end = old.bucket.tier.tier_end_offset

        def is_published() -> bool:
            head = old.tiers[0].publisher.published(TOPIC_ID, 0)
            return head is not None and head.end_offset == tier_end

        await eventually(is_published)
        return dict(old.bucket.store.objects), tier_end, begins


def markers_of(log: PartitionLog) -> list[tuple[int, MarkerKind]]:
    """Producers and kinds of the markers on the disk, in order."""
    found, offset = [], log.local_log_start_offset
    while offset < log.log_end_offset:
        region = log.read(offset, 1 << 20, log.log_end_offset, at_least_one=True)
        assert region is not None
        data, at = region.read(), 0
        region.release()
        while at < len(data):
            header = read_header(data, at)
            if header.is_control and (read := read_marker(memoryview(data), at, header.size)) is not None:
                found.append((header.producer_id, read.kind))
            at, offset = at + header.size, header.next_offset
    return found


async def restored(lab: TierLab) -> None:
    """The bucket's topic is restored under another id, and then under its own again."""
    store = lab.bucket.store
    for name, topic_id in (("between", bytes([9] * 16)), (TOPIC, TOPIC_ID)):
        (found,) = await find_topics(store, ROOT)
        new = NewTopic(name, topic_id, "", 1)
        await copy_topic(store, ROOT, found, new, lambda *_: None)
        await write_manifests(store, ROOT, found, new, 5, lambda: "0" * 32)
        await remove_copies(store, ROOT, NewTopic(found.name, found.topic_id, "", 1))


async def begin(lab: TierLab, objects: Objects, kind: str) -> None:
    lab.bucket.store.objects = dict(objects)
    incarnation = 1
    if kind == "rebuilt":
        incarnation = (await begin_incarnation(lab.bucket.store, ROOT, NOW_MS)).incarnation
    else:
        await restored(lab)
    replicas = tuple(range(len(lab.brokers)))
    lab.controller.change(ClusterRecord("cluster-1", incarnation), *rebuilt(*replicas))
    await eventually(lambda: lab[0].plane.partitions.get(TOPIC, 0) is not None)
    lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, isr=(0,), leader=0))


async def nothing_is_undecided(lab: TierLab, end: int, begins: list[int], node: int = 0) -> None:
    """What was not decided is aborted, once and before anything else."""
    partition = lab.partition(node)
    await eventually(lambda: partition.is_leader and lab.view(node) is not None)
    await eventually(lambda: partition.last_stable_offset == partition.log.log_end_offset, "the LSO reaches the end")
    log = partition.log
    aborted = [(LOST + number, MarkerKind.ABORT) for number in range(len(begins))]
    assert markers_of(log)[: len(begins)] == aborted
    known = log.aborted_transactions(end, log.log_end_offset)
    assert sorted(known) == [(LOST + number, first) for number, first in enumerate(begins)]


@pytest.mark.parametrize("kind", ["rebuilt", "restored"])
@pytest.mark.parametrize("commit", [True, False])
async def test_a_rebuilt_or_restored_partition_aborts_what_only_the_brokers_knew(
    tmp_path: Path, kind: str, commit: bool
) -> None:
    objects, end, begins = await old_bucket(tmp_path / "old", commit=commit)
    async with TierLab(tmp_path / "new") as lab:
        await begin(lab, objects, kind)
        await nothing_is_undecided(lab, end, begins)
        log = lab.partition().log
        assert markers_of(log) == [(LOST, MarkerKind.ABORT), (LOST + 1, MarkerKind.ABORT)]
        assert log.log_end_offset == end + len(begins)
        client = await lab[0].connect()
        first = batch(b"next", producer_id=LOST, producer_epoch=0, base_sequence=0)
        expected = end + len(begins) if kind == "restored" else begins[0]
        assert (await produce(client, first)).base_offset == expected, "in a restored topic producers start over"


@pytest.mark.parametrize("kind", ["rebuilt", "restored"])
async def test_without_markers_readers_and_the_tier_would_stop_for_ever(tmp_path: Path, kind: str) -> None:
    objects, end, begins = await old_bucket(tmp_path / "old")
    with planted("rebuild_without_abort_markers"):
        async with TierLab(tmp_path / "new") as lab:
            await begin(lab, objects, kind)
            with pytest.raises(AssertionError, match="the LSO reaches the end"):
                await nothing_is_undecided(lab, end, begins)
            assert lab.partition().last_stable_offset == begins[0]


async def test_a_leader_that_dies_between_two_markers_goes_on_when_it_is_back(tmp_path: Path) -> None:
    count = 2 * MARKERS_AT_ONCE + 1
    objects, end, begins = await old_bucket(tmp_path / "old", count)
    async with TierLab(tmp_path / "new") as lab:
        await begin(lab, objects, "rebuilt")
        async with asyncio.timeout(10):
            while not lab.partition().is_leader:  # noqa: ASYNC110  what is awaited has no event
                await asyncio.sleep(0)
        await lab.kill(0)
        assert lab.partition().log.log_end_offset == end + MARKERS_AT_ONCE
        await lab[0].start()
        lab.controller.elect(0, isr=(0,))
        await nothing_is_undecided(lab, end, begins)


async def test_many_are_aborted_in_several_turns(tmp_path: Path) -> None:
    count = 2 * MARKERS_AT_ONCE + 1
    objects, end, begins = await old_bucket(tmp_path / "old", count)
    async with TierLab(tmp_path / "new") as lab:
        await begin(lab, objects, "rebuilt")
        await nothing_is_undecided(lab, end, begins)


async def test_the_bucket_names_them_before_a_cluster_begins(tmp_path: Path) -> None:
    objects, _, begins = await old_bucket(tmp_path / "old")
    async with TierLab(tmp_path / "new") as lab:
        lab.bucket.store.objects = dict(objects)
        for _ in range(2):
            (found,) = await find_topics(lab.bucket.store, ROOT)
            named = await undecided_transactions(lab.bucket.store, ROOT, found.partitions.values())
            assert [(one.partition, one.producer_id, one.first_offset) for one in named] == [
                (0, LOST + number, first) for number, first in enumerate(begins)
            ]
            await restored(lab)


async def lost_end(lab: TierLab) -> tuple[int, int]:
    """A transaction begins between two plain batches, and the leader at the tier's end knows nothing of its marker.
    Where the transaction begins, and where the tier ends."""
    lab.create_tiered(0, 1)
    coordinated(lab)
    await lab.kill(1)
    lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, isr=(0,)))
    connection = await lab[0].connect()
    await produce(connection, batch(b"before"))
    row = await produce(connection, of_transaction(value=b"undecided"), transactional_id=TXN_ID, version=11)
    partition = lab.partition(0)
    while len(partition.log.segments) < 2:
        await produce(connection, batch(b"v" * 200))
    partition.append_marker(marker(), NOW_MS)
    await lab.copied()
    await lab.kill(0)
    await lab[1].start()
    lab.controller.elect(1, isr=(1,))  # the last known leader is gone for good
    await eventually(lambda: lab.partition(1).is_leader and lab.view(1) is not None)
    return int(row.base_offset), lab.bucket.tier.tier_end_offset


async def test_a_living_clusters_leader_that_lost_the_end_tells_of_them_and_aborts_nothing(tmp_path: Path) -> None:
    """Its coordinator may have committed them."""
    async with TierLab(tmp_path, 2) as lab:
        begins, end = await lost_end(lab)
        assert lab.partition(1).log.local_log_start_offset == end
        assert lab.partition(1).last_stable_offset == begins
        assert markers_of(lab.partition(1).log) == []
        assert "undecided_transactions" in [event for event, _ in lab[1].audited]


async def test_readers_of_committed_records_stop_before_them_in_the_tier_as_well(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        begins, end = await lost_end(lab)
        remote = RemoteReader(lab.bucket.store, lab[1].machinery.ports.disk, LIMITS)
        await remote.open()
        lab[1].plane.fetch.reader.read_tier_through(ColdReading(lab.tiers[1].service, ROOT, remote))
        client = await lab[1].connect()

        async def offsets(isolation: int) -> list[int]:
            row = row_of(await fetch(client, 0, isolation=isolation, max_wait_ms=NEVER_MS))
            assert (row.error_code, row.last_stable_offset) == (0, begins)
            return [record.offset for record in decode_all(bytes(row.records or b""))]

        assert await offsets(isolation=1) == list(range(begins))
        assert await offsets(isolation=0) == list(range(end))
        at_lso = row_of(await fetch(client, begins, isolation=1, max_wait_ms=1))
        assert (at_lso.error_code, at_lso.records or b"") == (0, b"")
        await remote.stop()
