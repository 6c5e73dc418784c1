"""The cleaner over real logs: what readers see, what a restart finds, what a crash leaves."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from common.directory_config import DirectoryConfig
from common.machine_disk import MachineFile
from common.pacing import SLICE_COST, Pacer
from common.whole_files import read_whole
from records.batch import iterate_batches
from records.builder import build_batch
from records.record import Record, decode_records
from storage.cleaning.cleaner import CleanerConfig, LogCleaner
from storage.disk.checkpoint_files import CLEANER_OFFSETS, RECOVERY_POINTS, decode_offsets
from storage.disk.checkpoints import Checkpoints
from storage.disk.directory_health import DirectoryHealth
from storage.disk.log_flusher import FlushDepth, LogFlusher
from storage.disk.log_writer import LogWriter
from storage.disk.open_files import OpenFiles
from storage.disk.trash import Trash
from storage.log.loaded_log import empty_log
from storage.log.log_config import LogConfig
from storage.log.log_context import LogContext
from storage.log.partition_log import PartitionLog
from storage.log.segment_swap import settle
from storage.producers.producer_reload import ProducerReloads
from storage.producers.snapshot_writes import SnapshotWrites
from storage.recovery.recovery import RecoveryInput, load_log
from tests.storage.log_workbench import truncate
from tests.storage.memory_trail import MemoryTrail
from tests.storage.segments_on_disk import CAP, UnsyncedDisk
from tests.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time

TOPIC_ID = bytes(range(16))
CONFIG = LogConfig(cleanup_policy=("compact",), segment_bytes=700, delete_retention_ms=0)


class Crash(BaseException):
    """The process is gone: nothing catches this."""


class CrashingDisk(UnsyncedDisk):
    """Dies at the operation with number `fuse` that changes names or makes files."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fuse: int | None = None

    def _burn(self) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise Crash

    def open(self, path: str, *, create: bool = False) -> MachineFile:
        if create:
            self._burn()
        return super().open(path, create=create)

    def rename(self, source: str, target: str) -> None:
        self._burn()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._burn()
        super().remove(path)


class World:
    """One compacted log in a directory of its own, with its cleaner."""

    def __init__(self, root: Path, config: LogConfig = CONFIG, cleaner: CleanerConfig | None = None) -> None:
        self.disk = CrashingDisk(root)
        self.audit = MemoryTrail()
        self.events = self.audit.lines
        health, pacer = DirectoryHealth(), Pacer()
        clock = LoopClock()
        limits = DirectoryConfig(slow_write_s=60.0)  # a busy machine is no slow disk
        self.context = LogContext(
            disk=self.disk,
            clock=clock,
            rng=random.Random(1),
            audit=self.audit,
            config=limits,
            health=health,
            open_files=OpenFiles(self.disk),
            writer=LogWriter(self.disk, clock, health, limits.slow_write_s, limits.unwritten_bytes_max),
            flusher=LogFlusher(self.disk, clock, health),
            trash=Trash(),
            pacer=pacer,
            checkpoints=Checkpoints(self.disk, "", health, pacer),
            reloads=ProducerReloads(self.disk, clock, health, limits.replay_bytes_max),
            snapshots=SnapshotWrites(self.disk, health, pacer),
        )
        self.config = config
        self.disk.make_directory("t-0")
        self.log = PartitionLog(
            self.context, empty_log(self.context.open_files, "t-0", "t", 0, TOPIC_ID, config, clock.wall_ms())
        )
        self.opened = [self.context.open_files]
        self.high_watermark: int | None = None
        self.high_watermarks_asked = 0
        self.cleaner = LogCleaner(self.context, lambda: [self.log], self._high_watermark, cleaner or CleanerConfig())

    def _high_watermark(self, log: PartitionLog) -> int:
        """The cleaner asks for that of each log that it looks into."""
        self.high_watermarks_asked += 1
        return log.log_end_offset if self.high_watermark is None else self.high_watermark

    def append(self, key: str, value: str | None, **producer: int) -> None:
        now = self.context.clock.wall_ms()
        batch = build_batch([Record(0, now, key.encode(), None if value is None else value.encode())], **producer)  # type: ignore[arg-type]
        self.log.append_as_leader(batch, memoryview(batch), 0, len(batch), 0, now)

    async def fill(self, count: int, keys: int = 5) -> None:
        for number in range(count):
            self.append(f"key {number % keys}", f"value {number}")
        self.append("end", "end")
        await self.flush()

    async def flush(self) -> None:
        self.context.flusher.request(self.log.durability, FlushDepth.COMPLETE)
        await self.context.flusher.idle()
        assert self.log.recovery_point == self.log.log_end_offset

    def reopen(self) -> PartitionLog:
        """What a new process finds after a kill."""
        self.disk.fuse = None
        point, cleaned = (
            decode_offsets(read_whole(self.disk, name) or b"0\n0\n").get(("t", 0), 0)
            for name in (RECOVERY_POINTS, CLEANER_OFFSETS)
        )
        given = RecoveryInput("t-0", "t", 0, self.config, False, point, 0, max(point, cleaned), 0, 0)
        context = replace(self.context, health=DirectoryHealth(), open_files=OpenFiles(self.disk))
        self.opened.append(context.open_files)
        return PartitionLog(context, load_log(self.disk, context.open_files, context.audit, given))

    def close(self) -> None:
        for files in self.opened:
            files.close_all()


