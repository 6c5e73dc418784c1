"""Producer snapshots of many producers: encoded in slices of the loop, written in a thread, then given their name.

A roll only freezes the producers, and they go on. Until the snapshot has its name the recovery point stays below it: a
start after a loss of power replays the log from an older one instead, and no segment goes in the new one's favour.
"""

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

from common.lifecycle import OnDemand
from common.pacing import Pacer
from common.ports import Disk
from common.whole_files import TEMPORARY_SUFFIX
from storage.disk.directory_health import OUT_OF_FILES_PAUSE_S, DirectoryHealth
from storage.producers.frozen_producers import FrozenProducers
from storage.producers.producer_snapshot import SnapshotParts, write_parts
from storage.producers.producer_state import ProducerStates
from storage.segments.segment import SNAPSHOT_SUFFIX, file_stem

AT_ONCE_MAX = 128  # so many producers take about half a millisecond
WAITING_MAX = 4  # of one log; it rolls faster than they are written, so the oldest that was not begun is left out


class SnapshotOwner(Protocol):
    """A log."""

    producers: ProducerStates

    @property
    def closed(self) -> bool: ...

    @property
    def directory(self) -> str: ...

    def wants_snapshot(self, offset: int, generation: int) -> bool:
        """Not where there is one, once its front has gone past it, or once it was cut since that generation."""
        ...

    def snapshot_settled(self, offset: int, *, is_named: bool) -> None:
        """The snapshot at `offset` has its name, or is not to come any more."""
        ...


class _Pending(NamedTuple):
    offset: int
    generation: int
    producers: FrozenProducers


class SnapshotWrites:
    """One per log directory; calls on the loop."""

    __slots__ = ("_disk", "_health", "_pacer", "_pending", "_work", "written_count")

    def __init__(self, disk: Disk, health: DirectoryHealth, pacer: Pacer) -> None:
        self._disk = disk
        self._health = health
        self._pending: dict[SnapshotOwner, deque[_Pending]] = {}  # oldest first; the first may be under way
        self._work = OnDemand("producer-snapshots", self._run, self._stopped)
        self._pacer = pacer
        self.written_count = 0

    def begin(self, log: SnapshotOwner, offset: int, generation: int) -> None:
        """Write the producers of `log` as they stand now, at `offset` in this generation of it."""
        waiting = self._pending.setdefault(log, deque())
        if waiting and waiting[-1].offset == offset and waiting[-1].generation == generation:
            return
        waiting.append(_Pending(offset, generation, log.producers.freeze()))
        if len(waiting) > WAITING_MAX:
            del waiting[1]
        self._work.begin()

    def least(self, log: SnapshotOwner) -> int | None:
        """The offset of the oldest snapshot of `log` that has no name yet."""
        waiting = self._pending.get(log)
        return waiting[0].offset if waiting else None

    async def _run(self) -> None:
        while self._pending and self._health.offline is None:
            log = next(iter(self._pending))
            waiting = self._pending.pop(log)
            self._pending[log] = waiting  # logs take turns
            try:
                is_named = await self._write(log, waiting[0])
            except OSError as error:
                if not log.closed:
                    self._health.refused(f"write a snapshot in {log.directory}", error)
                    await asyncio.sleep(OUT_OF_FILES_PAUSE_S)
                    continue
            pending = waiting.popleft()
            if not waiting:
                del self._pending[log]
            if not log.closed:
                log.snapshot_settled(pending.offset, is_named=is_named)

    async def _write(self, log: SnapshotOwner, pending: _Pending) -> bool:
        """Whether it has its name now."""
        if not _is_wanted(log, pending):
            return False
        parts = await self._pacer.run(pending.producers.encode(), "producer-snapshots", own=True)
        path = file_stem(log.directory, pending.offset) + SNAPSHOT_SUFFIX
        temporary = path + TEMPORARY_SUFFIX
        await asyncio.to_thread(self._write_parts, temporary, parts)
        if log.closed:  # its directory may have another name, which takes the file along
            return False
        if not _is_wanted(log, pending):
            self._disk.remove(temporary)
            return False
        self._disk.rename(temporary, path)
        self.written_count += 1
        return True

    def _write_parts(self, path: str, parts: SnapshotParts) -> None:
        file = self._disk.open(path, create=True)
        try:
            file.truncate(0)
            write_parts(file, parts)
        finally:
            file.close()

    def _stopped(self, error: BaseException) -> None:
        self._health.fail(f"writing producer snapshots stopped: {error!r}")

    async def idle(self) -> None:
        """Return when nothing is to be written any more, or never will be."""
        await self._work.idle()


def _is_wanted(log: SnapshotOwner, pending: _Pending) -> bool:
    return not log.closed and log.wants_snapshot(pending.offset, pending.generation)
