"""Compacts the compacted logs of one log directory, one log at a time, off the event loop.

The loop chooses the dirtiest log and swaps in finished segments; reading and writing happen in a thread, in steps, so
that the cleaner can be stopped and throttled, and delays requests by no more than a rename.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from common.errors import ProtocolError
from common.node_settings.topics import BrokerLogSettings, TopicDefaults
from common.pacing import Work
from common.settings import same
from storage.cleaning.cleaning_pass import CleaningPass, PassInput
from storage.cleaning.compaction import CleaningPlan, CompactionSegment, plan_cleaning
from storage.disk.checkpoint_files import CLEANER_OFFSETS, RECOVERY_POINTS, TopicPartition
from storage.disk.checkpoints import collector
from storage.disk.cold_reads import PagesMissing
from storage.log.log_config import FOREVER_MS, LogConfig
from storage.log.log_context import LogContext
from storage.log.partition_log import PartitionLog
from storage.log.segment_swap import remove_cleaned
from storage.segments.segment import Segment

LOOK_COST = 1  # of checking a log that is not due
SEGMENT_COST = 3
STEP_COST = 250
OFFSETS_PER_STEP = 256
IDLE_MAX = 200_000  # number of remembered logs


@dataclass(slots=True, frozen=True)
class CleanerConfig:
    """Limits of the cleaner; sizes in bytes."""

    backoff_ms: int = same(BrokerLogSettings, "log_cleaner_backoff_ms")
    dedupe_buffer_bytes: int = same(BrokerLogSettings, "log_cleaner_dedupe_buffer_size")
    io_bytes_per_second_max: float = same(BrokerLogSettings, "log_cleaner_io_max_bytes_per_second")
    inflated_bytes_max: int = same(TopicDefaults, "inflated_bytes_max")  # of one batch; a larger one is kept unchanged
    reports_max: int = 10  # unreadable batches logged per pass; the others are counted


class _Chosen(NamedTuple):
    log: PartitionLog
    plan: CleaningPlan
    views: list[CompactionSegment]


class _PassAborted(Exception):
    """The log changed during the pass; the next round starts over."""


class _State(NamedTuple):
    """Everything that decides whether a log is due, except time."""

    topic_id: bytes
    active_base_offset: int
    segments: int
    log_start_offset: int
    generation: int
    config: LogConfig


def _state(log: PartitionLog) -> _State:
    segments = len(log.segments)
    return _State(log.topic_id, log.active.base_offset, segments, log.log_start_offset, log.generation, log.config)


class LogCleaner:
    """Run `run()` in a task of the owner; cancelling it leaves every log consistent."""

    def __init__(
        self,
        context: LogContext,
        logs: Callable[[], Iterable[PartitionLog]],
        high_watermark: Callable[[PartitionLog], int],
        config: CleanerConfig,
    ) -> None:
        """`logs`: the compacted ones, in a stable order."""
        self._context = context
        self._logs = logs
        self._high_watermark = high_watermark
        self._config = config
        self._idle: dict[TopicPartition, _State] = {}  # states of logs that were found not to be due
        self._uncleanable: dict[TopicPartition, bytes] = {}  # topic ids of logs that a pass found damaged

    def configure(self, config: CleanerConfig) -> None:
        """Use `config` from the next pass and pause on."""
        self._config = config

    @property
    def uncleanable_count(self) -> int:
        return len(self._uncleanable)

    async def run(self) -> None:
        """Clean due logs, with pauses of `backoff_ms`; ends when the directory goes offline."""
        while self._context.health.offline is None:
            while await self.clean_dirtiest():
                pass
            await asyncio.sleep(self._config.backoff_ms / 1000)

    async def clean_dirtiest(self) -> bool:
        """Clean the due log with the largest dirty share. Returns whether a pass was finished."""
        await self._forget_absent()
        best = await self._context.pacer.run(self._choose(), "cleaner", own=True)
        chosen = self._plan(best) if best is not None else None  # in its current state
        if chosen is None:
            return False
        log = chosen.log
        try:
            await self._clean_log(chosen)
        except (FileNotFoundError, _PassAborted):
            return False
        except ProtocolError as error:
            self._uncleanable[log.topic, log.partition] = log.topic_id
            self._context.audit.note(
                "log_uncleanable", topic=log.topic, partition=log.partition, error=error.message, code=error.code.name
            )
            return True
        except OSError as error:
            self._context.health.refused(f"compact {log.directory}", error)  # if files ran out: at its next round
            return False
        return True

    # Choice

    def _choose(self) -> Work[PartitionLog | None]:
        """The due log with the largest dirty share."""
        best: tuple[float, PartitionLog] | None = None
        cost = 0
        for log in list(self._logs()):
            cost += LOOK_COST
            if log.config.is_compacted and not self._is_as_it_was(log):
                cost += len(log.segments) * SEGMENT_COST
                chosen = self._plan(log)
                if chosen is not None and (best is None or chosen.plan.dirty_ratio > best[0]):
                    best = (chosen.plan.dirty_ratio, log)
            if cost >= STEP_COST:
                yield cost
                cost = 0
        return None if best is None else best[1]

    def _is_as_it_was(self, log: PartitionLog) -> bool:
        """Whether nothing has changed since the log was found not to be due; time alone makes no log due here."""
        return self._idle.get((log.topic, log.partition)) == _state(log)

    def _plan(self, log: PartitionLog) -> _Chosen | None:
        """The plan of a pass over the log, if one is due."""
        if log.closed or log.barred is not None or log.pending_writes:
            return None
        if self._uncleanable.get((log.topic, log.partition)) == log.topic_id:
            return None
        start = self._context.checkpoints.on_device(CLEANER_OFFSETS).get(log.who)
        if start is not None and log.active.base_offset <= start:
            return None
        try:
            with self._context.open_files.cold.only_in_memory():
                views = _views(log)
        except PagesMissing:
            return None  # a thread reads them before the next round
        except (OSError, ProtocolError):
            return None  # the next read of the log reports the error
        high_watermark = self._high_watermark(log)
        stable = min(log.last_stable_offset(high_watermark), log.recovery_point, *log.copying_offsets)
        plan = plan_cleaning(views, start, log.log_start_offset, stable, log.config, self._context.clock.wall_ms())
        if plan.is_due(log.config.min_cleanable_dirty_ratio):
            return _Chosen(log, plan, views)
        waits_for_time = log.config.min_compaction_lag_ms > 0 or log.config.bounds_compaction_lag
        if stable >= log.active.base_offset and not waits_for_time:
            self._remember_idle(log)
        return None

    def _remember_idle(self, log: PartitionLog) -> None:
        self._idle[log.topic, log.partition] = _state(log)
        if len(self._idle) > IDLE_MAX:
            del self._idle[next(iter(self._idle))]

    # One pass

    async def _clean_log(self, chosen: _Chosen) -> None:
        log, plan = chosen.log, chosen.plan
        generation = log.generation
        segments = {segment.base_offset: segment for segment in log.segments}
        given = PassInput(
            directory=log.directory,
            segments=chosen.views,
            plan=plan,
            last_records=log.producers.freeze().last_records,
            config=log.config,
            map_bytes=self._config.dedupe_buffer_bytes,
            inflated_bytes_max=self._config.inflated_bytes_max,
            keeps_deletes=log.config.remote_storage_enable,
            now_ms=self._context.clock.wall_ms(),
        )
        cleaning = CleaningPass(self._context.disk, given, self._reporter(log))
        await self._drive(cleaning.index())
        groups = await asyncio.to_thread(cleaning.groups)
        await self._tell_recovery_point(log, cleaning.end_offset)
        for group in groups:
            await self._clean_group(log, generation, cleaning, [segments[view.base_offset] for view in group], group)
        await self._checkpoint(log, generation, cleaning.end_offset)
        counts = cleaning.counts
        self._context.audit.note(
            "log_compacted",
            topic=log.topic,
            partition=log.partition,
            clean_up_to=cleaning.end_offset,
            keys=cleaning.keys,
            batches=counts.batches,
            batches_dropped=counts.batches_dropped,
            batches_unreadable=counts.batches_unreadable,
            records_dropped=counts.records_dropped,
            records_without_key=counts.records_without_key,
        )

    async def _tell_recovery_point(self, log: PartitionLog, end_offset: int) -> None:
        """Make the recovery point durable first, because above it the next start treats gaps between segments as
        losses."""
        checkpoints = self._context.checkpoints
        if checkpoints.on_device(RECOVERY_POINTS).get(log.who, 0) < end_offset:
            collect = collector({log.who: log}, lambda one: None if one.closed else one.recovery_point)
            if not await checkpoints.write_some(RECOVERY_POINTS, collect):
                raise _PassAborted

    async def _clean_group(
        self,
        log: PartitionLog,
        generation: int,
        cleaning: CleaningPass,
        replaced: list[Segment],
        group: list[CompactionSegment],
    ) -> None:
        disk = self._context.disk
        swapped = False
        try:
            await self._drive(cleaning.clean(group))
            cleaned = cleaning.cleaned
            if log.generation != generation or cleaned is None:
                raise _PassAborted
            if cleaned.is_same:
                return
            try:
                swapped = log.swap_in(replaced, cleaned.size, cleaned.transaction_bytes)
            except OSError as error:  # half done: only the next start can tell which files count
                self._context.health.fail(f"swap segments in {log.directory}: {error}")
                swapped = True
                raise _PassAborted from error
            if not swapped:
                raise _PassAborted
            await asyncio.to_thread(disk.sync_directory, log.directory)
        finally:
            if not swapped and not log.closed:
                remove_cleaned(disk, replaced[0].stem)

    async def _drive(self, steps: Iterator[int]) -> None:
        """Run all steps in threads, one after the other, within the allowed bytes per second."""
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(next, steps, None))
            try:
                done = await asyncio.shield(step)
            except asyncio.CancelledError:
                await asyncio.wait((step,))  # files must not be removed during a step
                raise
            if done is None:
                return
            await asyncio.sleep(done / self._config.io_bytes_per_second_max)

    def _reporter(self, log: PartitionLog) -> Callable[[int, str], None]:
        left = self._config.reports_max

        def report(base_offset: int, why: str) -> None:
            nonlocal left
            if left > 0:
                left -= 1
                self._context.audit.note(
                    "batch_unreadable", topic=log.topic, partition=log.partition, base_offset=base_offset, error=why
                )

        return report

    # Checkpoint: the offsets are those of the directory's checkpoints, which withdraw them before a log is truncated or
    # another one gets its name

    async def _checkpoint(self, log: PartitionLog, generation: int, offset: int) -> None:
        """Note that the log is clean up to `offset`, unless it was truncated or closed during the pass."""

        def collect(into: dict[TopicPartition, int]) -> Work[None]:
            yield from self._collect_present(into)
            if log.generation == generation and not log.closed:
                into[log.who] = offset

        self._uncleanable = {key: id_ for key, id_ in self._uncleanable.items() if key in self._context.compacted}
        checkpoints = self._context.checkpoints
        checkpoints.note(CLEANER_OFFSETS)
        if not await checkpoints.write_collected(CLEANER_OFFSETS, collect):
            raise _PassAborted

    async def _forget_absent(self) -> None:
        """Remove the offsets of logs that are deleted or not compacted any more."""
        checkpoints = self._context.checkpoints
        if checkpoints.on_device(CLEANER_OFFSETS):
            await checkpoints.write_collected(CLEANER_OFFSETS, self._collect_present)

    def _collect_present(self, into: dict[TopicPartition, int]) -> Work[None]:
        """What the file says of the logs that are there."""
        rows = iter(self._context.checkpoints.on_device(CLEANER_OFFSETS).items())
        while some := list(islice(rows, OFFSETS_PER_STEP)):
            into.update((who, offset) for who, offset in some if who in self._context.compacted)
            yield len(some) // 2


def _views(log: PartitionLog) -> list[CompactionSegment]:
    """Timestamps are read only if a compaction lag needs them."""
    with_largest = log.config.min_compaction_lag_ms > 0
    with_first = log.config.max_compaction_lag_ms < FOREVER_MS
    views = []
    for number, segment in enumerate(log.segments):
        is_last = number == len(log.segments) - 1
        next_offset = log.log_end_offset if is_last else log.segments[number + 1].base_offset
        first = segment.first_timestamp() if with_first and not is_last else -1
        largest = segment.largest_timestamp().timestamp if with_largest and not is_last else -1
        views.append(CompactionSegment(segment.base_offset, next_offset, segment.size, 0, first, largest))
    return views
