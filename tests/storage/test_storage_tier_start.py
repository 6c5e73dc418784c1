"""Where a log begins that begins from the tier: nothing is appended, and nobody else begins, while a thread writes that
down; and what the disk has no room for comes later."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.directory_config import DirectoryConfig
from common.errors import ErrorCode, ProtocolError
from common.whole_files import TEMPORARY_SUFFIX, join, read_whole
from storage.disk.checkpoint_files import LEADER_EPOCHS
from storage.log import tier_start
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.partition_log import PartitionLog
from storage.producers.producer_snapshot import Snapshot, encode_snapshot
from storage.segments.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, file_stem
from tests.storage.log_workbench import NOW_MS, TOPIC_ID, OpenGate, SyncWatch, Workbench, append, produced
from tests.storage.test_storage_tiered_log import TIERED

NOTHING = encode_snapshot(Snapshot([], []))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Workbench]:
    made = Workbench(tmp_path, TIERED, DirectoryConfig(free_bytes_min=0, upkeep_interval_ms=5))
    await made.start()
    yield made
    release(made)
    made.disk.write_errno = None
    await made.directory.close()


async def until(condition: Callable[[], object]) -> None:
    for _ in range(30_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to hold")


async def turns() -> None:
    """Whatever the loop can do without a thread is done."""
    for _ in range(20):
        await asyncio.sleep(0)


def block(bench: Workbench) -> None:
    """Writes off the loop stand still until `release`."""
    if bench.disk.write_gate is None:
        bench.disk.write_gate = threading.Event()


def release(bench: Workbench) -> None:
    if bench.disk.write_gate is not None:
        bench.disk.write_gate.set()
        bench.disk.write_gate = None


def begin(log: PartitionLog, offset: int, begun: list[int]) -> "asyncio.Task[None]":
    """Begin at `offset`, whose number is also that of the last epoch before it."""
    producers = tier_start.read_producers(log.config, NOTHING, offset, NOW_MS)

    def start() -> None:
        log.start_at(offset, 0, [(offset, 0)], producers.states)
        begun.append(offset)

    return asyncio.create_task(tier_start.begin(log, producers.snapshot, start))


def check_on_disk(bench: Workbench, log: PartitionLog) -> None:
    """What the log says of its beginning is in its files, as a crash would leave them now."""
    epochs = read_whole(bench.disk, join(log.directory, LEADER_EPOCHS))
    assert epochs is not None
    assert LeaderEpochCache.decode(epochs).entries() == log.leader_epochs.entries()
    snapshot = read_whole(bench.disk, file_stem(log.directory, log.log_end_offset) + SNAPSHOT_SUFFIX)
    assert snapshot == log.producers.snapshot()


def synced(bench: Workbench, log: PartitionLog) -> list[str]:
    """The log's files that an fsync was asked for, in order."""
    return [path.removeprefix(log.directory + "/") for path in bench.disk.fsyncs if path.startswith(log.directory)]


def temporary(name: str) -> str:
    """Of a file that says where a log begins."""
    return f"{name}.beginning{TEMPORARY_SUFFIX}"


def refused(log: PartitionLog) -> bool:
    try:
        append(log, produced())
    except ProtocolError as error:
        return error.code is ErrorCode.KAFKA_STORAGE_ERROR
    return False


async def test_who_is_cancelled_waits_for_the_thread_and_so_does_the_next(bench: Workbench) -> None:
    log, begun = await bench.log(), list[int]()
    block(bench)
    first = begin(log, 10, begun)
    await until(lambda: begun)
    first.cancel()
    second = begin(log, 20, begun)
    await turns()
    first.cancel()
    await turns()
    assert not first.done()
    assert begun == [10]
    assert refused(log)
    release(bench)
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert begun == [10, 20]
    check_on_disk(bench, log)
    assert not refused(log)


async def test_a_log_of_the_same_name_waits_for_the_one_before(bench: Workbench) -> None:
    before, begun = await bench.log(), list[int]()
    block(bench)
    first = begin(before, 10, begun)
    await until(lambda: begun and temporary(f"{10:020d}{SNAPSHOT_SUFFIX}") in bench.disk.list(before.directory))
    bench.directory.delete_log(before)
    after = await bench.log()
    first.cancel()
    second = begin(after, 20, begun)
    await turns()
    assert begun == [10]
    release(bench)
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    check_on_disk(bench, after)
    assert bench.directory.offline is None
    assert f"{10:020d}{SNAPSHOT_SUFFIX}" not in bench.disk.list(after.directory)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("flushes", [False, True])
