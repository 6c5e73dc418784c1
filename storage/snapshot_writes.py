"""Producer snapshots of many producers: encoded in slices of the loop, written in a thread, then given their name.

A roll only freezes the producers, and they go on. Until the snapshot has its name the recovery point stays below it: a
start after a loss of power replays the log from an older one instead, and no segment goes in the new one's favour.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from common.lifecycle import OnDemand
from common.pacing import Pacer
from common.ports import Disk
from common.whole_files import TEMPORARY_SUFFIX
from storage.directory_health import OUT_OF_FILES_PAUSE_S, DirectoryHealth
from storage.frozen_producers import FrozenProducers
from storage.log_flusher import FlushDepth
from storage.producer_snapshot import SnapshotParts, write_parts
from storage.segment import SNAPSHOT_SUFFIX, file_stem

if TYPE_CHECKING:
    from storage.log_appends import AppendableLog

AT_ONCE_MAX = 128  # so many producers take about half a millisecond
WAITING_MAX = 4  # of one log; it rolls faster than they are written, so the oldest that was not begun is left out


class _Pending(NamedTuple):
    offset: int
    generation: int
    producers: FrozenProducers


class SnapshotWrites:
    """One per log directory; calls on the loop. `pacer` is set before the first log is opened."""

    __slots__ = ("_disk", "_health", "_pending", "_work", "pacer", "written_count")

    def __init__(self, disk: Disk, health: DirectoryHealth) -> None:
        self._disk = disk
        self._health = health
        self._pending: dict[AppendableLog, deque[_Pending]] = {}  # oldest first; the first may be under way
        self._work = OnDemand("producer-snapshots", self._run, self._stopped)
        self.pacer: Pacer | None = None
        self.written_count = 0

    def begin(self, log: AppendableLog, offset: int) -> None:
        """Write the producers of `log` as they stand now, at `offset`."""
        waiting = self._pending.setdefault(log, deque())
        if waiting and waiting[-1].offset == offset and waiting[-1].generation == log.generation:
            return
        waiting.append(_Pending(offset, log.generation, log.producers.freeze()))
        if len(waiting) > WAITING_MAX:
            del waiting[1]
        self._work.begin()

    def least(self, log: AppendableLog) -> int | None:
        """The offset of the oldest snapshot of `log` that has no name yet."""
        waiting = self._pending.get(log)
        return waiting[0].offset if waiting else None

    async def _run(self) -> None:
        while self._pending and self._health.offline is None:
            log = next(iter(self._pending))
            waiting = self._pending.pop(log)
            self._pending[log] = waiting  # logs take turns
            try:
                await self._write(log, waiting[0])
            except OSError as error:
                if not log.closed:
                    self._health.refused(f"write a snapshot in {log.directory}", error)
                    await asyncio.sleep(OUT_OF_FILES_PAUSE_S)
                    continue
            waiting.popleft()
            if not waiting:
                del self._pending[log]
            if not log.closed:
                log.context.flusher.request(log, FlushDepth.CLOSED)

    async def _write(self, log: AppendableLog, pending: _Pending) -> None:
        if not _is_wanted(log, pending):
            return
        if self.pacer is None:
            self.pacer = Pacer()
        parts = await self.pacer.run(pending.producers.encode(), "producer-snapshots", own=True)
        path = file_stem(log.directory, pending.offset) + SNAPSHOT_SUFFIX
        temporary = path + TEMPORARY_SUFFIX
        await asyncio.to_thread(self._write_parts, temporary, parts)
        if log.closed:  # its directory may have another name, which takes the file along
            return
        if not _is_wanted(log, pending):
            self._disk.remove(temporary)
            return
        self._disk.rename(temporary, path)
        log.snapshots.append(pending.offset)
        log.snapshots.sort()
        log.names_changed = True
        self.written_count += 1

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


def _is_wanted(log: AppendableLog, pending: _Pending) -> bool:
    """Not once the log was cut, or its front has gone past it."""
    is_there = log.segments[0].base_offset <= pending.offset and pending.offset not in log.snapshots
    return not log.closed and log.generation == pending.generation and is_there
