"""Restores a log's producers after a truncation, in a thread if that takes long.

Meanwhile the log accepts no batches, because their sequences could not be checked, and is not truncated again.
"""

import asyncio
from typing import Protocol

from common.errors import ProtocolError
from common.lifecycle import OnDemand
from common.ports import Clock, Disk
from storage.disk.directory_health import OUT_OF_FILES_PAUSE_S, DirectoryHealth, is_out_of_files
from storage.producers.producer_replay import Replay
from storage.producers.producer_state import ProducerStates
from storage.segments.segment import Segment


class Reloadable(Protocol):
    """A truncated log. It rejects appends until `producers_read`."""

    @property
    def closed(self) -> bool: ...

    @property
    def directory(self) -> str: ...

    @property
    def segments(self) -> list[Segment]: ...

    def plan_replay(self) -> Replay:
        """What must be read, for the log's current state."""
        ...

    def producers_read(self, producers: ProducerStates) -> None: ...

    def producers_unreadable(self, error: ProtocolError) -> None: ...


class ProducerReloads:
    """One per log directory; calls on the loop."""

    __slots__ = ("_bytes_max", "_clock", "_disk", "_health", "_waiting", "_work", "reload_count")

    def __init__(self, disk: Disk, clock: Clock, health: DirectoryHealth, bytes_max: int) -> None:
        """At most `bytes_max` bytes, or the headers of as many batches as fit in it, are read on the loop."""
        self._disk = disk
        self._clock = clock
        self._health = health
        self._bytes_max = bytes_max
        self._waiting: dict[Reloadable, None] = {}
        self._work = OnDemand("reload-producers", self._run, self._stopped)
        self.reload_count = 0  # logs read by a thread

    def reload(self, log: Reloadable) -> None:
        """Restore at once, or in a thread. OSError if the disk fails."""
        replay = log.plan_replay()
        try:
            if replay.is_short(self._disk, self._bytes_max):
                replay.run(self._disk, self._clock.wall_ms())
                log.producers_read(replay.producers)
                return
        except ProtocolError as error:
            log.producers_unreadable(error)
            return
        except OSError as error:
            if not is_out_of_files(error):
                raise
        self._waiting[log] = None
        self._work.begin()

    async def _run(self) -> None:
        while self._waiting and self._health.offline is None:
            log = next(iter(self._waiting))
            del self._waiting[log]
            if not log.closed:
                await self._reload(log)

    async def _reload(self, log: Reloadable) -> None:
        replay = log.plan_replay()
        try:
            await asyncio.to_thread(replay.run, self._disk, self._clock.wall_ms())
        except FileNotFoundError as error:
            if log.closed:  # deleted meanwhile: its directory has another name
                return
            if log.segments == replay.segments:
                self._health.fail(f"read {log.directory}: {error}")
            else:  # an old segment was deleted meanwhile
                self._waiting[log] = None
        except OSError as error:
            if log.closed:
                return
            self._health.refused(f"read {log.directory}", error)
            if is_out_of_files(error):
                self._waiting[log] = None
                await asyncio.sleep(OUT_OF_FILES_PAUSE_S)
        except ProtocolError as error:
            log.producers_unreadable(error)
        else:
            self.reload_count += 1
            log.producers_read(replay.producers)

    def _stopped(self, error: BaseException) -> None:
        self._health.fail(f"reading producers stopped: {error!r}")

    async def idle(self) -> None:
        """Return when no log waits."""
        await self._work.idle()