async def test_nothing_gets_into_the_directory_of_a_later_log_of_the_name(
    bench: Workbench, *, is_open: bool, flushes: bool
) -> None:
    """The topic is deleted and made again while a thread is about to open a file there, or has just opened it."""
    before, begun = await bench.log(), list[int]()
    names = [LEADER_EPOCHS + TEMPORARY_SUFFIX]
    if not flushes:
        names = [f"{10:020d}{SNAPSHOT_SUFFIX}", temporary(f"{10:020d}{SNAPSHOT_SUFFIX}")]
    bench.disk.open_gate = gate = OpenGate([join(before.directory, name) for name in names], before=not is_open)
    if flushes:
        append(before, produced())
        before.roll(0)  # which has the closed segment flushed, with the epochs of now
    else:
        begin(before, 10, begun)
    await until(gate.reached.is_set)
    bench.disk.open_gate = None
    bench.directory.delete_log(before)
    after = bench.directory.create_log("t", 0, bytes(16), TIERED)
    assert after.directory == before.directory
    there = bench.disk.list(after.directory)
    gate.go_on.set()
    await bench.directory.settle()
    assert bench.disk.list(after.directory) == there
    assert bench.directory.offline is None


async def test_a_flush_from_before_does_not_write_over_it(bench: Workbench) -> None:
    log, begun = await bench.log(), list[int]()
    append(log, produced())
    bench.disk.fsync_gate = gate = threading.Event()
    log.roll(0)  # which has the closed segment flushed, with the epochs of now
    await until(lambda: synced(bench, log))
    beginning = begin(log, 10, begun)
    await until(lambda: begun)
    await asyncio.sleep(0.05)  # what must not come would come now
    gate.set()
    await beginning
    check_on_disk(bench, log)
    assert bench.directory.offline is None
    named = [f"{10:020d}{SNAPSHOT_SUFFIX}", LEADER_EPOCHS, f"{10:020d}{LOG_SUFFIX}"]
    begun_with = [temporary(name) for name in named]
    assert synced(bench, log)[-4:] == [LEADER_EPOCHS + TEMPORARY_SUFFIX, *begun_with], (
        "the flush's, then what it begins with"
    )


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_beginning_without_room_ends_when_there_is_some(bench: Workbench, *, cancelled: bool) -> None:
    log, begun = await bench.log(), list[int]()
    block(bench)
    beginning = begin(log, 10, begun)
    await until(lambda: begun)
    bench.disk.write_errno, bench.disk.free = errno.ENOSPC, 0
    release(bench)
    await until(lambda: bench.directory.context.health.refuses_appends)
    if cancelled:
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
    else:
        assert not beginning.done()
    assert refused(log)
    assert bench.directory.offline is None
    bench.disk.write_errno, bench.disk.free = None, 1 << 40
    await until(lambda: log.barred is None and not bench.directory.context.health.refuses_appends)
    if not cancelled:
        await beginning
    check_on_disk(bench, log)
    assert not refused(log)


STEPS = st.lists(st.sampled_from(["begin", "cancel", "block", "release", "append", "remake", "turns"]), max_size=25)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=STEPS)
async def test_no_two_beginnings_write_at_once_and_what_is_appended_to_is_durable(
    tmp_path_factory: pytest.TempPathFactory, history: list[str]
) -> None:
    bench = Workbench(tmp_path_factory.mktemp("begin"), TIERED)
    await bench.start()
    seen = bench.disk.sync_watch = SyncWatch(lambda path: ".beginning" in path)
    log, begun = await bench.log(), list[int]()
    tasks: list[asyncio.Task[None]] = []
    for number, step in enumerate(["begin", *history, "release"]):
        if step == "begin":
            tasks.append(begin(log, 1_000 * (number + 1), begun))
        elif step == "cancel" and tasks:
            tasks[number % len(tasks)].cancel()
        elif step == "block":
            seen.open.clear()
        elif step == "release":
            seen.open.set()
        elif step == "append" and begun and log.log_end_offset in begun and not refused(log):
            await log.flush()
        elif step == "remake":
            bench.directory.delete_log(log)
            log = bench.directory.create_log("t", 0, TOPIC_ID, TIERED)
        await turns()
        if log.log_end_offset in begun and log.barred is None:
            check_on_disk(bench, log)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert seen.most <= 1
    assert bench.directory.offline is None
    for outcome in outcomes:
        assert outcome is None or isinstance(outcome, (asyncio.CancelledError, ProtocolError))
    await bench.directory.close()