def records_of(log: PartitionLog) -> list[Record]:
    """All records, fetched from the start to the end as a consumer would."""
    found: list[Record] = []
    offset = log.log_start_offset
    while (region := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        data = memoryview(region.read())
        region.release()
        for at, header in iterate_batches(data, 0, len(data)):
            found += decode_records(data, at, header.size, inflated_bytes_max=CAP)
            offset = header.next_offset
    assert offset == log.log_end_offset
    return found


def values_of(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records_of(log) if record.key is not None}


async def until_it_writes(world: World) -> None:
    """The cleaner has begun a new segment and is held up by its throttle."""
    while not any(name.endswith(".cleaned") for name in world.disk.list("t-0")):  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_small_segments_melt_together(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.fill(60)
    assert await world.cleaner.clean_dirtiest()
    left = len(world.log.segments)
    await world.fill(60)
    grown = len(world.log.segments)
    assert grown > left
    assert await world.cleaner.clean_dirtiest()
    assert len(world.log.segments) < grown - 4
    assert values_of(world.reopen()) == values_of(world.log)


async def test_a_log_shrinks_and_says_the_same(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.fill(60)
    log = world.log
    before, values = records_of(log), values_of(log)
    size, first = log.size_bytes, log.segments[0]
    held = log.read(0, 1 << 20, log.log_end_offset)
    assert held is not None
    held_bytes = held.read()
    assert await world.cleaner.clean_dirtiest()
    assert not await world.cleaner.clean_dirtiest()
    after = records_of(log)
    assert values_of(log) == values
    assert set(after) < set(before)
    assert len(after) < 20
    assert log.size_bytes < size / 2
    assert held.read() == held_bytes
    assert first.log.file is not None
    held.release()
    assert first.log.file is None
    assert log.segments[0] is not first
    for offset in range(log.log_end_offset):
        region = log.read(offset, 1, log.log_end_offset)
        assert region is not None
        data = memoryview(region.read())
        region.release()
        first = next(iterate_batches(data, 0, len(data)))[1]
        assert first.next_offset > offset
        assert decode_records(data, 0, first.size, inflated_bytes_max=CAP)[0] in after
    assert values_of(world.reopen()) == values
    assert world.disk.exists(CLEANER_OFFSETS)
    assert "log_compacted" in [name for name, _ in world.events]


async def test_a_restarted_cleaner_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.fill(60)
    assert await world.cleaner.clean_dirtiest()
    again = LogCleaner(world.context, lambda: [world.log], lambda log: log.log_end_offset, CleanerConfig())
    assert not await again.clean_dirtiest()
    await world.fill(60)
    assert await again.clean_dirtiest()


async def test_nothing_at_or_past_the_high_watermark_is_touched(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.fill(60)
    world.high_watermark = 30
    before = records_of(world.log)
    assert await world.cleaner.clean_dirtiest()
    assert [r for r in records_of(world.log) if r.offset >= 30] == [r for r in before if r.offset >= 30]
    assert len(records_of(world.log)) < len(before)
    world.high_watermark = 0
    assert not await world.cleaner.clean_dirtiest()


async def test_logs_that_are_not_compacted_are_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path, LogConfig(segment_bytes=700))
    await world.fill(60)
    assert not await world.cleaner.clean_dirtiest()


async def test_the_compacted_logs_of_a_directory_are_known_without_a_look_at_all(tmp_path: Path) -> None:
    world = World(tmp_path, LogConfig(segment_bytes=700))
    key, compacted = (world.log.topic, world.log.partition), world.context.compacted
    assert key not in compacted
    world.log.update_config(LogConfig(cleanup_policy=("compact",)))
    assert list(compacted) == [key]
    world.log.update_config(LogConfig())
    assert not compacted
    world.log.update_config(LogConfig(cleanup_policy=("compact", "delete")))
    world.log.close()
    assert not compacted


async def test_a_small_map_takes_several_passes(tmp_path: Path) -> None:
    world = World(tmp_path, cleaner=CleanerConfig(dedupe_buffer_bytes=3 * 223))
    await world.fill(60, keys=12)
    values = values_of(world.log)
    passes = 0
    while await world.cleaner.clean_dirtiest():
        passes += 1
        assert passes < 50
    assert passes > 3
    assert values_of(world.log) == values


async def test_a_log_that_is_cut_during_a_pass_keeps_its_segments(tmp_path: Path) -> None:
    world = World(tmp_path, cleaner=CleanerConfig(io_bytes_per_second_max=10_000))
    await world.fill(60)
    task = asyncio.ensure_future(world.cleaner.clean_dirtiest())
    await until_it_writes(world)
    await truncate(world.log, 40)
    before = records_of(world.log)
    assert not await task
    assert records_of(world.log) == before
    assert not [name for name in world.disk.list("t-0") if name.endswith((".cleaned", ".swap"))]


async def test_a_cleaner_that_is_stopped_leaves_the_log_whole(tmp_path: Path) -> None:
    world = World(tmp_path, cleaner=CleanerConfig(io_bytes_per_second_max=10_000))
    await world.fill(60)
    before = records_of(world.log)
    task = asyncio.ensure_future(world.cleaner.run())
    await until_it_writes(world)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert records_of(world.log) == before
    assert not [name for name in world.disk.list("t-0") if name.endswith(".cleaned")]


async def test_a_damaged_log_is_named_and_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.fill(60)
    first = world.log.segments[0]
    file = world.disk.open(first.stem + ".log")
    file.pwrite(b"\xff", first.size - 1)
    file.close()
    names = world.disk.list("t-0")
    assert await world.cleaner.clean_dirtiest()
    assert world.cleaner.uncleanable_count == 1
    assert world.disk.list("t-0") == names
    assert not await world.cleaner.clean_dirtiest()
    assert "log_uncleanable" in [name for name, _ in world.events]


@pytest.mark.parametrize("suffix", [".cleaned", ".swap"])
async def test_names_of_other_files_do_not_disturb(tmp_path: Path, suffix: str) -> None:
    world = World(tmp_path)
    await world.fill(20)
    values = values_of(world.log)
    world.disk.open(f"t-0/{99:020d}.index{suffix}", create=True).close()
    assert values_of(world.reopen()) == values


async def test_a_crash_at_any_point_loses_no_value(tmp_path: Path) -> None:
    """The second pass melts leftovers together, so its swaps replace several segments by one."""
    merged = 0
    for fuse in range(200):
        world = World(tmp_path / str(fuse))
        await world.fill(40, keys=12)
        assert await world.cleaner.clean_dirtiest()
        await world.fill(30, keys=3)
        values, end, before = values_of(world.log), world.log.log_end_offset, len(world.log.segments)
        world.disk.fuse = fuse
        crashed = False
        try:
            assert await world.cleaner.clean_dirtiest()
        except Crash:
            crashed = True
        found = world.reopen()
        assert values_of(found) == values, f"after {fuse} operations"
        assert found.log_end_offset == end
        merged += len(found.segments) < before
        batches = offsets_on_disk(world, found)
        assert batches == sorted(set(batches)), f"after {fuse} operations"
        assert not [name for name in world.disk.list("t-0") if name.endswith((".cleaned", ".swap", ".deleted"))]
        world.close()
        if not crashed:
            break
    assert not crashed
    assert fuse > 20
    assert 1 < merged < fuse


def offsets_on_disk(world: World, log: PartitionLog) -> list[int]:
    """The base offsets of all batches of all segment files, file by file."""
    found = []
    for segment in log.segments:
        file = world.disk.open(segment.stem + ".log")
        data = memoryview(file.pread(file.size(), 0)) if file.size() else memoryview(b"")
        file.close()
        found += [header.base_offset for _, header in iterate_batches(data, 0, len(data))]
    return found


@pytest.mark.parametrize("late", [".log", ".index", ".timeindex", ".txnindex"])
def test_new_segments_hold_only_when_all_their_files_are_renamed(tmp_path: Path, late: str) -> None:
    disk = UnsyncedDisk(tmp_path)
    disk.make_directory("t-0")
    suffixes = (".log", ".index", ".timeindex", ".txnindex")
    for suffix in suffixes:
        for name in (suffix, suffix + (".cleaned" if suffix == late else ".swap")):
            file = disk.open(f"t-0/{7:020d}{name}", create=True)
            if name == suffix:
                file.pwrite(b"old", 0)
            file.close()
    disk.open(f"t-0/{3:020d}.log.deleted", create=True).close()
    names = settle(disk, "t-0", disk.list("t-0"))
    assert names == disk.list("t-0") == sorted(f"{7:020d}{suffix}" for suffix in suffixes)
    assert [disk.file_size(f"t-0/{name}") for name in names] == [3] * 4


async def test_logs_that_are_not_due_are_not_looked_into_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.fill(60)
    assert await world.cleaner.clean_dirtiest()
    looked = world.high_watermarks_asked
    for _ in range(3):
        assert not await world.cleaner.clean_dirtiest()
    assert world.high_watermarks_asked <= looked + 1
    await world.fill(60)
    assert await world.cleaner.clean_dirtiest()


async def test_a_choice_among_many_logs_is_made_in_slices(tmp_path: Path) -> None:
    world = World(tmp_path)
    pacer = world.context.pacer
    logs = [world.log] * 20_000
    many = LogCleaner(world.context, lambda: logs, lambda log: log.log_end_offset, CleanerConfig())
    assert not await many.clean_dirtiest()
    assert pacer.slices >= 20
    assert pacer.costliest <= 2 * SLICE_COST
