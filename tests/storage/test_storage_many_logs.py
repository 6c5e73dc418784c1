"""A directory with many logs starts and stops in slices of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from common.directory_config import DirectoryConfig
from common.pacing import SLICE_COST
from storage.directory.log_directory import CLOSED_PER_TURN, LogDirectory
from storage.disk.log_flusher import CHUNK_LOGS
from storage.disk.trash import TAKEN_MAX
from tests.storage.log_workbench import CLUSTER, Workbench, append, produced

pytestmark = pytest.mark.virtual_time

LOGS = 3 * CLOSED_PER_TURN


async def steepest(count: Callable[[], int], done: asyncio.Task[None]) -> int:
    """By how much `count` grew within one turn of the loop, at most, until `done`."""
    before, most = count(), 0
    while not done.done():
        await asyncio.sleep(0)
        now = count()
        before, most = now, max(most, now - before)
    return most


async def test_many_logs_are_flushed_and_closed_in_slices(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    for partition in range(LOGS):
        append(await bench.log("t", partition), produced(1, producer_id=partition))
    logs = list(bench.directory.logs.values())
    stop = asyncio.create_task(bench.directory.close_clean(7))
    snapshots, closed = await asyncio.gather(
        steepest(lambda: sum(len(log.producer_history.snapshots) for log in logs), stop),
        steepest(lambda: sum(log.closed for log in logs), stop),
    )
    assert 0 < snapshots <= CHUNK_LOGS
    assert 0 < closed <= CLOSED_PER_TURN
    assert all(log.flushed_end_offset == 1 for log in logs)
    await bench.start()
    assert bench.directory.continues.broker_epoch >= 0
    assert len(bench.directory.logs) == LOGS
    await bench.directory.close()


async def test_what_many_deleted_logs_leave_is_removed_in_parts(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, limits=DirectoryConfig(free_bytes_min=0, upkeep_interval_ms=3_600_000))
    trash = (await bench.start()).context.trash
    await bench.directory.close()
    for number in range(2 * TAKEN_MAX + 1):
        trash.add(f"gone-{number}", 0.0)
    parts = [len(trash.take_due(1.0)) for _ in range(4)]
    assert parts == [TAKEN_MAX, TAKEN_MAX, 1, 0]
    bench.directory = LogDirectory(bench.ports, "", 1, bench.audit, bench.limits)
    for number in range(2 * TAKEN_MAX + 1):
        bench.directory.context.trash.add(f"gone-{number}", 0.0)
    await bench.directory.open(CLUSTER)
    for _ in range(10_000):  # without a second turn of upkeep, which is an hour away
        if not len(bench.directory.context.trash):
            break
        await asyncio.sleep(0.001)
    assert not len(bench.directory.context.trash)
    await bench.directory.close()


async def test_checkpoints_are_held_against_many_logs_in_slices(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    for partition in range(LOGS):
        await bench.log("t", partition)
    checkpoints = bench.directory.context.checkpoints
    costs = list(checkpoints.fit(bench.directory.logs))
    assert max(costs) <= SLICE_COST
    assert len(costs) >= 3

    await bench.directory.close()
