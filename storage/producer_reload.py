"""After a cut, a log's producers are what the rest of the log says: read anew, in a thread where that is much.

A log that waits for the thread is barred: it takes no batch, whose sequence nobody could check, and is not cut again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from common.errors import ProtocolError
from common.lifecycle import OnDemand
from common.ports import Clock, Disk
from storage.directory_health import OUT_OF_FILES_PAUSE_S, DirectoryHealth, is_out_of_files
from storage.producer_replay import Replay
from storage.producer_state import ProducerStates

if TYPE_CHECKING:
    from storage.partition_log import PartitionLog


READ_PER_BATCH_BYTES = 128  # about as long as a header takes to be read from among others: 2 to 10 microseconds


class ProducerReloads:
    """One per log directory; calls on the loop."""

    __slots__ = ("_batches_max", "_bytes_max", "_clock", "_disk", "_health", "_waiting", "_work", "reload_count")

    def __init__(self, disk: Disk, clock: Clock, health: DirectoryHealth, bytes_max: int) -> None:
        """Up to `bytes_max`, or the headers of as many batches as fit in there, are read at once."""
        self._disk = disk
        self._clock = clock
        self._health = health
        self._bytes_max = bytes_max
        self._batches_max = bytes_max // READ_PER_BATCH_BYTES
        self._waiting: dict[PartitionLog, None] = {}
        self._work = OnDemand("reload-producers", self._run, self._stopped)
        self.reload_count = 0  # how many logs a thread has read

    def reload(self, log: PartitionLog) -> None:
        """At once, or in a thread, with `log` barred until then. OSError when the disk refuses."""
        log.barred = "its producers have not been read since it was cut"
        replay = _replay_of(log)
        try:
            if self._is_short(log, replay):
                replay.run(self._disk, self._clock.wall_ms())
                _adopt(log, replay.producers)
                return
        except ProtocolError as error:
            _give_up(log, error)
            return
        except OSError as error:
            if not is_out_of_files(error):
                raise
        self._waiting[log] = None
        self._work.begin()

    def _is_short(self, log: PartitionLog, replay: Replay) -> bool:
        if replay.mark is not None:
            return log.marks.batches_behind(replay.mark) <= self._batches_max
        return replay.bytes_to_read(self._disk) <= self._bytes_max

    async def _run(self) -> None:
        while self._waiting and self._health.offline is None:
            log = next(iter(self._waiting))
            del self._waiting[log]
            if not log.closed:
                await self._reload(log)

    async def _reload(self, log: PartitionLog) -> None:
        replay = _replay_of(log)
        try:
            await asyncio.to_thread(replay.run, self._disk, self._clock.wall_ms())
        except FileNotFoundError as error:
            if log.closed:  # deleted meanwhile: its directory has another name
                return
            if log.segments == replay.segments:
                self._health.fail(f"read {log.directory}: {error}")
            else:  # an old segment went meanwhile
                self._waiting[log] = None
        except OSError as error:
            if log.closed:
                return
            self._health.refused(f"read {log.directory}", error)
            if is_out_of_files(error):
                self._waiting[log] = None
                await asyncio.sleep(OUT_OF_FILES_PAUSE_S)
        except ProtocolError as error:
            _give_up(log, error)
        else:
            self.reload_count += 1
            _adopt(log, replay.producers)

    def _stopped(self, error: BaseException) -> None:
        self._health.fail(f"reading producers stopped: {error!r}")

    async def idle(self) -> None:
        """Return when no log waits any more, or none ever will."""
        await self._work.idle()


def _give_up(log: PartitionLog, error: ProtocolError) -> None:
    """Only a start that scans the log can mend it: it stays barred until then."""
    log.context.audit.note("log_damaged", topic=log.topic, partition=log.partition, error=error.message)


def _adopt(log: PartitionLog, producers: ProducerStates) -> None:
    """The log's start and settings may have changed while they were read."""
    producers.expiration_ms = log.config.producer_id_expiration_ms
    producers.producers_max = log.config.producers_max
    producers.advance_log_start(log.log_start_offset)
    log.producers.leave()
    log.producers = producers
    if not log.closed:
        producers.join(log.context.producers)
    log.unbar()


def _replay_of(log: PartitionLog) -> Replay:
    config, mark = log.config, log.marks.newest(log)
    if mark is not None and mark.offset < max((at for at in log.snapshots if at <= log.log_end_offset), default=0):
        mark = None
    return Replay(
        log.directory,
        list(log.segments),
        list(log.snapshots),
        log.log_end_offset,
        ProducerStates(config.producer_id_expiration_ms, config.producers_max),
        mark,
    )
