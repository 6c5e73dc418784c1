"""Reads of the tier when segments have been rewritten: missing offsets, and swaps in the middle of a read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.errors import ErrorCode
from records.batch import BatchHeader
from records.builder import build_batch
from records.control import MarkerKind
from records.record import Record
from tests.broker.replication_lab import NOW_MS, batch, decode_all, fetch, list_offset, produce, row_of, within
from tests.broker.test_broker_cold_reads import Tiered, tiered
from tests.records.control_batches import build_control_batch
from tests.tiering.rewriting import every, write_rewritten
from tiering.bucket.segment import TieredSegment
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.tier_records import SwapRecord, encode_segment, encode_value, swap_key

pytestmark = pytest.mark.virtual_time

Keep = Callable[[BatchHeader], bool]
Runs = list[tuple[int, int, Keep]]


async def swap(world: Tiered, first: int, count: int, keep: Keep, *, transactions: bool = True) -> list[TieredSegment]:
    """The inputs, which one output has replaced in the leader's view. Their objects stay."""
    tier: PartitionTier = world.tier.tiers[world.partition()]
    inputs = list(tier.segments(0))[first : first + count]
    output = await write_rewritten(
        world.tier.store,
        world.tier.root,
        tier.path,
        inputs,
        keep,
        1 << 64 | tier.state_offset + 2,
        transactions=transactions,
    )
    offset = tier.state_offset + 1
    record = SwapRecord(
        "p",
        [(one.base_offset, bytes.fromhex(one.uuid)) for one in inputs],
        [(output.base_offset, bytes.fromhex(output.uuid), encode_segment(output, offset))],
        5,
        0,
        offset,
    )
    tier.replay([(swap_key(tier.topic_id, tier.partition), encode_value(record))])
    return inputs


async def filled(world: Tiered, segments: int = 5) -> PartitionTier:
    """Segments of four batches with two records each: offsets 0 to 8 * segments; the last one is on the disk."""
    await world.fill(segments, batches=4, size=30)
    await produce(world.client, batch(b"last"))
    return await world.tier.copy(world.partition())


async def offsets_from(world: Tiered, start: int, **options: Any) -> list[int]:
    """As a consumer would read on from `start`."""
    found: list[int] = []
    at = start
    while at < world.partition().high_watermark:
        row = row_of(await fetch(world.client, at, max_wait_ms=5_000, **options))
        assert row.error_code == 0
        records = [record.offset for record in decode_all(bytes(row.records or b"")) if record.offset >= at]
        assert records, f"nothing is found from {at} on"
        found += records
        at = records[-1] + 1
    return found


RUNS: dict[str, Runs] = {
    "thinned": [(0, 1, every(4)), (1, 1, every(4, 2))],
    "begins with a gap": [(1, 1, lambda header: header.base_offset >= 12)],
    "ends with a gap": [(1, 1, lambda header: header.base_offset < 12)],
    "one batch for all": [(0, 4, lambda header: header.base_offset == 18)],
    "nothing but the end of the tier": [(3, 2, lambda header: False)],
    "a gap up to the disk": [(4, 1, lambda header: header.base_offset == 32)],
    "neighbours end and begin with gaps": [
        (1, 1, lambda header: header.base_offset == 8),
        (2, 1, lambda header: header.base_offset == 22),
    ],
}


@pytest.mark.parametrize("limits", [{}, {"partition_max_bytes": 150}], ids=["at once", "bit by bit"])
@pytest.mark.parametrize("name", list(RUNS))
async def test_readers_pass_over_what_was_removed(tmp_path: Path, name: str, limits: dict[str, int]) -> None:
    async with tiered(tmp_path) as world:
        tier = await filled(world)
        kept = dict.fromkeys(range(41), True)
        swapped = 0
        for first, count, keep in RUNS[name]:
            inputs = await swap(world, first - swapped, count, keep)
            swapped += count - 1
            bases = list(range(inputs[0].base_offset, inputs[-1].end_offset, 2))
            some = [base for base in bases if keep(BatchHeader(base, *[0] * 12))] or bases[-1:]
            for base in bases:
                kept[base] = kept[base + 1] = base in some
        due = [offset for offset in range(41) if kept[offset]]
        for start in range(41):
            assert await offsets_from(world, start, **limits) == [offset for offset in due if offset >= start], start
        end = await list_offset(world.client, -5)
        assert end.offset == tier.tier_end_offset - 1


