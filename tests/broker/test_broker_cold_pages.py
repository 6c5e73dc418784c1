"""What the page cache does not hold is read in threads: neither fetches nor look-ups by time hold the loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.audit.feeds import LogFeed
from broker.coordination.loading import LoadLimits, load_shard
from common.pacing import Pacer
from tests.broker.cold_disk import PageCache
from tests.broker.replication_lab import (
    NOW_MS,
    TOPIC,
    Lab,
    batch,
    eventually,
    fetch,
    list_offset,
    produce,
    row_of,
    values_of,
)
from tests.broker.test_groups_scale import new_shard
from tests.broker.transaction_lab import TXN_ID, coordinated, marker, of_transaction

SEGMENTS = 3


async def filled(lab: Lab, size: int, count: int) -> list[bytes]:
    """Values of `size` bytes, one per batch, in a few segments, after a restart of the only broker."""
    lab.controller.create_topic((0, 1), isr=(0,))
    values = [bytes([65 + at]) * size for at in range(count)]
    client = await lab[0].connect()
    for at, value in enumerate(values):
        await produce(client, batch(value))
        if at % (count // SEGMENTS) == 0:
            lab[0].partition.log.roll_now(0)
    await lab[0].stop()
    await lab[0].start()
    return values


def evict_log(cache: PageCache, lab: Lab) -> None:
    directory = lab.root / "broker-0" / f"{TOPIC}-0"
    cache.evict(*(str(path) for path in directory.iterdir()))


@pytest.mark.parametrize("size", [2_000, 150_000])
async def test_a_consumer_at_the_beginning_of_a_cold_log(tmp_path: Path, size: int) -> None:
    cache = PageCache()
    async with Lab(tmp_path, count=1, ports=cache.ports) as lab:
        values = await filled(lab, size, 12)
        evict_log(cache, lab)
        client, found = await lab[0].connect(), list[bytes | None]()
        while len(found) < len(values):
            row = row_of(await fetch(client, len(found), max_wait_ms=500))
            assert row.error_code == 0
            found += values_of(bytes(row.records or b""))
        assert found == values
        assert cache.waits == []
        assert lab[0].logs.context.open_files.cold.count > 0


async def test_a_follower_that_begins_to_copy_a_cold_log(tmp_path: Path) -> None:
    cache = PageCache()
    async with Lab(tmp_path, count=1, ports=cache.ports) as lab:
        values = await filled(lab, 2_000, 12)
        evict_log(cache, lab)
        client, found = await lab[0].connect(internal=True), list[bytes | None]()
        while len(found) < len(values):
            row = row_of(await fetch(client, len(found), max_wait_ms=500, replica=1))
            assert row.error_code == 0
            found += values_of(bytes(row.records or b""))
        assert found == values
        assert cache.waits == []


@pytest.mark.parametrize("timestamp", [1, -3])
async def test_a_look_up_by_time_in_a_cold_log(tmp_path: Path, timestamp: int) -> None:
    cache = PageCache()
    async with Lab(tmp_path, count=1, ports=cache.ports) as lab:
        await filled(lab, 2_000, 12)
        evict_log(cache, lab)
        found = await list_offset(await lab[0].connect(), timestamp)
        assert found.error_code == 0
        assert found.offset >= 0
        assert cache.waits == []


async def test_a_coordinator_loads_a_cold_log(tmp_path: Path) -> None:
    cache = PageCache()
    async with Lab(tmp_path, count=1, ports=cache.ports) as lab:
        await filled(lab, 2_000, 12)
        evict_log(cache, lab)
        assert await load_shard(lab[0].partition, new_shard(), LoadLimits(chunk_bytes=5_000), Pacer()) == 12
        assert cache.waits == []


async def test_the_audit_is_exported_from_a_cold_log(tmp_path: Path) -> None:
    cache = PageCache()
    async with Lab(tmp_path, count=1, ports=cache.ports) as lab:
        await filled(lab, 2_000, 12)
        evict_log(cache, lab)
        feed, position = LogFeed(lab[0].partition, "broker", lambda _, __: None), 0
        while (piece := await feed.take(position)) is not None:
            position = piece.end
        assert position == 12
        assert cache.waits == []


async def test_a_follower_cuts_a_cold_log(tmp_path: Path) -> None:
    cache = PageCache()
    async with Lab(tmp_path, count=3, ports=cache.ports) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        assert (await produce(client, batch(b"committed"))).error_code == 0
        lab.controller.publishes = False
        lab[1].pause_fetching()
        lab[2].pause_fetching()
        for _ in range(4):
            for _ in range(5):
                await produce(client, batch(b"lost" * 2_000), acks=1)
            lab[0].partition.log.roll_now(0)
        await lab[0].stop()
        lab.controller.elect(1, isr=(1, 2))
        for broker in (lab[1], lab[2]):
            broker.catch_up(lab.controller.image)
            broker.resume_fetching()
        assert (await produce(await lab[1].connect(), batch(b"instead"))).error_code == 0
        evict_log(cache, lab)
        await lab[0].start()
        await eventually(lambda: lab[0].partition.log.log_end_offset == 2)
        assert cache.waits == []
        assert lab[0].values() == [b"committed", b"instead"]


@pytest.mark.parametrize("min_bytes", [0, 1])
async def test_a_reader_that_does_not_wait_gets_aborted_records_of_a_closed_segment(
    tmp_path: Path, min_bytes: int
) -> None:
    """The file that lists them is not open yet, so a thread opens it."""
    cache = PageCache()
    async with Lab(tmp_path, count=1, ports=cache.ports) as lab:
        lab.controller.create_topic((0, 1), isr=(0,))
        coordinated(lab)
        client, partition = await lab[0].connect(), lab[0].partition
        assert (await produce(client, of_transaction(), transactional_id=TXN_ID)).error_code == 0
        partition.append_marker(marker(commit=False), NOW_MS)
        partition.log.roll_now(0)
        row = row_of(await fetch(client, 0, isolation=1, max_wait_ms=0, min_bytes=min_bytes))
        assert values_of(bytes(row.records or b""))
        assert [one.first_offset for one in row.aborted_transactions] == [0]
