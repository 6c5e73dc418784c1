"""The cleaner's offsets of a log that is truncated, deleted, or made again: they must not outlive what they tell of."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import ErrorCode, ProtocolError
from records.batch import iterate_batches
from records.builder import build_batch
from records.record import Record, decode_records
from storage.cleaning.cleaner import CleanerConfig, LogCleaner
from storage.disk.checkpoint_files import CLEANER_OFFSETS, RECOVERY_POINTS, decode_offsets
from storage.disk.log_flusher import FlushDepth
from storage.log.log_config import LogConfig
from storage.log.partition_log import PartitionLog
from tests.storage.log_workbench import FOREVER, NOW_MS, TOPIC_ID, SyncWatch, Workbench, append, produced, truncate

OTHER_ID = bytes(range(1, 17))
CONFIG = replace(FOREVER, cleanup_policy=("compact",), delete_retention_ms=0, min_cleanable_dirty_ratio=0.0)
SMALL = replace(CONFIG, segment_bytes=600, index_interval_bytes=100)
CLEANED = 30
INFLATED = 1 << 20


def said(root: Path) -> int | None:
    """The cleaner's offset of t-0."""
    return decode_offsets((root / CLEANER_OFFSETS).read_bytes()).get(("t", 0))


def cleaner(bench: Workbench) -> LogCleaner:
    logs = bench.directory.logs
    return LogCleaner(bench.directory.context, lambda: list(logs.values()), _end, CleanerConfig())


def _end(log: PartitionLog) -> int:
    return log.log_end_offset


def put(log: PartitionLog, key: str, value: str | None) -> None:
    record = Record(0, NOW_MS, key.encode(), None if value is None else value.encode(), ())
    append(log, build_batch([record]))


