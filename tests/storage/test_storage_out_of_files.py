"""A system that has no more files to open: requests are refused for a while, the log directory stays in service."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.directory_config import DirectoryConfig
from common.errors import ErrorCode, ProtocolError
from storage.disk.open_files import FileHandle, OpenFiles
from storage.log.log_config import LogConfig
from storage.log.partition_log import PartitionLog
from tests.storage.log_workbench import FOREVER, FaultyDisk, Workbench, append, produced, read_all
from tests.storage.test_storage_log_faults import until

pytestmark = pytest.mark.virtual_time

SMALL = replace(FOREVER, segment_bytes=400, index_interval_bytes=0)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Workbench]:
    bench = Workbench(tmp_path)
    yield bench
    bench.disk.files_max = None
    await bench.directory.close()


async def filled(bench: Workbench, config: LogConfig = FOREVER, batches: int = 3) -> PartitionLog:
    """A log of which no file is open."""
    bench.config = config
    log = await bench.log()
    for number in range(batches):
        append(log, produced(producer_id=5, sequence=number))
    return await bench.restart(clean=True)


def offsets(log: PartitionLog) -> list[int]:
    return [header.base_offset for header in read_all(log)]


async def test_a_read_is_refused_until_files_can_be_opened(bench: Workbench) -> None:
    log = await filled(bench)
    bench.disk.files_max = 0
    with pytest.raises(ProtocolError) as caught:
        log.read(0, 1 << 20, log.log_end_offset)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(ProtocolError):
        log.locate_timestamp(0)
    assert bench.directory.offline is None
    bench.disk.files_max = None
    assert offsets(log) == [0, 1, 2]


async def test_an_append_is_refused_whole_and_comes_again(bench: Workbench) -> None:
    log = await filled(bench)
    bench.disk.files_max = 0
    before = log.producers.snapshot()
    with pytest.raises(ProtocolError) as caught:
        append(log, produced(producer_id=5, sequence=3))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, log.producers.snapshot(), bench.directory.offline) == (3, before, None)
    bench.disk.files_max = None
    assert append(log, produced(producer_id=5, sequence=3)).base_offset == 3
    assert offsets(await bench.restart(clean=False)) == [0, 1, 2, 3]


@pytest.mark.parametrize("allowed", range(4))
async def test_a_roll_goes_on_where_it_was_stopped(bench: Workbench, allowed: int) -> None:
    log = await filled(bench, SMALL, batches=4)
    for number in range(4, 40):
        batch = produced(producer_id=5, sequence=number)
        bench.disk.files_max = bench.disk.files_open + allowed
        try:
            append(log, batch)
        except ProtocolError:
            assert log.log_end_offset == number
            bench.disk.files_max = None
            append(log, batch)
        bench.directory.context.open_files.close_all()
    assert bench.directory.offline is None
    assert len(log.segments) > 5
    bench.disk.files_max = None
    assert offsets(log) == list(range(40))
    assert offsets(await bench.restart(clean=True)) == list(range(40))


async def test_files_that_are_not_used_give_way(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    files = OpenFiles(disk, 100)
    pinned, *others = [FileHandle(files, f"f{number}") for number in range(8)]
    pinned.use(create=True)
    pinned.pin()
    for handle in others:
        handle.use(create=True)
    disk.files_max = len(files)
    assert files.open_apart("another", create=True).size() == 0
    assert pinned.file is not None
    assert all(handle.file is None for handle in others)


async def test_what_replies_pin_is_counted_by_file(tmp_path: Path) -> None:
    files = OpenFiles(FaultyDisk(tmp_path), 4)
    first, second = FileHandle(files, "a"), FileHandle(files, "b")
    for handle in (first, first, second):
        handle.use(create=True)
        handle.pin()
    assert (files.pinned, files.is_at_pin_limit) == (2, True)
    first.unpin()
    assert files.is_at_pin_limit
    first.unpin()
    assert (files.pinned, files.is_at_pin_limit) == (1, False)
    second.retire()
    second.unpin()
    assert (files.pinned, second.file) == (0, None)


async def test_a_flush_waits_for_files(bench: Workbench) -> None:
    log = await filled(bench, replace(FOREVER, flush_messages=1))
    log.active.log.use()
    bench.disk.files_max = bench.disk.files_open
    append(log, produced(producer_id=5, sequence=3))
    await asyncio.sleep(0.05)
    assert (log.written_end_offset, bench.directory.offline) == (3, None)
    bench.disk.files_max = None
    await until(lambda: log.written_end_offset == 4)
    assert log.flushed_end_offset == 4


async def test_writes_that_wait_for_the_disk_wait_for_files_as_well(bench: Workbench) -> None:
    log = await filled(bench)
    bench.disk.slow_s = 1.0
    append(log, produced(producer_id=5, sequence=3))
    bench.disk.slow_s = 0.0
    bench.directory.context.open_files.close_all()
    bench.disk.files_max = 0
    append(log, produced(producer_id=5, sequence=4))
    await asyncio.sleep(0.05)
    assert (log.log_end_offset, log.written_end_offset, bench.directory.offline) == (5, 4, None)
    bench.disk.files_max = None
    await until(lambda: log.written_end_offset == 5)
    assert offsets(log) == list(range(5))


async def test_upkeep_does_later_what_it_cannot_do_now(tmp_path: Path) -> None:
    limits = DirectoryConfig(free_bytes_min=0, upkeep_interval_ms=5, checkpoint_interval_ms=0)
    bench = Workbench(tmp_path, replace(FOREVER, file_delete_delay_ms=0), limits)
    log = await bench.log()
    append(log, produced())
    bench.disk.files_max = 0
    bench.directory.delete_log(log)
    await asyncio.sleep(0.05)
    assert bench.directory.offline is None
    bench.disk.files_max = None
    await until(lambda: not any(name.endswith("-delete") for name in bench.disk.list("")))
    await bench.directory.close()
