"""A log directory under test: a disk that fails on demand, an audit that remembers, batches made to measure."""

import errno
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from common.directory_config import DirectoryConfig
from common.errors import ProtocolError
from common.machine import MachineClock, MachineNetwork
from common.machine_disk import MachineFile
from common.pacing import Work
from common.ports import Buffer, Ports
from records.batch import BatchHeader, read_header
from records.builder import build_batch
from records.control import MarkerKind
from records.record import Record
from storage.directory.log_directory import LogDirectory
from storage.disk.checkpoint_files import HIGH_WATERMARKS, TopicPartition
from storage.log.log_config import LogConfig
from storage.log.partition_log import Appended, PartitionLog, TimestampHit
from tests.records.control_batches import build_control_batch
from tests.storage.memory_trail import MemoryTrail
from tests.storage.segments_on_disk import UnsyncedDisk

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
TOPIC_ID = bytes(range(16))
NOW_MS = 1_700_000_000_000
FOREVER = LogConfig(producer_id_expiration_ms=2**60, retention_ms=-1)


async def checkpoint_high_watermarks(directory: LogDirectory, offsets: Mapping[TopicPartition, int]) -> bool:
    """As if all had just moved to `offsets`."""

    def collect(into: dict[TopicPartition, int]) -> Work[None]:
        into.update(offsets)
        yield len(offsets)

    directory.context.checkpoints.note(HIGH_WATERMARKS)
    return await directory.checkpoint_high_watermarks(collect)


class FaultyFile(MachineFile):
    """Asks its disk before each write."""

    __slots__ = ("disk", "path")

    def __init__(self, fd: int, disk: "FaultyDisk", path: str) -> None:
        super().__init__(fd)
        self.disk = disk
        self.path = path

    def pread(self, size: int, position: int) -> bytes:
        data = super().pread(size, position)
        self.disk.bytes_read[self.path] += len(data)
        return data

    def pread_into(self, view: memoryview, position: int) -> int:
        size = super().pread_into(view, position)
        self.disk.bytes_read[self.path] += size
        return size

    def pwrite(self, data: Buffer, position: int) -> int:
        self.disk.changes.append((self.path, position))
        return super().pwrite(self.disk.admitted(data), position)

    def truncate(self, size: int) -> None:
        self.disk.changes.append((self.path, size))
        super().truncate(size)

    def close(self) -> None:
        if self.fd >= 0:
            self.disk.files_open -= 1
        super().close()

    def fsync(self) -> None:
        self.disk.fsyncs.append(self.path)
        with self.disk.syncing(self.path):
            if self.disk.fsync_gate is not None:
                self.disk.fsync_gate.wait(10)
            if self.disk.fsync_errno is not None:
                raise OSError(self.disk.fsync_errno, "injected")


class OpenGate:
    """Whoever opens one of `paths` stands still before, or after, it is open, until `go_on` is set."""

    def __init__(self, paths: Sequence[str], *, before: bool) -> None:
        self.paths = paths
        self.before = before
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.threads: list[int] = []

    def pass_through(self) -> None:
        self.threads.append(threading.get_ident())
        self.reached.set()
        assert self.go_on.wait(10)


class SyncWatch:
    """Counts how many threads at once make durable what `of` chooses; they wait there while `open` is cleared."""

    def __init__(self, of: Callable[[str], bool]) -> None:
        self.of = of
        self.open = threading.Event()
        self.open.set()
        self.most = 0
        self._running = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
        self.open.wait(10)

    def end(self) -> None:
        with self._lock:
            self._running -= 1


class Killed(BaseException):
    """The process is gone: nothing catches this."""


