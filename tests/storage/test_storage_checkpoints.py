"""The next start believes the checkpoints: what they say of a log that is cut, or of one that takes another's place."""

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import ErrorCode, ProtocolError
from common.machine import MachineNetwork
from common.pacing import SLICE_COST, Work
from common.ports import Ports
from storage.directory.log_directory import LogDirectory
from storage.disk.checkpoint_files import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, TopicPartition, decode_offsets
from storage.disk.checkpoints import collector
from storage.disk.log_flusher import FlushDepth
from storage.log.partition_log import PartitionLog
from tests.storage.log_workbench import (
    CLUSTER,
    FOREVER,
    Workbench,
    append,
    checkpoint_high_watermarks,
    produced,
    read_all,
    truncate,
)

OTHER_ID = bytes(range(1, 17))
NAMES = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")


def said(root: Path) -> list[int]:
    """Of t-0: recovery point, high watermark, log start."""
    found = [decode_offsets((root / name).read_bytes()) if (root / name).exists() else {} for name in NAMES]
    return [offsets.get(("t", 0), 0) for offsets in found]


def refused(act: Callable[[], object]) -> None:
    with pytest.raises(ProtocolError) as caught:
        act()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


async def checkpointed(root: Path) -> tuple[Workbench, PartitionLog]:
    """Fifty records, of which the first forty are removed, and every checkpoint tells so."""
    bench = Workbench(root)
    log = await bench.log()
    for _ in range(25):
        append(log, produced(2))
    log.advance_log_start(40, "a test")
    log = await bench.restart(clean=True)
    await checkpoint_high_watermarks(bench.directory, {("t", 0): 50})
    assert said(root) == [50, 50, 40]
    return bench, log


async def test_a_topic_made_anew_under_its_name_keeps_its_records_over_a_kill(tmp_path: Path) -> None:
    """The log start of the topic before would else have the new log started over, past all that it holds."""
    bench, log = await checkpointed(tmp_path)
    bench.directory.delete_log(log)
    log = bench.directory.create_log("t", 0, OTHER_ID, FOREVER)
    refused(lambda: append(log, produced()))
    refused(lambda: log.truncate_to(0))
    await bench.directory.settle()
    assert said(tmp_path) == [0, 0, 0]
    for _ in range(10):
        append(log, produced())
    await bench.directory.close()
    await bench.start()
    log = bench.directory.create_log("t", 0, OTHER_ID, FOREVER)
    assert (log.log_start_offset, log.log_end_offset) == (0, 10)
    assert bench.directory.high_watermark_checkpoint("t", 0) == 0
    await bench.directory.close()


