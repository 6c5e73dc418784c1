"""fsync off the loop for all logs of one directory: what a flush includes, its turns, and the flush of a clean stop.

One turn takes all logs that requested a flush, fsyncs their files in a thread and reports each log's durable end; later
requests wait for the next turn. No other code flushes a log in use, because two threads could replace the same small
file, or report an end whose directory entry the other has yet to make durable. A failed fsync is never retried, because
the kernel may have dropped the pages.
"""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from msgspec import Struct, field

from common.disk_operations import DiskOperations
from common.errors import ErrorCode, ProtocolError
from common.lifecycle import OnDemand
from common.pacing import Pacer
from common.ports import Clock, Disk
from common.whole_files import join
from storage.disk.checkpoint_files import LEADER_EPOCHS
from storage.disk.directory_health import OUT_OF_FILES_PAUSE_S, DirectoryHealth, SyncFailed
from storage.disk.own_files import replace_own_file

JOBS_PER_TURN_MAX = 64
CHUNK_LOGS = 64  # per job, for a clean stop
THREADS = 4  # for a clean stop: the device merges concurrent fsyncs

_logger = logging.getLogger(__name__)


class FlushDepth(enum.IntEnum):
    """How much of a log a flush includes; the recovery point moves past data that is flushed with its indexes."""

    CLOSED = 0  # closed segments with their indexes
    DATA = 1  # and the batches of the active segment
    COMPLETE = 2  # and its indexes


class FlushJob(Struct):
    """What one log needs flushed; `generation` detects a truncation meanwhile."""

    directory: str
    generation: int
    upto_offset: int
    recovery_point: int
    directories: list[str] = field(default_factory=list)  # whose names to make durable, after the files
    epochs: bytes | None = None  # leader-epoch-checkpoint
    paths: list[str] = field(default_factory=list)  # files to fsync

    def run(self, disk: Disk, log: "Flushable", operations: DiskOperations, synced: set[str] | None = None) -> None:
        """Run in a thread. Files that were deleted meanwhile are skipped; OSError for anything else, also if `log` is
        closed: then another log may have the directory's name.

        Each step that may wait for the device is one of `operations`. `synced`: shared by jobs that start together:
        directories that one of them has already made durable.
        """
        synced = set() if synced is None else synced
        for path in self.paths:
            try:
                file = disk.open(path)
            except FileNotFoundError:
                continue
            try:
                with operations.operation(f"flush {path}"):
                    file.fsync()
            except OSError as error:
                raise SyncFailed(error.errno, error.strerror, path) from error
            finally:
                file.close()
        if self.epochs is not None:
            with operations.operation(f"flush {self.directory}"):
                replace_own_file(disk, join(self.directory, LEADER_EPOCHS), self.epochs, log)
                self._sync_directory(disk, self.directory)
            synced.add(self.directory)
        for directory in self.directories:
            if directory not in synced:
                with operations.operation(f"flush {directory}"):
                    self._sync_directory(disk, directory)
                synced.add(directory)

    @staticmethod
    def _sync_directory(disk: Disk, directory: str) -> None:
        try:
            disk.sync_directory(directory)
        except FileNotFoundError:  # renamed meanwhile, with the log
            raise
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror, directory) from error


class Flushable(Protocol):
    """A log as the flusher sees it."""

    @property
    def closed(self) -> bool: ...

    def plan_flush(self, depth: FlushDepth) -> FlushJob | None:
        """What to flush now, None if everything is on the device."""
        ...

    def flush_finished(self, job: FlushJob) -> None: ...

    def flush_postponed(self, job: FlushJob) -> None:
        """The job was not done: the next one must include its work."""
        ...


class Stopping(Flushable, Protocol):
    """A log, at a clean stop."""

    @property
    def directory(self) -> str: ...

    @property
    def is_complete(self) -> bool:
        """Whether all of it is on the device, indexes and producers included."""
        ...

    def write_end_snapshot(self) -> bool:
        """Write the producer snapshot at the log's end, of many producers a little later. Returns whether it was
        missing."""
        ...

    def plan_stop(self, *, is_new: bool) -> FlushJob | None:
        """A job for everything; `is_new`: the producer snapshot at the end is new."""
        ...