class FaultyDisk(UnsyncedDisk):
    """Everything works until a field says otherwise."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.write_errno: int | None = None
        self.writes_refused = 0
        self.fsync_errno: int | None = None
        self.bytes_per_write: int | None = None  # short writes
        self.slow_s = 0.0  # what the clock shows a write to take
        self.write_gate: threading.Event | None = None  # writes off the loop wait for it
        self.fsync_gate: threading.Event | None = None
        self.open_gate: OpenGate | None = None
        self.loop_thread = threading.get_ident()
        self.loop_writes = 0
        self.loop_syncs = 0
        self.fsyncs: list[str] = []
        self.changes: list[tuple[str, int]] = []  # path and position of each write, path and size of each truncation
        self.sync_watch: SyncWatch | None = None
        self.opened: list[str] = []
        self.bytes_read = Counter[str]()  # by path
        self.renames_left: int | None = None  # then the process is killed
        self.removals_left: int | None = None  # the same
        self.clock = ShiftedClock()
        self.free: int | None = None
        self.looks = 0  # for free bytes
        self.look_gate: threading.Event | None = None  # they wait for it with what they have found
        self.files_max: int | None = None  # how many the system lets be open
        self.lacks_files_for: str | None = None  # no more files whose names end so
        self.files_open = 0

    def admitted(self, data: Buffer) -> Buffer:
        if threading.get_ident() == self.loop_thread:
            self.loop_writes += 1
        elif self.write_gate is not None:
            self.write_gate.wait(10)
        if self.write_errno is not None:
            self.writes_refused += 1
            raise OSError(self.write_errno, "injected")
        self.clock.shift_s += self.slow_s
        return data if self.bytes_per_write is None else memoryview(data)[: self.bytes_per_write]

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        is_refused = self.lacks_files_for is not None and path.endswith(self.lacks_files_for)
        if is_refused or (self.files_max is not None and self.files_open >= self.files_max):
            raise OSError(errno.EMFILE, "injected")
        self.files_open += 1
        self.opened.append(path)
        gate = self.open_gate if self.open_gate is not None and path in self.open_gate.paths else None
        if gate is not None and gate.before:
            gate.pass_through()
        file = FaultyFile(super().open(path, create=create).fd, self, path)
        if gate is not None and not gate.before:
            gate.pass_through()
        return file

    @contextmanager
    def syncing(self, path: str) -> Iterator[None]:
        self.loop_syncs += threading.get_ident() == self.loop_thread
        watch = self.sync_watch if self.sync_watch is not None and self.sync_watch.of(path) else None
        if watch is None:
            yield
            return
        watch.begin()
        try:
            yield
        finally:
            watch.end()

    def sync_directory(self, path: str) -> None:
        with self.syncing(path):
            super().sync_directory(path)

    def rename(self, source: str, target: str) -> None:
        if self.renames_left is not None:
            self.renames_left -= 1
            if self.renames_left < 0:
                raise Killed
        super().rename(source, target)

    def remove(self, path: str) -> None:
        if self.removals_left is not None:
            self.removals_left -= 1
            if self.removals_left < 0:
                raise Killed
        super().remove(path)

    def free_bytes(self) -> int:
        found = super().free_bytes() if self.free is None else self.free
        self.looks += 1
        if self.look_gate is not None:
            self.look_gate.wait(10)
        return found


class ShiftedClock(MachineClock):
    """Real time plus what the test adds."""

    def __init__(self) -> None:
        self.shift_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.shift_s

    def wall_ms(self) -> int:
        return NOW_MS + int(self.shift_s * 1000)


class Workbench:
    """One broker's directory that is started again and again; tests run inside a loop."""

    def __init__(self, root: Path, config: LogConfig = FOREVER, limits: DirectoryConfig | None = None) -> None:
        self.root = root
        self.disk = FaultyDisk(root)
        self.clock = self.disk.clock
        self.config = config
        self.limits = limits or DirectoryConfig(free_bytes_min=0)
        self.audit = MemoryTrail()
        self.failures: list[str] = []  # why the directory went offline
        self.directory: LogDirectory

    @property
    def audit_lines(self) -> list[tuple[str, dict[str, object]]]:
        return self.audit.lines

    @property
    def events(self) -> list[str]:
        return self.audit.events

    async def start(self) -> LogDirectory:
        self.ports = Ports(MachineNetwork(), self.disk, self.clock, random.Random(1))
        self.directory = LogDirectory(self.ports, "", 1, self.audit, self.limits, on_failed=self.failures.append)
        await self.directory.open(CLUSTER)
        await self.directory.recover(lambda topic: self.config)
        return self.directory

    async def log(self, topic: str = "t", partition: int = 0) -> PartitionLog:
        """Started if need be, with this log in it."""
        if not hasattr(self, "directory"):
            await self.start()
        return self.directory.create_log(topic, partition, TOPIC_ID, self.config)

    async def restart(self, *, clean: bool) -> PartitionLog:
        if clean:
            await self.directory.close_clean(7)
        else:
            await self.directory.close()
        await self.start()
        return await self.log()


def produced(
    count: int = 1,
    *,
    size: int = 20,
    timestamps: Sequence[int] | None = None,
    producer_id: int = -1,
    epoch: int = 0,
    sequence: int = 0,
    transactional: bool = False,
) -> bytearray:
    """A client's batch of `count` records."""
    times = timestamps or [NOW_MS] * count
    return build_batch(
        [Record(at, times[at], b"k", b"v" * size) for at in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1,
        transactional=transactional,
    )


def marker(kind: MarkerKind, producer_id: int, epoch: int = 0) -> bytearray:
    return build_control_batch(
        kind, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=1, timestamp=NOW_MS
    )


def append(log: PartitionLog, batch: bytearray, epoch: int = 1) -> Appended:
    return log.append_as_leader(batch, memoryview(batch), 0, len(batch), epoch, NOW_MS)


async def truncate(log: PartitionLog, offset: int) -> int:
    """As a follower does: once more, when checkpoints had to be withdrawn first."""
    try:
        return log.truncate_to(offset)
    except ProtocolError:
        await log.context.checkpoints.idle()
        return log.truncate_to(offset)


def read_all(log: PartitionLog, *, bytes_max: int = 1 << 20, until: int | None = None) -> list[BatchHeader]:
    """From the log's start, fetch by fetch as a consumer does; checks that regions hold whole batches."""
    offset, until = log.log_start_offset, log.log_end_offset if until is None else until
    found = []
    while (region := log.read(offset, bytes_max, until)) is not None:
        data = region.read()
        region.release()
        assert len(data) == region.length
        at = 0
        while at < len(data):
            header = read_header(data, at)
            assert offset < header.next_offset <= until
            found.append(header)
            offset = header.next_offset
            at += header.size
        assert at == len(data)
    return found


ENOSPC, EIO = errno.ENOSPC, errno.EIO


def resolved(hit: TimestampHit | None) -> tuple[int, int, int] | None:
    """(timestamp, offset, leader epoch) of what a look-up by time found."""
    if hit is None:
        return None
    try:
        return hit.resolve()
    finally:
        hit.region.release()