async def test_thousands_of_logs_made_anew_share_one_withdrawal(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    logs = [await bench.log("t", partition) for partition in range(200)]
    for log in logs:
        append(log, produced())
    await checkpoint_high_watermarks(bench.directory, {("t", partition): 1 for partition in range(200)})
    for log in logs:
        bench.directory.delete_log(log)
    before = len(bench.disk.fsyncs)
    logs = [bench.directory.create_log("t", partition, OTHER_ID, FOREVER) for partition in range(200)]
    await bench.directory.settle()
    assert len(bench.disk.fsyncs) - before <= 2 * len(NAMES)
    for log in logs:
        append(log, produced())
    await bench.directory.close()


async def test_a_log_of_a_new_name_waits_for_nothing(tmp_path: Path) -> None:
    bench, _ = await checkpointed(tmp_path)
    other = await bench.log("t", 1)
    assert append(other, produced()).base_offset == 0
    await bench.directory.close()


@pytest.mark.parametrize("fully", [False, True])
async def test_nothing_is_cut_that_a_checkpoint_on_the_device_tells_of(tmp_path: Path, fully: bool) -> None:
    bench = Workbench(tmp_path)
    log = await bench.log()
    for _ in range(25):
        append(log, produced(2))
    log = await bench.restart(clean=True)
    await checkpoint_high_watermarks(bench.directory, {("t", 0): 50})
    gate = bench.disk.fsync_gate = threading.Event()

    def cut() -> None:
        if fully:
            log.truncate_fully_and_start_at(30)
        else:
            log.truncate_to(30)

    for _ in range(3):
        refused(cut)
    assert said(tmp_path)[0] == 50
    assert log.log_end_offset == 50
    gate.set()
    await bench.directory.settle()
    assert said(tmp_path)[:2] == ([30, 30] if fully else [0, 30])
    cut()
    assert log.log_end_offset == 30
    await bench.directory.checkpoint_recovery_points()
    assert said(tmp_path)[0] <= 30
    await bench.directory.close()


async def test_what_is_written_in_the_place_of_what_was_cut_is_looked_at_after_a_loss_of_power(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    log = await bench.log()
    for _ in range(25):
        append(log, produced(2), epoch=1)
    log = await bench.restart(clean=True)
    await checkpoint_high_watermarks(bench.directory, {("t", 0): 50})
    before = (tmp_path / f"{log.active.stem}.log").read_bytes()
    assert await truncate(log, 20) == 20
    cut_at = log.active.size
    for _ in range(20):
        append(log, produced(2, size=21), epoch=2)
    await bench.directory.close()
    path = tmp_path / f"{log.active.stem}.log"
    after = path.read_bytes()
    lost = cut_at + 3 * (len(after) - cut_at) // 20
    path.write_bytes(after[:lost] + before[lost:])  # only three of the new batches reached the device
    await bench.start()
    log = await bench.log()
    headers = read_all(log)
    assert log.log_end_offset == 26
    assert [header.leader_epoch for header in headers] == [1] * 10 + [2] * 3
    await bench.directory.close()


async def test_a_recovery_that_cuts_trusts_nothing_of_that_segment_before_its_flush(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    log = await bench.log()
    for _ in range(5):
        append(log, produced(2))
    log = await bench.restart(clean=True)
    append(log, produced(2))
    await bench.directory.close()
    path = tmp_path / f"{log.active.stem}.log"
    path.write_bytes(path.read_bytes()[:-1])
    await bench.start()
    log = await bench.log()
    assert log.log_end_offset == 10
    assert log.recovery_point == log.flushed_end_offset == 0
    assert said(tmp_path)[0] == 0
    await bench.directory.close()


async def test_a_log_that_is_cut_while_offsets_are_collected_is_not_told_of_as_it_was(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    log = await bench.log()
    for _ in range(4):
        append(log, produced(5))
    await log.flush(depth=FlushDepth.COMPLETE)
    collected = asyncio.Event()

    def collect(into: dict[TopicPartition, int]) -> Work[None]:
        into["t", 0] = log.log_end_offset
        collected.set()
        for _ in range(3):
            yield SLICE_COST

    writing = asyncio.create_task(bench.directory.checkpoint_high_watermarks(collect))
    await collected.wait()
    assert await truncate(log, 10) == 10
    assert await writing
    said = decode_offsets((tmp_path / HIGH_WATERMARKS).read_bytes())
    assert said["t", 0] <= 10
    await bench.directory.close()


async def test_checkpoints_of_many_logs_are_collected_in_slices_and_not_written_twice(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    await bench.start()
    checkpoints, pacer = bench.directory.context.checkpoints, bench.directory.context.pacer
    logs = {("t", partition): partition for partition in range(20_000)}
    collect = collector(logs, lambda partition: partition + 1)
    assert await checkpoints.write_collected(RECOVERY_POINTS, collect)
    before = (tmp_path / RECOVERY_POINTS).stat().st_mtime_ns
    checkpoints.note(RECOVERY_POINTS)
    assert await checkpoints.write_collected(RECOVERY_POINTS, collect)
    assert (tmp_path / RECOVERY_POINTS).stat().st_mtime_ns == before
    assert pacer.slices > 20
    assert pacer.costliest <= 2 * SLICE_COST
    await bench.directory.close()


async def test_an_idle_directory_collects_no_checkpoint(tmp_path: Path) -> None:
    """However many logs it has: their upkeep looks each second."""
    bench = Workbench(tmp_path)
    log = await bench.log()
    append(log, produced(5))
    await log.flush(depth=FlushDepth.COMPLETE)
    assert await bench.directory.checkpoint_recovery_points()
    collected: list[str] = []

    def collect(into: dict[TopicPartition, int]) -> Work[None]:
        collected.append("once")
        into["t", 0] = log.recovery_point
        yield 1

    checkpoints = bench.directory.context.checkpoints
    for name in (RECOVERY_POINTS, LOG_STARTS):
        assert await checkpoints.write_collected(name, collect)
    assert not collected
    append(log, produced(5))
    await log.flush(depth=FlushDepth.COMPLETE)
    assert await checkpoints.write_collected(RECOVERY_POINTS, collect)
    assert collected == ["once"]
    await bench.directory.close()


async def test_no_checkpoint_is_written_of_some_logs_while_others_are_recovered(tmp_path: Path) -> None:
    """It would forget the others: after a kill they would serve again what was deleted."""
    bench, _ = await checkpointed(tmp_path)
    await bench.directory.close()
    ports = Ports(MachineNetwork(), bench.disk, bench.clock, random.Random(1))
    directory = LogDirectory(ports, "", 1, bench.audit, bench.limits)
    await directory.open(CLUSTER)
    for name in (RECOVERY_POINTS, LOG_STARTS):
        directory.context.checkpoints.note(name)
    assert not await directory.checkpoint_recovery_points()
    await asyncio.sleep(0)
    assert said(tmp_path) == [50, 50, 40]
    await directory.recover(lambda topic: bench.config)
    assert await directory.checkpoint_recovery_points()
    assert said(tmp_path) == [50, 50, 40]
    await directory.close()


async def test_what_was_withdrawn_for_a_cut_that_never_came_is_written_again(tmp_path: Path) -> None:
    """Else a kill would have deleted records served again, until an offset of any other log moves."""
    bench, _ = await checkpointed(tmp_path)
    checkpoints = bench.directory.context.checkpoints
    assert await bench.directory.checkpoint_recovery_points()
    checkpoints.limit(("t", 0), 50, 10)
    await checkpoints.idle()
    assert said(tmp_path) == [50, 10, 10]
    assert await bench.directory.checkpoint_recovery_points()
    assert said(tmp_path) == [50, 10, 40]
    await bench.directory.close()
