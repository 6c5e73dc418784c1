"""One flush of a log at a time, whoever asks for it, and what it says is on the device."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import ErrorCode, ProtocolError
from common.whole_files import read_whole
from storage.disk.checkpoint_files import CLEAN_STOP, LEADER_EPOCHS
from storage.disk.log_flusher import FlushDepth
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.partition_log import PartitionLog
from tests.storage.log_workbench import EIO, FOREVER, SyncWatch, Workbench, append, produced

STEPS = st.lists(
    st.sampled_from(
        ["append", "epoch", "roll", "closed", "data", "complete", "cut", "cancel", "hold", "release", "turns"]
    ),
    max_size=30,
)


def flushes_seen(bench: Workbench) -> SyncWatch:
    """Nothing but a flush makes anything in the directory of a log durable."""
    bench.disk.sync_watch = SyncWatch(lambda path: path.startswith("t-0"))
    return bench.disk.sync_watch


def epochs_on_disk(bench: Workbench, log: PartitionLog) -> list[tuple[int, int]]:
    data = read_whole(bench.disk, f"{log.directory}/{LEADER_EPOCHS}")
    return LeaderEpochCache.decode(data).entries() if data is not None else []


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0.001)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  what is awaited has no event
            await asyncio.sleep(0.001)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=STEPS)
async def test_no_two_flushes_of_a_log_at_once_and_its_epochs_are_those_of_its_recovery_point(
    tmp_path_factory: pytest.TempPathFactory, history: list[str]
) -> None:
    bench = Workbench(tmp_path_factory.mktemp("flush"), replace(FOREVER, segment_bytes=300, index_interval_bytes=1))
    log, epoch = await bench.log(), 1
    asked: list[asyncio.Task[int]] = []
    seen = flushes_seen(bench)
    for number, step in enumerate(history):
        match step:
            case "append" | "epoch":
                epoch += step == "epoch"
                append(log, produced(size=60), epoch)
            case "roll":
                log.roll(0)
            case "closed":
                asked.append(asyncio.create_task(log.flush(log.active.base_offset, FlushDepth.CLOSED)))
            case "data" | "complete":
                asked.append(asyncio.create_task(log.flush(depth=FlushDepth[step.upper()])))
            case "cut":
                log.truncate_to(log.log_end_offset - log.log_end_offset % 3)
            case "cancel" if asked:
                asked[number % len(asked)].cancel()
            case "hold":
                seen.open.clear()
            case "release":
                seen.open.set()
            case "turns":
                await turns()
    seen.open.set()
    await asyncio.gather(*asked, return_exceptions=True)
    assert await log.flush(depth=FlushDepth.COMPLETE) == log.log_end_offset
    assert seen.most <= 1
    assert bench.directory.offline is None
    assert not [task for task in asked if not task.cancelled() and task.exception() is not None]
    known = [entry for entry in log.leader_epochs.entries() if entry[1] < log.recovery_point]
    assert epochs_on_disk(bench, log)[: len(known)] == known
    await bench.directory.close()


async def test_who_asks_during_a_flush_waits_for_one_that_has_what_came_since(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    seen = flushes_seen(bench)
    log = await bench.log()
    append(log, produced(3))
    seen.open.clear()
    first = asyncio.create_task(log.flush())
    await until(lambda: seen.most)
    append(log, produced(2))
    second = asyncio.create_task(log.flush())
    await turns()
    assert not first.done()
    seen.open.set()
    assert await first == 3
    assert await second == 5
    await bench.directory.close()


async def test_a_flush_that_the_disk_refuses_is_refused_to_all_who_wait(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    log, other = await bench.log(), await bench.log("u")
    append(log, produced())
    append(other, produced())
    bench.disk.fsync_errno = EIO
    for refusal in await asyncio.gather(log.flush(), log.flush(), other.flush(), return_exceptions=True):
        assert isinstance(refusal, ProtocolError)
        assert refusal.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert bench.directory.offline is not None
    with pytest.raises(ProtocolError):
        await log.flush()
    await bench.directory.close()


async def test_a_want_of_files_is_told_and_the_flush_is_done_later(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    log = await bench.log()
    append(log, produced())
    bench.disk.files_max = 0
    with pytest.raises(ProtocolError, match="no more files"):
        await log.flush()
    assert log.flushed_end_offset == 0
    bench.disk.files_max = None
    await until(lambda: log.flushed_end_offset == 1)
    assert bench.directory.offline is None
    await bench.directory.close()


EACH_INDEXED = replace(FOREVER, index_interval_bytes=1)


async def logs_of_many_epochs(bench: Workbench) -> list[PartitionLog]:
    """Two logs, of which the last clean stop saved two epochs; the newest batches have neither epochs nor indexes on
    the device."""
    for epochs in (range(1, 3), range(3, 6)):
        logs = [await bench.log("t", partition) for partition in range(2)]
        for log in logs:
            for epoch in epochs:
                append(log, produced(producer_id=3, sequence=log.log_end_offset), epoch)
                append(log, produced(producer_id=3, sequence=log.log_end_offset), epoch)
            await log.flush()
        if epochs[0] == 1:
            await bench.restart(clean=True)
    return logs


async def test_slow_writes_during_a_clean_stop_leave_nothing_out(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, EACH_INDEXED)
    epochs = [log.leader_epochs.entries() for log in await logs_of_many_epochs(bench)]
    assert [epoch for epoch, _ in epochs[0]] == [1, 2, 3, 4, 5]
    bench.disk.slow_s = 1.0
    await bench.directory.close_clean(7)
    bench.disk.slow_s = 0.0
    assert bench.disk.exists(CLEAN_STOP)
    await bench.start()
    logs = [await bench.log("t", partition) for partition in range(2)]
    assert [log.leader_epochs.entries() for log in logs] == [epochs_on_disk(bench, log) for log in logs] == epochs
    for log in logs:
        assert [view.last_sequence for view in log.producers.views()] == [9]
        assert log.active.indexes.offsets.last_offset == 9
    await bench.directory.close()


async def test_a_stop_that_leaves_out_an_index_is_not_clean(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Workbench(tmp_path, EACH_INDEXED)
    logs = await logs_of_many_epochs(bench)
    epochs = logs[1].leader_epochs.entries()
    bench.directory.context.open_files.close_all()
    bench.disk.lacks_files_for = f"{logs[1].directory}/{0:020d}.index"
    await bench.directory.close_clean(7)
    bench.disk.lacks_files_for = None
    assert (bench.failures, bench.directory.offline) == ([], None)
    assert not bench.disk.exists(CLEAN_STOP)
    logged = [record for record in caplog.records if record.message == "the stop is not clean"]
    assert [record.__dict__["directory"] for record in logged] == [logs[1].directory]
    await bench.start()
    assert (await bench.log("t", 1)).leader_epochs.entries() == epochs
    await bench.directory.close()


async def test_a_log_that_is_closed_lets_nobody_wait(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    seen = flushes_seen(bench)
    log = await bench.log()
    append(log, produced())
    seen.open.clear()
    first = asyncio.create_task(log.flush())
    await until(lambda: seen.most)
    second = asyncio.create_task(log.flush())
    await turns()
    log.close()
    seen.open.set()
    async with asyncio.timeout(10):
        assert (await first, await second) == (0, 0)
    await bench.directory.close()
