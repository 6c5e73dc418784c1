"""A roll of a log with many producers: the loop freezes them, and their snapshot comes a little later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from common.directory_config import DirectoryConfig
from common.pacing import SLICE_COST
from storage.disk.log_flusher import FlushDepth
from storage.producers.snapshot_writes import AT_ONCE_MAX
from tests.storage.log_workbench import FOREVER, Workbench, append, produced, truncate

PRODUCERS = 20 * AT_ONCE_MAX
CONFIG = replace(FOREVER, producers_max=PRODUCERS)


async def filled(tmp_path: Path) -> Workbench:
    bench = Workbench(tmp_path, CONFIG, DirectoryConfig(free_bytes_min=0, slow_write_s=60.0))
    log = await bench.log()
    for pid in range(PRODUCERS):
        append(log, produced(1, producer_id=pid))
    return bench


async def test_a_roll_writes_nothing_of_many_producers_at_once_and_all_of_them_soon(tmp_path: Path) -> None:
    bench = await filled(tmp_path)
    log = await bench.log()
    before, snapshot = log.producers.snapshot(), tmp_path / "t-0" / f"{PRODUCERS:020d}.snapshot"
    assert log.roll_now(0)
    append(log, produced(1, producer_id=3, sequence=1))
    assert not snapshot.exists()
    await bench.directory.settle()
    assert snapshot.read_bytes() == before
    assert log.producer_history.snapshots == [PRODUCERS]
    pacer = log.context.pacer
    assert pacer.slices > PRODUCERS // SLICE_COST
    assert pacer.costliest <= 2 * SLICE_COST
    await bench.directory.close()


async def test_the_recovery_point_waits_for_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await filled(tmp_path)
    log = await bench.log()
    assert log.roll_now(0)
    job = log.durability.plan_flush(FlushDepth.CLOSED)
    assert job is None or job.recovery_point == 0
    await bench.directory.settle()
    assert log.recovery_point == PRODUCERS
    log = await bench.restart(clean=False)
    assert len(log.producers) == PRODUCERS
    await bench.directory.close()


async def test_a_snapshot_of_what_was_cut_meanwhile_gets_no_name(tmp_path: Path) -> None:
    bench = await filled(tmp_path)
    log = await bench.log()
    assert log.roll_now(0)
    assert await truncate(log, PRODUCERS - 1) == PRODUCERS - 1
    await bench.directory.settle()
    append(log, produced(3))
    assert log.producer_history.snapshots == []
    assert not list((tmp_path / "t-0").glob("*.snapshot*"))
    await bench.directory.close()


async def test_a_clean_stop_waits_for_the_snapshot_of_a_log_that_never_rolled(tmp_path: Path) -> None:
    bench = await filled(tmp_path)
    log = await bench.log()
    before = log.producers.snapshot()
    log = await bench.restart(clean=True)
    assert bench.directory.continues.broker_epoch >= 0
    assert log.producer_history.snapshots == [PRODUCERS]
    assert log.producers.snapshot() == before
    await bench.directory.close()