def read(log: PartitionLog) -> dict[bytes | None, bytes]:
    """What a reader of the whole log knows in the end."""
    found: dict[bytes | None, bytes] = {}
    offset = log.log_start_offset
    while (region := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        data = memoryview(region.read())
        region.release()
        for at, header in iterate_batches(data, 0, len(data)):
            for record in decode_records(data, at, header.size, inflated_bytes_max=INFLATED):
                found.pop(record.key, None)
                if record.value is not None:
                    found[record.key] = bytes(record.value)
            offset = header.next_offset
    return found


async def close_segment(log: PartitionLog) -> None:
    log.roll(NOW_MS)
    await log.flush(depth=FlushDepth.COMPLETE)


async def filled(root: Path, config: LogConfig = CONFIG) -> tuple[Workbench, PartitionLog]:
    """Thirty records, closed and flushed."""
    bench = Workbench(root, config)
    log = await bench.log()
    for number in range(CLEANED):
        put(log, f"x{number % 3}", str(number))
    await close_segment(log)
    await bench.directory.settle()
    return bench, log


async def cleaned(root: Path, config: LogConfig = CONFIG) -> tuple[Workbench, PartitionLog]:
    """A log that is clean up to offset 30, which the file says; nothing lies behind."""
    bench, log = await filled(root, config)
    assert await cleaner(bench).clean_dirtiest()
    assert said(root) == CLEANED
    return bench, log


async def made_again(bench: Workbench, log: PartitionLog) -> PartitionLog:
    bench.directory.delete_log(log)
    log = bench.directory.create_log("t", 0, OTHER_ID, bench.config)
    await bench.directory.settle()
    return log


def delete_a_key(log: PartitionLog) -> None:
    """Its record and its tombstone get offsets below the cleaned one; more follows."""
    put(log, "gone", "secret")
    put(log, "gone", None)
    while log.log_end_offset < CLEANED + 5:
        put(log, f"y{log.log_end_offset}", "later")


async def stays_deleted(bench: Workbench, log: PartitionLog) -> None:
    """Also when the tombstone is gone."""
    for turn in range(3):
        put(log, "z", str(turn))
        await close_segment(log)
        await cleaner(bench).clean_dirtiest()
        assert b"gone" not in read(log), f"pass {turn}"
        bench.clock.shift_s += 1
    assert f"y{CLEANED}".encode() in read(log)


@pytest.mark.parametrize("clean", [False, True])
async def test_a_key_stays_deleted_in_a_topic_that_was_made_again(tmp_path: Path, clean: bool) -> None:
    bench, log = await cleaned(tmp_path)
    log = await made_again(bench, log)
    delete_a_key(log)
    await log.flush(depth=FlushDepth.COMPLETE)
    await (bench.directory.close_clean(7) if clean else bench.directory.close())
    await bench.start()
    log = bench.directory.create_log("t", 0, OTHER_ID, CONFIG)
    await stays_deleted(bench, log)
    await bench.directory.close()


@pytest.mark.parametrize("clean", [False, True])
async def test_a_key_stays_deleted_in_a_log_that_was_truncated(tmp_path: Path, clean: bool) -> None:
    bench, log = await cleaned(tmp_path)
    assert await truncate(log, 10) == 10
    delete_a_key(log)
    log = await bench.restart(clean=clean)
    await stays_deleted(bench, log)
    await bench.directory.close()


async def test_a_topic_that_was_made_again_takes_records_once_the_offset_is_withdrawn(tmp_path: Path) -> None:
    bench, log = await cleaned(tmp_path)
    gate = bench.disk.fsync_gate = threading.Event()
    bench.directory.delete_log(log)
    log = bench.directory.create_log("t", 0, OTHER_ID, CONFIG)
    with pytest.raises(ProtocolError) as refused:
        append(log, produced())
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert said(tmp_path) == CLEANED
    gate.set()
    await bench.directory.settle()
    assert said(tmp_path) == 0
    append(log, produced())
    await bench.directory.close()


@pytest.mark.parametrize("fully", [False, True])
async def test_a_log_is_truncated_once_the_offset_is_withdrawn(tmp_path: Path, fully: bool) -> None:
    bench, log = await cleaned(tmp_path)
    await bench.directory.checkpoint_recovery_points()
    cut = log.truncate_fully_and_start_at if fully else log.truncate_to
    with pytest.raises(ProtocolError):
        cut(10)
    await bench.directory.settle()
    assert said(tmp_path) == 10
    assert log.log_end_offset == CLEANED
    cut(10)
    assert log.log_end_offset == 10
    await bench.directory.close()


async def test_a_pass_notes_no_offset_of_a_log_that_was_truncated_meanwhile(tmp_path: Path) -> None:
    """Its swap is done, and its directory is being flushed."""
    bench, log = await filled(tmp_path)
    first = log.segments[0]
    watch = bench.disk.sync_watch = SyncWatch(lambda path: path == "t-0")
    watch.open.clear()
    passing = asyncio.create_task(cleaner(bench).clean_dirtiest())
    while log.segments[0] is first:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert await truncate(log, 10) == 10
    watch.open.set()
    await passing
    assert (said(tmp_path) or 0) <= 10
    delete_a_key(log)
    log = await bench.restart(clean=False)
    await stays_deleted(bench, log)
    await bench.directory.close()


@pytest.mark.parametrize("again", [False, True])
async def test_an_offset_that_is_being_written_is_withdrawn_too(tmp_path: Path, again: bool) -> None:
    bench, log = await filled(tmp_path)
    watch = bench.disk.sync_watch = SyncWatch(lambda path: path == f"{CLEANER_OFFSETS}.tmp")
    watch.open.clear()
    passing = asyncio.create_task(cleaner(bench).clean_dirtiest())
    while not watch.most:  # noqa: ASYNC110
        await asyncio.sleep(0)
    if again:
        bench.directory.delete_log(log)
        log = bench.directory.create_log("t", 0, OTHER_ID, CONFIG)
    else:
        with pytest.raises(ProtocolError):
            log.truncate_to(10)
    watch.open.set()
    assert await passing
    await bench.directory.context.checkpoints.idle()
    assert said(tmp_path) == (0 if again else 10)
    put(log, "a", "1")
    await bench.directory.close()


async def test_the_offset_of_a_deleted_log_leaves_the_file(tmp_path: Path) -> None:
    bench, log = await cleaned(tmp_path)
    bench.directory.delete_log(log)
    assert not await cleaner(bench).clean_dirtiest()
    assert said(tmp_path) is None
    await bench.directory.close()


async def test_a_pass_over_one_log_keeps_the_offsets_of_the_others(tmp_path: Path) -> None:
    bench, _ = await cleaned(tmp_path)
    other = await bench.log("t", 1)
    put(other, "a", "1")
    await close_segment(other)
    assert await cleaner(bench).clean_dirtiest()
    assert decode_offsets((tmp_path / CLEANER_OFFSETS).read_bytes()) == {("t", 0): CLEANED, ("t", 1): 1}
    await bench.directory.close()


@pytest.mark.parametrize("again", [False, True])
async def test_a_loss_below_a_withdrawn_offset_is_no_gap_of_compaction(tmp_path: Path, again: bool) -> None:
    """A loss of power took the end of a segment. The log was truncated, or made again, since its compaction."""
    bench, log = await cleaned(tmp_path, SMALL)
    if again:
        log = await made_again(bench, log)
    else:
        await bench.directory.checkpoint_recovery_points()
        await truncate(log, 1)
    start = log.log_end_offset
    while log.log_end_offset < CLEANED - 2:
        append(log, produced(2, size=100))
    short, after = log.segments[1:3]
    assert start < short.base_offset
    assert after.base_offset <= CLEANED
    await bench.directory.close()
    path = tmp_path / f"{short.stem}.log"
    path.write_bytes(path.read_bytes()[: short.size // 2])
    await bench.start()
    log = bench.directory.create_log("t", 0, OTHER_ID if again else TOPIC_ID, SMALL)
    assert log.active.base_offset == short.base_offset
    assert short.base_offset < log.log_end_offset < after.base_offset
    await bench.directory.close()


async def test_a_pass_leaves_the_recovery_points_of_other_logs_in_the_file(tmp_path: Path) -> None:
    """A start after a kill scans a log from what the file says of it: without a point, from its beginning."""
    bench, log = await filled(tmp_path)
    other = bench.directory.create_log("u", 0, OTHER_ID, FOREVER)
    append(other, produced(3))
    await close_segment(other)
    await bench.directory.checkpoint_recovery_points()
    for one in (log, other):
        append(one, produced(2))
        await close_segment(one)
    compacting = LogCleaner(bench.directory.context, lambda: [log], _end, CleanerConfig())
    assert await compacting.clean_dirtiest()

    def points() -> dict[tuple[str, int], int]:
        return dict(decode_offsets((tmp_path / RECOVERY_POINTS).read_bytes()))

    assert points() == {("t", 0): CLEANED + 2, ("u", 0): 3}
    await bench.directory.checkpoint_recovery_points()  # the pass has not told where the other one is now
    assert points() == {("t", 0): CLEANED + 2, ("u", 0): 5}
    await bench.directory.close()
