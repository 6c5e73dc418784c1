"""Snapshots of many producers: encoded in slices of the loop, written in a thread, then renamed.

A roll only freezes the producers. Until the snapshot has its final name, the recovery point stays below it: a start
after a power loss then replays the log from an older one, and no segment is deleted because of the new one.
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

AT_ONCE_MAX = 128  # producers per slice, about half a millisecond
WAITING_MAX = 4  # per log; if it rolls faster than snapshots are written, the oldest that was not begun is dropped


class SnapshotOwner(Protocol):
    """A log."""

    producers: ProducerStates

    @property
    def closed(self) -> bool: ...

    @property
    def directory(self) -> str: ...

    def wants_snapshot(self, offset: int, generation: int) -> bool:
        """False if there already is one, if the log start has passed it, or if the log was truncated since that
        generation."""
        ...

    def snapshot_settled(self, offset: int, *, is_named: bool) -> None:
        """The snapshot at `offset` has its name, or was dropped."""
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
        self._pending: dict[SnapshotOwner, deque[_Pending]] = {}  # oldest first; the first may be in progress
        self._work = OnDemand("producer-snapshots", self._run, self._stopped)
        self._pacer = pacer
        self.written_count = 0

    def begin(self, log: SnapshotOwner, offset: int, generation: int) -> None:
        """Write the producers of `log` as of now, at `offset` in this generation of it."""
        waiting = self._pending.setdefault(log, deque())
        if waiting and waiting[-1].offset == offset and waiting[-1].generation == generation:
            return
        waiting.append(_Pending(offset, generation, log.producers.freeze()))
        if len(waiting) > WAITING_MAX:
            del waiting[1]
        self._work.begin()

    def least(self, log: SnapshotOwner) -> int | None:
        """The offset of the oldest unfinished snapshot of `log`."""
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
        if log.closed:  # its directory may have another name; the file moves with it
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
        """Return when no snapshot waits."""
        await self._work.idle()


def _is_wanted(log: SnapshotOwner, pending: _Pending) -> bool:
    return not log.closed and log.wants_snapshot(pending.offset, pending.generation)
