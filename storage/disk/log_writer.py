"""Writes of all logs of one directory: direct, or copied and done in order by a thread while the disk is slow.

The first write that takes too long blocks, like any call; everything after it goes to the thread until the thread has
caught up and its last write was fast again. So a stuck disk stops its partitions but never the loop. Invariant: while
anything waits, nothing is written directly, so each file is written in order.
"""

import asyncio
import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from common.errors import ErrorCode, ProtocolError
from common.lifecycle import OnDemand
from common.ports import Buffer, Clock, Disk, File
from common.queue_time import QueueTime
from common.whole_files import write_fully
from storage.disk.directory_health import OUT_OF_FILES_PAUSE_S, DirectoryHealth, is_out_of_files
from storage.disk.open_files import FileHandle

WRITES_PER_TURN_MAX = 1_024
# bytes that may be written on the loop when the disk is fast again: about two milliseconds
CATCH_UP_BYTES_MAX = 4 << 20


class WriteOwner(Protocol):
    """The log of a postponed write."""

    @property
    def closed(self) -> bool: ...

    def write_finished(self, tag: object) -> None:
        """Its bytes are in the page cache; called on the loop, in order."""
        ...


class _Postponed(NamedTuple):
    owner: WriteOwner
    tag: object
    handle: FileHandle
    file: File | None
    data: bytes
    position: int


class LogWriter:
    """One per log directory; all calls on the loop."""

    __slots__ = (
        "_clock",
        "_disk",
        "_health",
        "_monotonic",
        "_queue",
        "_slow_write_s",
        "_unwritten_bytes_max",
        "_waiting",
        "_work",
        "slow",
        "slow_count",
        "unwritten_bytes",
    )

    def __init__(
        self, disk: Disk, clock: Clock, health: DirectoryHealth, slow_write_s: float, unwritten_bytes_max: int
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._monotonic = clock.monotonic
        self._health = health
        self._slow_write_s = slow_write_s
        self._unwritten_bytes_max = unwritten_bytes_max
        self._queue: deque[_Postponed] = deque()
        self._waiting = QueueTime(clock.monotonic)
        self._work = OnDemand("slow-writes", self._drain, self._stopped)
        self.slow = False
        self.slow_count = 0  # how often the disk became slow
        self.unwritten_bytes = 0

    @property
    def waited_s(self) -> float:
        """Seconds that all postponed writes have waited until they were done, added up."""
        return self._waiting.seconds

    def write_at_once(self) -> None:
        """Postpone nothing any more, however long a write takes: a clean stop has waited for all postponed writes, and
        the rest must be written."""
        self.slow = False
        self._slow_write_s = math.inf

    def admit(self, size: int) -> None:
        """Raise ProtocolError(KAFKA_STORAGE_ERROR) if `size` more bytes would exceed the budget."""
        if self.slow and self.unwritten_bytes + size > self._unwritten_bytes_max:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is too slow")

    def prepare(self, handle: FileHandle) -> None:
        """Open its file now, so that a later write cannot fail for lack of file descriptors. Raises as `write`."""
        if handle.file is None and not self.slow:
            try:
                handle.use(create=True)
            except OSError as error:
                raise self._health.refused(f"open {handle.path}", error) from error

    def write(self, handle: FileHandle, data: Buffer, position: int, owner: WriteOwner, tag: object = None) -> bool:
        """Return whether the bytes are in the page cache; if not, `owner.write_finished(tag)` follows, in order.

        Creates the file if it does not exist. Raises ProtocolError(KAFKA_STORAGE_ERROR) if the disk fails, which takes
        the directory offline, and if no more files can be opened.
        """
        if self.slow:
            self._postpone(handle, data, position, owner, tag)
            return False
        monotonic = self._monotonic
        started = monotonic()
        try:
            file = handle.use(create=True)
            if file.pwrite(data, position) != len(data):
                write_fully(file, data, position)
        except OSError as error:
            raise self._health.refused(f"write {handle.path}", error) from error
        if monotonic() - started > self._slow_write_s:
            self.slow = True
            self.slow_count += 1
        return True

    def _postpone(self, handle: FileHandle, data: Buffer, position: int, owner: WriteOwner, tag: object) -> None:
        if self._health.offline is not None:
            raise self._health.error()
        copied = bytes(data)
        handle.pin()  # the thread may use its file: eviction must not close it
        self._queue.append(_Postponed(owner, tag, handle, handle.file, copied, position))
        self._waiting.changed(1)
        self.unwritten_bytes += len(copied)
        self._work.begin()

    async def _drain(self) -> None:
        queue = self._queue
        while queue and self._health.offline is None:
            turn = [queue.popleft() for _ in range(min(len(queue), WRITES_PER_TURN_MAX))]
            try:
                slowest = await asyncio.to_thread(self._write_all, turn)
                self._finish(turn)
                if slowest <= self._slow_write_s and self.unwritten_bytes <= CATCH_UP_BYTES_MAX:
                    self._catch_up()
            except OSError as error:
                if is_out_of_files(error):  # bytes that were already written are written again, unchanged
                    self._health.out_of_files("writes that wait for the disk")
                    queue.extendleft(reversed(turn))
                    await asyncio.sleep(OUT_OF_FILES_PAUSE_S)
                    continue
                self._health.fail(f"write: {error}")
        if self._health.offline is not None:  # waiting bytes will never be written
            while queue:
                queue.popleft().handle.unpin()
            self._waiting.is_now(0)
            self.unwritten_bytes = 0

    def _finish(self, writes: Iterable[_Postponed]) -> None:
        for write in writes:
            self._waiting.changed(-1)
            self.unwritten_bytes -= len(write.data)
            write.handle.unpin()
            if not write.owner.closed:
                write.owner.write_finished(write.tag)

    def _catch_up(self) -> None:
        """Return to direct writes: under load, something always waits at the end of a thread's turn."""
        rest: list[_Postponed] = []
        seconds = 0.0
        while self._queue and seconds <= self._slow_write_s:
            write = self._queue.popleft()
            rest.append(write)
            seconds = self._write_all([write])
        self.slow = seconds > self._slow_write_s
        self._finish(rest)  # last, because the owners' next appends may be written directly

    def _stopped(self, error: BaseException) -> None:
        self._health.fail(f"writing stopped: {error!r}")

    def _write_all(self, writes: list[_Postponed]) -> float:
        """Runs mostly in the thread. Returns the seconds of the slowest write."""
        slowest = 0.0
        for owner, _, handle, file, data, position in writes:
            if owner.closed:
                continue
            started = self._clock.monotonic()
            try:
                with self._health.operations.operation(f"write {handle.path}"):
                    self._write_one(handle.path, file, data, position)
            except OSError:
                if not owner.closed:  # deleted meanwhile: its directory has another name
                    raise
            slowest = max(slowest, self._clock.monotonic() - started)
        return slowest

    def _write_one(self, path: str, file: File | None, data: bytes, position: int) -> None:
        if file is not None:
            write_fully(file, data, position)
            return
        file = self._disk.open(path, create=True)
        try:
            write_fully(file, data, position)
        finally:
            file.close()

    async def drained(self) -> None:
        """Return when no write waits, whether written or dropped."""
        await self._work.idle()