async def test_times_are_those_of_what_is_left(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        client = world.client
        for number in range(24):
            await produce(client, bytes(build_batch([Record(0, NOW_MS + 10 * number, b"k", b"x")])))
            if number % 4 == 3:
                world.tier.roll(world.partition())
        await world.tier.copy(world.partition())
        await swap(world, 0, 2, every(4, 1))  # offsets 1 and 5
        await swap(world, 1, 2, every(100, 99))  # offset 15 alone
        for offset in range(20):
            row = await list_offset(client, NOW_MS + 10 * offset)
            left = next(one for one in (1, 5, 15, *range(16, 24)) if one >= offset)
            assert (row.error_code, row.offset, row.timestamp) == (0, left, NOW_MS + 10 * left)


async def test_a_read_that_waits_while_segments_are_swapped(tmp_path: Path) -> None:
    """The download of what was replaced ends after the swap: the answer is of what is there then."""
    async with tiered(tmp_path) as world:
        await filled(world)
        world.tier.store.gate.clear()
        waiting = [asyncio.ensure_future(fetch(world.client, start, max_wait_ms=5_000)) for start in (9,)]
        await asyncio.sleep(0.05)
        world.tier.store.gate.set()
        await swap(world, 1, 2, lambda header: header.base_offset == 14)
        rows = [row_of(await within(10, one)) for one in waiting]
        assert all(row.error_code == 0 for row in rows)
        for start, row in zip((9,), rows, strict=True):
            records = [record.offset for record in decode_all(bytes(row.records)) if record.offset >= start]
            assert records[0] in (9, 14), "of before the swap or of after it"
        assert await offsets_from(world, 9) == [14, 15, *range(24, 41)]


async def test_objects_that_are_gone_after_a_swap_harm_no_reader(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        tier = await filled(world)
        assert await offsets_from(world, 0) == list(range(41))
        inputs = await swap(world, 0, 3, every(4))
        await world.tier.store.delete([world.tier.key(tier, one.id) for one in inputs])
        await world.tier.forget_chunks()
        assert await offsets_from(world, 0) == [*(at for at in range(24) if at % 4 < 2), *range(24, 41)]


async def test_a_region_and_its_aborted_transactions_are_of_one_moment(tmp_path: Path) -> None:
    """A job drops the records of an aborted transaction and its entry in the index together. Whoever reads across the
    swap gets the records with the entry, or neither."""
    async with tiered(tmp_path) as world:
        partition = world.partition()
        log = partition.log

        def append(data: bytes) -> None:
            buffer = bytearray(data)
            log.append_as_leader(buffer, memoryview(buffer), 0, len(buffer), partition.leader_epoch, NOW_MS)
            partition.advance()

        append(batch(b"aborted", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
        append(batch(b"plain"))
        append(
            bytes(
                build_control_batch(
                    MarkerKind.ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOW_MS
                )
            )
        )
        world.tier.roll(partition)
        append(batch(b"on the disk"))
        tier = await world.tier.copy(partition)
        row = row_of(await fetch(world.client, 0, isolation=1, max_wait_ms=5_000))
        assert [(one.producer_id, one.first_offset) for one in row.aborted_transactions] == [(1, 0)]
        await world.tier.forget_chunks()
        world.tier.store.gate.clear()
        waiting = asyncio.ensure_future(fetch(world.client, 0, isolation=1, max_wait_ms=5_000))
        await asyncio.sleep(0.05)
        (replaced,) = await swap_held(world, lambda header: header.base_offset == 1)
        world.tier.store.gate.set()
        row = row_of(await within(10, waiting))
        found = [record.offset for record in decode_all(bytes(row.records))]
        aborted = [(one.producer_id, one.first_offset) for one in row.aborted_transactions or []]
        assert (0 in found) == (aborted == [(1, 0)])
        await world.tier.store.delete([world.tier.key(tier, replaced.id)])
        row = row_of(await fetch(world.client, 0, isolation=1, max_wait_ms=5_000))
        assert row.error_code == ErrorCode.NONE
        assert [record.offset for record in decode_all(bytes(row.records))] == [1]
        assert not row.aborted_transactions


async def swap_held(world: Tiered, keep: Keep) -> list[TieredSegment]:
    """While the store holds reads back: the job has read before."""
    gate = world.tier.store.gate
    world.tier.store.gate = asyncio.Event()
    world.tier.store.gate.set()
    try:
        return await swap(world, 0, 1, keep, transactions=False)
    finally:
        world.tier.store.gate = gate