class LogFlusher:
    """One per log directory; calls on the loop."""

    __slots__ = ("_clock", "_disk", "_due", "_health", "_turn", "_waiting", "_wanted", "_work", "flush_count")

    def __init__(self, disk: Disk, clock: Clock, health: DirectoryHealth) -> None:
        self._disk = disk
        self._clock = clock
        self._health = health
        self._wanted: dict[Flushable, FlushDepth] = {}
        self._waiting: dict[Flushable, list[asyncio.Future[bool]]] = {}  # for the turn that takes the log
        self._due: dict[Flushable, float] = {}  # logs under flush.ms with unflushed bytes -> when to flush
        self._work = OnDemand("flush", self._run, self._stopped)
        self._turn: asyncio.Future[None] | None = None
        self.flush_count = 0

    def note_unflushed(self, log: Flushable, flush_ms: int) -> None:
        """`log` has unflushed bytes; `request_due` requests their flush in time."""
        if log not in self._due:
            self._due[log] = self._clock.monotonic() + flush_ms / 1000

    def request_due(self) -> None:
        """Once per interval: flush logs whose flush.ms has passed."""
        if self._due:
            now_s = self._clock.monotonic()
            for log in [log for log, due_s in self._due.items() if due_s <= now_s]:
                del self._due[log]
                self.request(log, FlushDepth.DATA)

    def request(self, log: Flushable, depth: FlushDepth) -> None:
        """Flush what `log` has written by the time its turn comes."""
        self._wanted[log] = max(depth, self._wanted.get(log, depth))
        if self._health.offline is None:
            self._work.begin()

    async def flush(self, log: Flushable, depth: FlushDepth) -> bool:
        """As `request`, and wait for the turn that takes `log`. Returns whether there was anything to flush.

        Raises ProtocolError(KAFKA_STORAGE_ERROR); a flush that failed only for lack of files or room is retried anyway.
        """
        if self._health.offline is not None:
            raise self._health.error()
        flushed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(log, []).append(flushed)
        self.request(log, depth)
        return await flushed

    async def _run(self) -> None:
        try:
            while self._wanted and self._health.offline is None:
                logs = dict(islice(self._wanted.items(), JOBS_PER_TURN_MAX))
                for log in logs:
                    del self._wanted[log]
                await self._take_turn(logs)
        finally:
            if self._health.offline is not None:
                for log in list(self._waiting):
                    _refuse(self._waiting.pop(log), self._health.error())

    async def _take_turn(self, logs: dict[Flushable, FlushDepth]) -> None:
        planned = [(log, log.plan_flush(depth)) for log, depth in logs.items() if not log.closed]
        jobs = [(log, job) for log, job in planned if job is not None]
        waiting = {log: self._waiting.pop(log) for log in logs if log in self._waiting}
        try:
            if jobs:
                self._turn = asyncio.ensure_future(asyncio.to_thread(self._run_jobs, jobs))
                await self._turn
                self.flush_count += len(jobs)
                for log, job in jobs:
                    if not log.closed:
                        log.flush_finished(job)
            flushed = {log for log, _ in jobs}
            for log, waiters in waiting.items():
                _settle(waiters, log in flushed)
        except OSError as error:
            refusal = self._health.refused("flush", error)
            for waiters in waiting.values():
                _refuse(waiters, refusal)
            if self._health.offline is not None:
                return
            for log, job in jobs:
                log.flush_postponed(job)
            for log, depth in logs.items():
                self._wanted[log] = max(depth, self._wanted.get(log, depth))
            await asyncio.sleep(OUT_OF_FILES_PAUSE_S)
        finally:
            self._turn = None
            for waiters in waiting.values():
                _refuse(waiters, ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "the flush was broken off"))

    def _run_jobs(self, jobs: list[tuple[Flushable, FlushJob]]) -> None:
        synced: set[str] = set()
        for log, job in jobs:
            try:
                job.run(self._disk, log, self._health.operations, synced)
            except OSError:
                if not log.closed:  # deleted meanwhile: its directory has another name
                    raise

    async def flush_completely(
        self, logs: Sequence[Stopping], snapshots_idle: Callable[[], Awaitable[None]], pacer: Pacer
    ) -> bool:
        """Write and flush `logs` to their ends for a clean stop, a few threads at a time. Nothing is appended
        meanwhile. Returns whether all are complete. Raises OSError and ProtocolError."""
        lacking: dict[Stopping, None] = {}
        for at in range(0, len(logs), CHUNK_LOGS):
            lacking |= dict.fromkeys(log for log in logs[at : at + CHUNK_LOGS] if log.write_end_snapshot())
            await pacer.rest("clean-stop")
        if lacking:  # many producers are written later, and request a flush of their own
            await snapshots_idle()
            await self.idle()
        starts = iter(range(0, len(logs), CHUNK_LOGS))
        incomplete: list[str] = []

        async def work(remaining: Iterator[int]) -> None:
            for at in remaining:
                planned = [(log, log.plan_stop(is_new=log in lacking)) for log in logs[at : at + CHUNK_LOGS]]
                chunk = [(log, job) for log, job in planned if job is not None]
                if chunk:
                    await asyncio.to_thread(self._run_last_jobs, chunk)
                await pacer.rest("clean-stop")
                for log, job in chunk:
                    log.flush_finished(job)
                incomplete.extend(log.directory for log, _ in planned if not log.is_complete)

        await asyncio.gather(*[asyncio.create_task(work(starts)) for _ in range(THREADS)])
        if incomplete:
            _logger.error("the stop is not clean", extra={"logs": len(incomplete), "directory": incomplete[0]})
        return not incomplete

    def _run_last_jobs(self, jobs: list[tuple[Stopping, FlushJob]]) -> None:
        synced: set[str] = set()
        for log, job in jobs:
            job.run(self._disk, log, self._health.operations, synced)

    def _stopped(self, error: BaseException) -> None:
        self._health.fail(f"flushing stopped: {error!r}")

    async def turn_over(self) -> None:
        """Return when the current turn's writes are done; later plans use the current state."""
        if self._turn is not None:
            await asyncio.wait((self._turn,))

    async def idle(self) -> None:
        """Return when no flush is requested."""
        await self._work.idle()


def _settle(waiters: list[asyncio.Future[bool]], is_flushed: bool) -> None:
    for future in waiters:
        if not future.done():
            future.set_result(is_flushed)


def _refuse(waiters: list[asyncio.Future[bool]], error: ProtocolError) -> None:
    for future in waiters:
        if not future.done():
            future.set_exception(error)
