"""One broker's log directory: finds, recovers, creates and removes logs, and writes checkpoints.

Recovery starts at a log's recovery point and trusts the other checkpoints too; `checkpoints` explains why that is safe
for a log that is truncated or replaced by another.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType

from common.directory_config import DirectoryConfig
from common.errors import ProtocolError
from common.identifiers import ZERO_UUID, random_uuid
from common.pacing import Pacer
from common.ports import Ports
from common.whole_files import join, replace_file
from storage.audit.audit_trail import AuditTrail, audited, require
from storage.directory import directory_acts
from storage.directory.continued_run import NO_RUN, RunInProgress, withdraw_run
from storage.directory.directory_acts import noted_start
from storage.directory.directory_files import (
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    DirectoryState,
    directory_name,
    read_directory,
    renamed,
)
from storage.directory.prepared_logs import PreparedLogs, make_log_directory
from storage.disk import checkpoint_files
from storage.disk.checkpoint_files import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, TopicPartition
from storage.disk.checkpoints import Checkpoints, Collect, collector
from storage.disk.directory_health import DirectoryHealth, FreeSpace
from storage.disk.log_flusher import LogFlusher
from storage.disk.log_writer import LogWriter
from storage.disk.open_files import OpenFiles
from storage.disk.trash import Trash, remove_all
from storage.log.loaded_log import LoadedLog, empty_log
from storage.log.log_config import LogConfig
from storage.log.log_context import LogContext
from storage.log.partition_log import PartitionLog
from storage.producers.producer_bound import ProducerBound
from storage.producers.producer_reload import ProducerReloads
from storage.producers.snapshot_writes import SnapshotWrites
from storage.recovery.recovery import RecoveryInput

CLOSED_PER_TURN = 256
SCARCE_TIMES = 8  # with less than so many times log.dir.free.bytes.min free, fast writers could be past it ...
SCARCE_LOOKS = 10  # ... between two looks, so there are so many times as many


class LogDirectory:
    """`await open()`, then `await recover(...)`, then the rest; `await close_clean(epoch)` or `await close()`."""

    def __init__(
        self,
        ports: Ports,
        path: str,
        node_id: int,
        audit: AuditTrail,
        config: DirectoryConfig,
        pacer: Pacer | None = None,
        on_failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`path` is relative to the disk's root, "" is the root itself. Without `pacer`, the node's, it creates its
        own. `on_failed` is called once, with the reason, when the directory goes offline."""
        health = DirectoryHealth()
        self._pacer = pacer = pacer or Pacer()
        self._ports = ports
        self._disk = ports.disk
        self._path = path
        self._audit = audit
        self._config = config
        self._health = health
        self._on_failed = on_failed
        health.notify(self._failed)
        self._context = context = LogContext(
            disk=ports.disk,
            clock=ports.clock,
            rng=ports.random,
            audit=audit,
            config=config,
            health=health,
            open_files=OpenFiles(ports.disk, config.open_files_max),
            writer=LogWriter(ports.disk, ports.clock, health, config.slow_write_s, config.unwritten_bytes_max),
            flusher=LogFlusher(ports.disk, ports.clock, health),
            trash=Trash(),
            pacer=pacer,
            checkpoints=Checkpoints(ports.disk, path, health, pacer),
            reloads=ProducerReloads(ports.disk, ports.clock, health, config.replay_bytes_max),
            snapshots=SnapshotWrites(ports.disk, health, pacer),
            producers=ProducerBound(config.producers_max, ports.clock.wall_ms()),
        )
        self._checkpoints = context.checkpoints
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self.prepared = PreparedLogs(ports.disk, path, health, self._logs)
        self._state: DirectoryState | None = None
        self._is_recovered = False
        self._root_changed = False
        self.stray_count = 0
        """Directories that were set aside, in this run or before; they take room until an operator removes them."""
        self._is_scarce = False
        self.free_bytes = self.size_bytes = -1  # of the device at the last look; -1 before the first
        self._upkeep: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.node_id = node_id
        self.cluster_id: str | None = None
        self.directory_id = ZERO_UUID
        self._run = RunInProgress(ports.disk, path, health)
        self.continues = NO_RUN  # the earlier run, none of whose records is known to be lost
        self._lacks_records = False  # of the run that `continues` was; until the broker is registered with that

    # Start

    async def open(self, cluster_id: str) -> None:
        """Read or create meta.properties, read checkpoints and the clean-stop marker, then note that a run begins.

        Raises StorageFailure if the directory belongs to another cluster or node, or cannot be used.
        """
        state = await asyncio.to_thread(
            read_directory, self._disk, self._path, cluster_id, self.node_id, self._ports.random
        )
        self._state = state
        self._checkpoints.found(RECOVERY_POINTS, state.recovery_points)
        self._checkpoints.found(HIGH_WATERMARKS, state.high_watermarks)
        self._checkpoints.found(LOG_STARTS, state.log_starts)
        self._checkpoints.found(CLEANER_OFFSETS, state.cleaned)
        self.cluster_id = cluster_id
        self.directory_id = state.meta.directory_id
        self.stray_count = state.strays
        self.continues = state.continues
        if state.clean_epoch is None and state.partitions:
            await audited(lambda: require(self._audit, directory_acts.unclean_start(state)))
        now_s = self._ports.clock.monotonic()
        for name in state.deleted:
            self._context.trash.add(join(self._path, name), now_s, is_directory=True)
        self._upkeep = asyncio.get_running_loop().create_task(self._keep_up())
        self._upkeep.add_done_callback(self._upkeep_ended)

    def begin_run(self, broker_epoch: int) -> None:
        """Call it when the broker is registered, before anything is appended under that registration. With this note a
        killed broker can restart as after a clean stop if the page cache has survived."""
        self._lacks_records = False
        self._run.begin(broker_epoch)

    async def recover(
        self,
        config_of: Callable[[str], LogConfig],
        progress: Callable[[int, int], None] | None = None,
        threads: int = 0,
    ) -> None:
        """Load all logs, in `threads` (0: as configured); `progress(done, total)` runs on the loop. Unexpected loss of
        records changes `continues`. KAFKA_STORAGE_ERROR: the directory is offline."""
        state = self._opened()
        total = len(state.partitions)
        size = self._config.recovery_chunk_logs
        chunks = iter([state.partitions[at : at + size] for at in range(0, total, size)])
        done = 0

        async def work(remaining: Iterator[list[tuple[str, TopicPartition]]]) -> None:
            nonlocal done
            for chunk in remaining:
                given = [self._recovery_input(state, name, who, config_of(who[0])) for name, who in chunk]
                context = self._context
                for loaded in await directory_acts.load_logs(self._disk, context.open_files, self._audit, given):
                    await self._adopt(loaded)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)

        workers = [
            asyncio.create_task(work(chunks)) for _ in range(min(threads or self._config.recovery_threads, total))
        ]
        try:
            await asyncio.gather(*workers)
        except OSError as error:
            self._health.fail(f"recovery: {error}")
            raise self._health.error() from error
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        await self._withdraw_checkpoints()
        self._is_recovered = True

    async def _withdraw_checkpoints(self) -> None:
        await self._pacer.run(self._checkpoints.fit(self._logs), "recovery", own=True)
        await self._checkpoints.idle()
        if self._health.offline is not None:
            raise self._health.error()

    def _recovery_input(
        self, state: DirectoryState, name: str, who: TopicPartition, config: LogConfig
    ) -> RecoveryInput:
        return RecoveryInput(
            directory=join(self._path, name),
            topic=who[0],
            partition=who[1],
            config=config,
            clean=state.clean_epoch is not None,
            recovery_point=state.recovery_points.get(who, 0),
            high_watermark=state.high_watermarks.get(who, 0),
            gaps_below=max(state.recovery_points.get(who, 0), state.cleaned.get(who, 0)),
            log_start_offset=state.log_starts.get(who, 0),
            now_ms=self._ports.clock.wall_ms(),
            on_loss=partial(withdraw_run, self._disk, self._path),
        )

    async def _adopt(self, loaded: LoadedLog) -> None:
        if loaded.lost_records and self.continues != NO_RUN:
            self.continues, self._lacks_records = NO_RUN, True
            who = {"topic": loaded.topic, "partition": loaded.partition, "log_end_offset": loaded.log_end_offset}
            self._audit.note("records_lost_since_last_run", **who)
        log = PartitionLog(self._context, loaded)
        self._logs[log.who] = log
        await self._trim_producers()
        if loaded.topic_id == ZERO_UUID and loaded.log_end_offset > 0:
            await audited(lambda: self.set_stray(log))  # its topic is unknown

    def _opened(self) -> DirectoryState:
        if self._state is None:
            raise RuntimeError("the log directory is not open")
        return self._state

    # Logs

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        return MappingProxyType(self._logs)

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self._logs.get((topic, partition))

    def create_log(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> PartitionLog:
        """The log of this topic id, created if necessary; another topic's log with the same name is set aside as a
        stray.

        Directory and partition.metadata are created at once unless they are prepared; their fsync is batched off the
        loop. Raises ProtocolError(KAFKA_STORAGE_ERROR) if the disk fails; if only room or file descriptors are missing,
        the directory stays online and a retry is possible. Raises AuditPending before a stray is set aside.
        """
        if self._health.offline is not None:
            raise self._health.error()
        log = self._logs.get((topic, partition))
        if log is not None and log.topic_id == topic_id:
            log.update_config(config)
            return log
        if log is not None and (log.topic_id != ZERO_UUID or log.log_end_offset > 0):
            self.set_stray(log)
            log = None
        directory = join(self._path, directory_name(topic, partition))
        try:
            if not self.prepared.take(directory, topic_id):
                files = self._context.open_files
                make_log_directory(self._disk, directory, topic_id, lambda path: files.open_apart(path, create=True))
        except OSError as error:
            raise self._health.refused(f"create {directory}", error) from error
        self._root_changed = True
        if log is not None:  # found empty and without its id, because of a crash in between
            log.found_empty(topic_id, config)
        else:
            loaded = empty_log(
                self._context.open_files, directory, topic, partition, topic_id, config, self._ports.clock.wall_ms()
            )
            log = PartitionLog(self._context, loaded)
            self._logs[log.who] = log
        self._checkpoints.note(RECOVERY_POINTS)
        if self._checkpoints.exceed((topic, partition), 0, 0):
            log.bar("checkpoints of another log of its name are being withdrawn")
            self._checkpoints.limit((topic, partition), 0, 0, log.unbar)
        return log

    def set_stray(self, log: PartitionLog) -> None:
        """Set aside a directory whose topic id is not the image's: renamed, never served, never removed.

        Raises AuditPending, before any effect.
        """
        require(self._audit, directory_acts.set_aside(log))
        self._rename_away(log, STRAY_SUFFIX)
        self.stray_count += 1

    def delete_log(self, log: PartitionLog) -> None:
        """Rename it now; its files are deleted after file.delete.delay.ms. Raises AuditPending, before any effect."""
        require(self._audit, directory_acts.deleted(log))
        path = self._rename_away(log, DELETE_SUFFIX)
        due_s = self._ports.clock.monotonic() + log.config.file_delete_delay_ms / 1000
        self._context.trash.add(path, due_s, is_directory=True)

    def _rename_away(self, log: PartitionLog, suffix: str) -> str:
        """Called on the loop: renaming a directory takes some microseconds, however large it is."""
        log.close()
        del self._logs[log.topic, log.partition]
        for name in (RECOVERY_POINTS, LOG_STARTS, CLEANER_OFFSETS):
            self._checkpoints.note(name)
        path = join(self._path, renamed(log.topic, log.partition, random_uuid(self._ports.random), suffix))
        try:
            self._disk.rename(log.directory, path)
        except OSError as error:
            self._health.fail(f"rename {log.directory}: {error}")
            raise self._health.error() from error
        self._root_changed = True
        return path

    # Health

    @property
    def offline(self) -> str | None:
        """Why the directory is offline, None while it works."""
        return self._health.offline

    def fail(self, reason: str) -> None:
        """Take the directory offline because of a failure that another user of its disk has met."""
        self._health.fail(reason)

    def passes(self, what: str, error: OSError) -> bool:
        """Whether another user of this disk may retry `what` after `error`; if not, the directory is offline."""
        if self._health.offline is None and self._health.passes(what, error):
            return True
        self._health.fail(f"{what}: {error}")
        return False

    def _failed(self, reason: str) -> None:
        """Withdraw the note of this run first: what the device rejected may be gone from the page cache."""
        with contextlib.suppress(OSError):
            withdraw_run(self._disk, self._path)
        self._on_failed(reason)

    @property
    def free_space_state(self) -> FreeSpace:
        return self._health.free_space

    @property
    def context(self) -> LogContext:
        """Shared by all logs and the cleaner."""
        return self._context

    @property
    def open_file_count(self) -> int:
        return len(self._context.open_files)

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that wait for a slow disk."""
        return self._context.writer.unwritten_bytes

    @property
    def waited_s(self) -> float:
        """Seconds that writes have waited for a slow disk, added up."""
        return self._context.writer.waited_s

    async def settle(self) -> None:
        """Return when no byte waits for a slow disk, and no flush or other work on a log is in progress."""
        if self._context.beginnings:
            await asyncio.wait(list(self._context.beginnings.values()))
        await self.prepared.idle()
        await self._context.reloads.idle()
        await self._context.snapshots.idle()
        await self._context.open_files.cold.idle()
        await self._checkpoints.idle()
        await self._context.writer.drained()
        await self._context.flusher.idle()

    # Checkpoints and upkeep

    def high_watermark_checkpoint(self, topic: str, partition: int) -> int:
        """The value from the last run, 0 if unknown."""
        return self._opened().high_watermarks.get((topic, partition), 0)

    async def checkpoint_high_watermarks(self, collect: Collect) -> bool:
        """Rewrite replication-offset-checkpoint if any high watermark has moved. Returns whether it is on the
        device."""
        return await self._checkpoints.write_collected(HIGH_WATERMARKS, collect)

    async def checkpoint_recovery_points(self) -> bool:
        """Rewrite recovery-point-offset-checkpoint if any point has moved, and the log starts. Returns whether both are
        on the device."""
        if not self._is_recovered:
            return False
        points = collector(self._logs, lambda log: log.recovery_point)
        is_done = await self._checkpoints.write_collected(RECOVERY_POINTS, points)
        return await self._checkpoint_log_starts() and is_done

    async def _checkpoint_log_starts(self) -> bool:
        if not self._is_recovered:
            return False  # otherwise the starts of logs that are not loaded yet would be lost
        return await self._checkpoints.write_collected(LOG_STARTS, collector(self._logs, noted_start))

    async def _keep_up(self) -> None:
        """One task for all logs: nothing runs per partition."""
        clock = self._ports.clock
        checkpoint_s = clock.monotonic() + self._config.checkpoint_interval_ms / 1000
        while self._health.offline is None and not self._stopping.is_set():
            is_tidied = await self._tidy(self._context.trash.take_due(clock.monotonic()))
            self._context.flusher.request_due()
            self._context.open_files.cold.grow_older(clock.monotonic())
            self._context.producers.grow_older(clock.wall_ms())
            await self._trim_producers()
            await self._checkpoint_log_starts()
            if clock.monotonic() >= checkpoint_s:
                checkpoint_s = clock.monotonic() + self._config.checkpoint_interval_ms / 1000
                await self.checkpoint_recovery_points()
            if is_tidied and self._context.trash.is_due(clock.monotonic()):
                continue
            with contextlib.suppress(TimeoutError):
                hurry = SCARCE_LOOKS if self._is_scarce else 1
                async with asyncio.timeout(self._config.upkeep_interval_ms / 1000 / hurry):
                    await self._stopping.wait()

    async def _trim_producers(self) -> None:
        if self._context.producers.is_exceeded:  # many came at once, with a log or from the tier
            await self._pacer.run(self._context.producers.trim(), "producers", own=True)

    async def _tidy(self, discarded: list[tuple[str, bool]]) -> bool:
        """Remove what is due, make new names durable, check the free space. False if the disk failed."""
        root_changed, self._root_changed = self._root_changed, False
        refusals = self._health.refusals
        try:
            free_bytes, self.size_bytes = await asyncio.to_thread(self._tidy_in_thread, discarded, root_changed)
        except OSError as error:
            self._health.refused("upkeep", error)
            self._root_changed |= root_changed
            for path, is_directory in discarded:  # missing ones do no harm
                self._context.trash.add(path, self._ports.clock.monotonic(), is_directory=is_directory)
            return False
        self.free_bytes = free_bytes
        if self._health.refusals != refusals:  # a write found no room since: the next check decides
            return True
        least = self._config.free_bytes_min
        self._is_scarce = free_bytes < SCARCE_TIMES * least
        state = FreeSpace.PLENTY if free_bytes >= 2 * least else FreeSpace.THROTTLED
        self._health.update_free_space(FreeSpace.REFUSED if free_bytes < least else state)
        if free_bytes >= least:
            self._run.note()  # it may have found the device full
        return True

    def _tidy_in_thread(self, discarded: list[tuple[str, bool]], root_changed: bool) -> tuple[int, int]:
        """The device's free bytes and size afterwards."""
        remove_all(self._disk, discarded)
        if root_changed:
            self._disk.sync_directory(self._path)
        return self._disk.free_bytes(), self._disk.size_bytes()

    def _upkeep_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._health.fail(f"upkeep stopped: {task.exception()!r}")

    # Stop

    async def close_clean(self, broker_epoch: int) -> None:
        """Write, flush and checkpoint everything, then write the clean-stop marker with `broker_epoch`, -1 if unknown.

        No marker if a log was not recovered or is not complete, or the disk has failed: then the next start recovers.
        """
        await self._stop_tasks()
        if self._health.offline is None and self._is_recovered:
            try:
                self._context.writer.write_at_once()
                context = self._context
                logs = [log.durability for log in self._logs.values()]
                is_complete = await context.flusher.flush_completely(logs, context.snapshots.idle, self._pacer)
                for name in (RECOVERY_POINTS, LOG_STARTS):
                    self._checkpoints.note(name)
                if await self.checkpoint_recovery_points() and self._health.offline is None and is_complete:
                    known = -1 if self._lacks_records else max(broker_epoch, self.continues.broker_epoch)
                    marker = checkpoint_files.encode_clean_stop(known)
                    await asyncio.to_thread(replace_file, self._disk, self._path, checkpoint_files.CLEAN_STOP, marker)
            except (OSError, ProtocolError) as error:
                self._health.fail(f"clean stop: {error}")
        await self._close_logs()

    async def close(self) -> None:
        """Stop without the marker: the next start recovers."""
        await self._stop_tasks()
        await self._close_logs()

    async def _stop_tasks(self) -> None:
        self._stopping.set()
        self._health.begin_closing()
        if self._upkeep is not None:
            await asyncio.wait((self._upkeep,))
            self._upkeep = None
        await self.settle()

    async def _close_logs(self) -> None:
        for number, who in enumerate(list(self._logs)):
            if number % CLOSED_PER_TURN == CLOSED_PER_TURN - 1:
                await self._pacer.rest("close-logs")
            if (log := self._logs.pop(who, None)) is not None:
                log.close()
        self._context.open_files.close_all()
