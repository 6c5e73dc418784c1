"""Aborted transactions of what is read from the tier: all that overlap it, with bounded work in each turn."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from common.machine_disk import MachineDisk
from storage.disk.cold_reads import PagesMissing
from storage.indexes.aborted_look_up import WINDOW_COST, unpack_rows
from storage.indexes.transaction_index import AbortedTransaction
from storage.indexes.transaction_windows import WINDOW_ENTRIES
from storage.log.aborted_look_ups import TURN_COST
from tests.tiering.tiered_log import GatedStore, TieredLog, Waiter, values_batch
from tiering.reading.downloads import Ticket
from tiering.reading.remote_reader import RemoteReader, RemoteReadLimits

pytestmark = pytest.mark.virtual_time


async def reader(log: TieredLog, root: Path) -> RemoteReader:
    made = RemoteReader(log.store, MachineDisk(root), RemoteReadLimits())
    await made.open()
    return made


async def ask_for_aborted(reading: RemoteReader, log: TieredLog, start: int, end: int) -> tuple[bytearray, int]:
    """As a fetch does: all of it anew, whenever something came. Returns the rows, and how often it was another turn's
    turn."""
    turns = 0
    while True:
        try:
            found = reading.aborted(log, start, end, 1)
        except PagesMissing as missing:
            turns += 1
            await missing.wait.settled()
            continue
        if not isinstance(found, Ticket):
            return found.rows, turns
        waiter = Waiter()
        found.listen(waiter)
        await asyncio.wait_for(waiter.event.wait(), 5)


@pytest.mark.parametrize("seed", range(5))
async def test_aborted_transactions_are_those_that_overlap_the_range(tmp_path: Path, seed: int) -> None:
    """Of four segments, each of which has more of them than one window."""
    rng, log = random.Random(seed), TieredLog(GatedStore())
    entries, begun, span = [], dict[int, int](), 1_000
    for offset in range(4 * span):
        who = rng.randrange(5) if rng.random() < 0.98 else 9
        if who not in begun:
            begun[who] = offset
        elif who < 9 or rng.random() < 0.05:
            first = begun.pop(who)
            entries.append(AbortedTransaction(who, first, offset, min(begun.values(), default=offset + 1)))
    for base in range(0, 4 * span, span):
        aborted = [entry for entry in entries if base <= entry.last_offset < base + span]
        await log.add([values_batch(base, [b"x"] * span)], aborted=aborted)
    reading = await reader(log, tmp_path)
    for _ in range(100):
        start = rng.randrange(4 * span)
        end = start + rng.choice((1, 30, 2_000))
        rows, _ = await ask_for_aborted(reading, log, start, end)
        expected = [(e.producer_id, e.first_offset) for e in entries if e.last_offset >= start and e.first_offset < end]
        assert unpack_rows(rows) == expected
    await reading.stop()


async def test_very_many_aborted_transactions_are_listed_in_several_turns(tmp_path: Path) -> None:
    log = TieredLog(GatedStore())
    count = 2 * TURN_COST // WINDOW_COST * WINDOW_ENTRIES
    aborted = [AbortedTransaction(n, n, count + n, 0) for n in range(count)]
    for base, part in ((0, aborted[: count // 2]), (3 * count // 2, aborted[count // 2 :])):
        await log.add([values_batch(base, [b"x"])], aborted=part, end=base + 3 * count // 2)
    reading = await reader(log, tmp_path)
    rows, turns = await ask_for_aborted(reading, log, count - 1, count)
    assert unpack_rows(rows) == [(n, n) for n in range(count)]
    assert 2 <= turns < 10
    await reading.stop()
