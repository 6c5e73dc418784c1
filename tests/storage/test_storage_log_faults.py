"""Slow, stuck, full and broken disks; fsync before an acknowledgement; room that runs out."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from common.directory_config import DirectoryConfig
from common.errors import ErrorCode, ProtocolError
from records.control import MarkerKind
from storage.disk.directory_health import FreeSpace
from tests.storage.log_workbench import (
    EIO,
    ENOSPC,
    FOREVER,
    NOW_MS,
    Workbench,
    append,
    checkpoint_high_watermarks,
    marker,
    produced,
    read_all,
)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Workbench]:
    bench = Workbench(tmp_path)
    await bench.start()
    yield bench
    bench.disk.write_gate = bench.disk.fsync_gate = None
    await bench.directory.close()


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until `condition()` holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to hold")


@pytest.mark.parametrize("error", [ENOSPC, EIO])
async def test_a_refused_write_takes_the_directory_offline_once(bench: Workbench, error: int) -> None:
    log, other = await bench.log(), await bench.log("other")
    append(log, produced())
    bench.disk.write_errno = error
    for one in (log, other, log):
        with pytest.raises(ProtocolError) as caught:
            append(one, produced())
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    await asyncio.sleep(0)
    assert len(bench.failures) == 1
    assert log.log_end_offset == 1
    bench.disk.write_errno = None
    for refused in (
        lambda: log.read(0, 100, 1),
        lambda: log.truncate_to(0),
        lambda: append(log, produced()),
        lambda: bench.directory.create_log("third", 0, bytes(16), FOREVER),
    ):
        with pytest.raises(ProtocolError) as caught:
            refused()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_no_clean_stop_marker_after_a_failure(bench: Workbench) -> None:
    log = await bench.log()
    append(log, produced())
    bench.disk.fsync_errno = EIO
    await bench.directory.close_clean(9)
    bench.disk.fsync_errno = None
    assert not (bench.root / ".kafka_cleanshutdown").exists()
    await bench.start()
    assert bench.directory.continues.broker_epoch == -1
    assert (await bench.log()).log_end_offset == 1


async def test_a_failed_fsync_is_final(bench: Workbench) -> None:
    log = await bench.log()
    append(log, produced())
    bench.disk.fsync_errno = EIO
    with pytest.raises(ProtocolError):
        await log.flush()
    bench.disk.fsync_errno = None
    assert bench.directory.offline is not None
    with pytest.raises(ProtocolError):
        await log.flush()
    assert log.flushed_end_offset == 0


async def test_short_writes_are_completed(bench: Workbench) -> None:
    bench.disk.bytes_per_write = 7
    log = await bench.log()
    for _ in range(3):
        append(log, produced(2, size=100))
    bench.disk.bytes_per_write = None
    assert [header.base_offset for header in read_all(log)] == [0, 2, 4]
    log = await bench.restart(clean=False)
    assert [header.base_offset for header in read_all(log)] == [0, 2, 4]


async def test_after_a_slow_write_the_loop_writes_nothing_until_the_disk_caught_up(bench: Workbench) -> None:
    log, other = await bench.log(), await bench.log("other")
    moved: list[int] = []
    log.ends.notify(lambda: moved.append(log.written_end_offset))
    append(other, produced())
    append(log, produced())
    bench.disk.slow_s = 1.0
    append(log, produced())
    assert (log.log_end_offset, log.written_end_offset) == (2, 2)
    assert bench.directory.waited_s == 0
    bench.disk.slow_s = 0.0
    gate = bench.disk.write_gate = threading.Event()
    before = bench.disk.loop_writes
    batch = produced(2)
    for one in (log, log, other):
        append(one, batch)  # the same buffer each time: what waits must be a copy
    assert bench.disk.loop_writes == before
    assert (log.log_end_offset, log.written_end_offset, log.readable_end_offset) == (6, 2, 2)
    assert [header.base_offset for header in read_all(log, until=6)] == [0, 1]
    assert log.read(2, 1 << 20, 6) is None
    with pytest.raises(ProtocolError) as caught:
        log.truncate_to(0)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    gate.set()
    await until(lambda: log.written_end_offset == 6)
    assert moved[-1] == 6
    await bench.directory.settle()
    assert [header.base_offset for header in read_all(log)] == [0, 1, 2, 4]
    assert [header.base_offset for header in read_all(other)] == [0, 1]
    before = bench.disk.loop_writes
    append(log, produced())
    assert bench.disk.loop_writes == before + 1
    assert log.written_end_offset == 7
    assert bench.directory.unwritten_bytes == 0
    waited_s = bench.directory.waited_s
    assert 0 < waited_s == bench.directory.waited_s, "nothing waits any more"


@pytest.mark.parametrize("turns", range(5))
async def test_what_is_appended_as_the_thread_ends_its_writes_is_written_too(bench: Workbench, turns: int) -> None:
    log, moved = await bench.log(), asyncio.Event()
    bench.disk.slow_s = 1.0
    append(log, produced())  # slow; from here on a thread writes
    append(log, produced())
    log.ends.notify(moved.set)
    await moved.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    append(log, produced())
    await until(lambda: log.written_end_offset == log.log_end_offset == 3)
    assert [header.base_offset for header in read_all(log)] == [0, 1, 2]


async def test_under_steady_load_the_log_returns_to_the_fast_path(bench: Workbench) -> None:
    log = await bench.log()
    append(log, produced())
    bench.disk.slow_s = 1.0
    append(log, produced())
    bench.disk.slow_s = 0.0
    busy = True

    def append_more() -> None:
        if busy:
            append(log, produced())

    log.ends.notify(append_more)  # somebody always waits when a turn of the thread ends
    append(log, produced())
    before = bench.disk.loop_writes
    await until(lambda: bench.disk.loop_writes > before + 1)
    busy = False
    await bench.directory.settle()
    append(log, produced())
    assert log.written_end_offset == log.readable_end_offset == log.log_end_offset
    headers = read_all(log)
    assert [header.base_offset for header in headers] == list(range(log.log_end_offset))


async def test_the_budget_of_unwritten_bytes_refuses_and_recovers(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, limits=DirectoryConfig(free_bytes_min=0, unwritten_bytes_max=1_000))
    log = await bench.log()
    append(log, produced())
    bench.disk.slow_s = 1.0
    append(log, produced())
    bench.disk.slow_s = 0.0
    gate = bench.disk.write_gate = threading.Event()
    append(log, produced(1, size=600))
    with pytest.raises(ProtocolError) as caught:
        append(log, produced(1, size=600))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert bench.directory.offline is None
    assert log.log_end_offset == 3
    gate.set()
    await bench.directory.settle()
    append(log, produced(1, size=600))
    assert log.log_end_offset == 4
    await bench.directory.close()


async def test_rolls_and_restarts_while_the_disk_is_slow(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, replace(FOREVER, segment_bytes=400, index_interval_bytes=100))
    log = await bench.log()
    bench.disk.slow_s = 1.0
    for at in range(20):
        append(log, produced(1, size=90, producer_id=3, sequence=at))
    assert len(log.segments) > 5
    await bench.directory.settle()
    assert log.written_end_offset == 20
    assert len(read_all(log)) == 20
    bench.disk.slow_s = 0.0
    log = await bench.restart(clean=True)
    assert len(read_all(log)) == 20
    assert [view.last_sequence for view in log.producers.views()] == [19]


STEPS = ("append", "append", "move the start", "move the start to the end", "retain", "retain nothing", "slow", "fast")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=st.lists(st.sampled_from(STEPS), max_size=30), clean=st.booleans())
@example(history=["slow", "append", "move the start to the end"], clean=False)
@example(history=["slow", "append", "move the start to the end"], clean=True)
async def test_segments_that_are_deleted_while_the_disk_is_slow_stay_away(
    tmp_path_factory: pytest.TempPathFactory, history: list[str], clean: bool
) -> None:
    config = replace(FOREVER, segment_bytes=250, index_interval_bytes=1)
    bench = Workbench(tmp_path_factory.mktemp("slow"), config)
    log = await bench.log()
    gate = bench.disk.write_gate = threading.Event()

    async def catch_up() -> None:
        bench.disk.slow_s = 0.0
        gate.set()
        await bench.directory.settle()

    append(log, produced())
    for step in history:
        if step == "slow":
            bench.disk.slow_s = 1.0
            gate.clear()
            append(log, produced(1, size=90))  # from here on a thread writes
        elif step == "fast":
            await catch_up()
        elif step == "append":
            for _ in range(3):
                append(log, produced(1, size=90))
        elif step.startswith("retain"):
            log.update_config(replace(config, retention_bytes=500 if step == "retain" else 0))
            log.delete_old_segments(NOW_MS, log.written_end_offset)
        else:
            end = log.log_end_offset
            log.advance_log_start(end if step.endswith("end") else (log.log_start_offset + end) // 2, "test")
    await catch_up()
    log.update_config(config)
    while log.delete_old_segments(NOW_MS, log.log_end_offset):
        pass
    names = sorted(path.name for path in (bench.root / log.directory).glob("*.log"))
    assert names == [f"{segment.base_offset:020d}.log" for segment in log.segments]
    assert len(names) == 1 or log.segments[1].base_offset > log.log_start_offset, "what is below the start has gone"
    kept, bounds = read_all(log), (log.log_start_offset, log.log_end_offset)
    assert await bench.directory.checkpoint_recovery_points()
    log = await bench.restart(clean=clean)
    assert (log.log_start_offset, log.log_end_offset) == bounds
    assert read_all(log) == kept
    await bench.directory.close()


@pytest.mark.parametrize("ended_before", range(4))
async def test_readers_need_no_entry_of_an_abort_marker_that_waits_for_the_disk(
    bench: Workbench, ended_before: int
) -> None:
    """In a segment of an earlier run, with and without a `.txnindex`; some entries wait, and its end is not there."""
    log = await bench.log()
    append(log, produced())
    aborted = [
        (producer_id, append(log, produced(producer_id=producer_id, transactional=True)).base_offset)
        for producer_id in range(ended_before + 3)
    ]
    for producer_id in range(ended_before):
        append(log, marker(MarkerKind.ABORT, producer_id))
    log = await bench.restart(clean=True)
    bench.disk.slow_s = 1.0
    append(log, produced())  # from here on a thread writes
    gate = bench.disk.write_gate = threading.Event()
    append(log, produced())  # it waits at this one
    for producer_id in range(ended_before, ended_before + 3):
        append(log, marker(MarkerKind.ABORT, producer_id))

    async def listed(offset: int) -> list[tuple[int, int]]:
        """What a reader of committed records gets with those from `offset` on."""
        end = log.last_stable_offset(log.readable_end_offset)
        found = await log.when_in_memory(lambda: log.aborted_transactions(offset, end, only_in_memory=True))
        assert found == log.aborted_transactions(offset, end)
        return found

    assert log.last_stable_offset(log.readable_end_offset) == aborted[ended_before][1]
    for offset in range(aborted[ended_before][1]):
        assert await listed(offset) == aborted[:ended_before]
    bench.disk.slow_s = 0.0
    gate.set()
    await bench.directory.settle()
    assert await listed(0) == aborted
    assert bench.directory.offline is None
    log = await bench.restart(clean=True)
    assert await listed(0) == aborted


async def test_a_postponed_write_that_fails_takes_the_directory_offline(bench: Workbench) -> None:
    log = await bench.log()
    append(log, produced())
    bench.disk.slow_s = 1.0
    append(log, produced())
    bench.disk.write_errno = EIO
    append(log, produced())
    await until(lambda: bench.directory.offline)
    assert (log.log_end_offset, log.written_end_offset) == (3, 2)
    assert bench.directory.unwritten_bytes == 0


@pytest.mark.parametrize("turns", range(5))
async def test_with_flush_messages_1_only_what_is_on_the_device_counts(tmp_path: Path, turns: int) -> None:
    """Also what is appended in the very turns of the loop in which the flush before it ends."""
    bench = Workbench(tmp_path, replace(FOREVER, flush_messages=1))
    log = await bench.log()
    moved = asyncio.Event()
    log.ends.notify(moved.set)
    gate = bench.disk.fsync_gate = threading.Event()
    append(log, produced(3))
    assert (log.log_end_offset, log.readable_end_offset, log.written_end_offset) == (3, 3, 0)
    gate.set()
    await moved.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    assert log.written_end_offset == log.flushed_end_offset == 3
    assert "t-0/00000000000000000000.log" in bench.disk.fsyncs
    append(log, produced())
    append(log, produced())
    await until(lambda: log.written_end_offset == 5)
    await bench.directory.close()


async def test_a_flush_that_a_truncation_overtook_promises_nothing(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, replace(FOREVER, flush_messages=1))
    log = await bench.log()
    gate = bench.disk.fsync_gate = threading.Event()
    append(log, produced(5))
    await until(lambda: bench.disk.fsyncs)
    log.truncate_to(0)
    append(log, produced(5))
    count = len(bench.disk.fsyncs)
    gate.set()
    await until(lambda: log.written_end_offset == 5)
    assert "t-0/00000000000000000000.log" in bench.disk.fsyncs[count:]
    await bench.directory.close()


async def test_flush_ms_flushes_in_time(tmp_path: Path) -> None:
    bench = Workbench(
        tmp_path, replace(FOREVER, flush_ms=1_000), DirectoryConfig(free_bytes_min=0, upkeep_interval_ms=5)
    )
    log = await bench.log()
    append(log, produced())
    await asyncio.sleep(0.02)
    assert log.flushed_end_offset == 0
    bench.clock.shift_s += 1.1
    await until(lambda: log.flushed_end_offset == 1)
    await bench.directory.close()


async def test_the_recovery_point_passes_a_closed_segment_only_after_its_fsync(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, replace(FOREVER, segment_bytes=300, index_interval_bytes=1))
    log = await bench.log()
    gate = bench.disk.fsync_gate = threading.Event()
    for _ in range(4):
        append(log, produced(1, size=60))
    assert len(log.segments) == 2
    await until(lambda: bench.disk.fsyncs)
    assert log.recovery_point == 0
    gate.set()
    await until(lambda: log.recovery_point == log.active.base_offset)
    names = [path.rpartition("/")[2] for path in bench.disk.fsyncs]
    stem = "0" * 20
    assert {f"{stem}.log", f"{stem}.index", f"{stem}.timeindex"} <= {*names}
    await bench.directory.close()


async def test_nothing_is_fsynced_on_the_loop(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, replace(FOREVER, segment_bytes=300, flush_messages=1))
    log = await bench.log()
    for _ in range(6):
        append(log, produced(1, size=60))
        await log.flush()
    await checkpoint_high_watermarks(bench.directory, {("t", 0): 3})
    await bench.directory.close_clean(1)
    assert bench.disk.fsyncs
    assert bench.disk.loop_syncs == 0


async def test_scarce_room_throttles_then_refuses_then_ends(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, limits=DirectoryConfig(free_bytes_min=1_000, upkeep_interval_ms=2))
    log = await bench.log()
    append(log, produced())
    bench.disk.free = 1_500
    await until(lambda: bench.directory.free_space_state is FreeSpace.THROTTLED)
    append(log, produced())
    bench.disk.free = 999
    await until(lambda: bench.directory.free_space_state is FreeSpace.REFUSED)
    with pytest.raises(ProtocolError) as caught:
        append(log, produced())
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(read_all(log)) == 2  # reads and deletion go on
    log.advance_log_start(2, "test")
    bench.disk.free = None
    await until(lambda: bench.directory.free_space_state is FreeSpace.PLENTY)
    append(log, produced())
    assert bench.directory.offline is None
    await bench.directory.close()


async def test_the_less_room_the_sooner_it_is_looked_at_again(tmp_path: Path) -> None:
    """Between two looks a fast writer must not get from plenty to nothing."""
    bench = Workbench(tmp_path, limits=DirectoryConfig(free_bytes_min=1_000, upkeep_interval_ms=2_000))
    bench.disk.free = 7_999
    await bench.log()
    looks = bench.disk.looks
    async with asyncio.timeout(5):
        await until(lambda: bench.disk.looks >= looks + 4)
    assert bench.directory.free_space_state is FreeSpace.PLENTY
    await bench.directory.close()
