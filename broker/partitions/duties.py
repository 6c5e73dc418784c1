"""A broker's periodic duties: one task per duty, none per partition.

Long rounds yield to requests every few partitions. Work on many files runs in threads inside `storage`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from broker.partitions.config import LogDuties
from broker.partitions.hosted import HostedPartitions
from broker.partitions.open_transactions import OpenTransactions
from broker.partitions.partition import Partition
from common.errors import ProtocolError
from common.lifecycle import end_tasks
from common.node_settings.topics import BrokerLogSettings
from common.pacing import Pacer, Work
from common.ports import Clock
from storage.audit.audit_trail import AuditPending
from storage.cleaning.cleaner import CleanerConfig, LogCleaner
from storage.directory.log_directory import LogDirectory
from storage.disk.checkpoint_files import TopicPartition
from storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

REVIEW_S = 0.5
TRANSACTIONS_S = 1.0  # between two looks at partitions with transactions
STALL_MIN_S = 0.5  # a review that is this late shows that the event loop was stalled
PARTITIONS_PER_TURN = 128
QUIET_PER_ROUND = 512  # quiet partitions reviewed per round; see `ReviewResult.QUIET`
PARTITION_COST = 1  # of checking a partition that needs nothing


def cleaner_config(config: BrokerLogSettings, inflated_bytes_max: int) -> CleanerConfig:
    return CleanerConfig(
        backoff_ms=config.log_cleaner_backoff_ms,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        io_bytes_per_second_max=config.log_cleaner_io_max_bytes_per_second,
        inflated_bytes_max=inflated_bytes_max,
    )


class Stalls:
    """Recent stalls of this broker's event loop. A peer's silence during a stall does not count against the peer.

    Times are loop seconds. A stall is kept for `memory_s`, the time over which peers are judged.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._stalls: deque[tuple[float, float]] = deque()  # (end, length); few, because each took at least STALL_MIN_S

    def note(self, due: float, now: float) -> None:
        """Record that a call which was due at `due` runs at `now`."""
        if now - due > STALL_MIN_S:
            # several late calls may report the same stall
            begun = max(due, self._stalls[-1][0]) if self._stalls else due
            self._stalls.append((now, now - begun))

    def recent_s(self, now: float) -> float:
        """Total length of the stalls that ended within the last `memory_s`, in seconds."""
        stalls = self._stalls
        while stalls and stalls[0][0] + self._memory_s < now:
            stalls.popleft()
        return sum(length for _, length in stalls)


class Duties:
    """The duties' tasks, which run between `start` and `stop`."""

    def __init__(
        self,
        hosted: HostedPartitions,
        logs: LogDirectory,
        clock: Clock,
        config: LogDuties,
        high_watermark_checkpoint_s: float,
        review_s: float,
        inflated_bytes_max: int,
        lag_max_s: float,
        pacer: Pacer,
    ) -> None:
        """`lag_max_s`: `replica.lag.time.max.ms` in seconds."""
        self._hosted = hosted
        self._logs = logs
        self._clock = clock
        self._config = config
        self._high_watermark_checkpoint_s = high_watermark_checkpoint_s
        self._review_s = review_s
        self._pacer = pacer
        self._stalls = Stalls(lag_max_s)
        self.open_transactions = OpenTransactions(hosted.transactional_logs, hosted.get, hosted.now)
        self._cleaner: LogCleaner | None = None
        self._cleaner_config = cleaner_config(config, inflated_bytes_max)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        config = self._config
        self._begin("review-followers", self._review_s, self._review)
        self._begin("checkpoint-high-watermarks", self._high_watermark_checkpoint_s, self.checkpoint_high_watermarks)
        self._begin("retention", config.log_retention_check_interval_ms / 1000, self._retain)
        self._begin("expire-producers", config.producers_expire_s, self._expire_producers)
        self._begin("open-transactions", TRANSACTIONS_S, self._look_at_transactions)
        if config.log_cleaner_enable:
            self._cleaner = LogCleaner(
                self._logs.context,
                self._compacted_logs,
                self._high_watermark_of,
                self._cleaner_config,
            )
            self._begin("cleaner", config.log_cleaner_backoff_ms / 1000, self._cleaner.run)

    def _compacted_logs(self) -> list[PartitionLog]:
        logs = self._logs.logs
        return [logs[key] for key in self._logs.context.compacted if key in logs]

    def configure_cleaner(self, config: BrokerLogSettings) -> None:
        """Change the cleaner's settings."""
        self._cleaner_config = cleaner_config(config, self._cleaner_config.inflated_bytes_max)
        if self._cleaner is not None:
            self._cleaner.configure(self._cleaner_config)

    @property
    def uncleanable_count(self) -> int:
        """Number of logs that are no longer compacted because the cleaner found them damaged."""
        return 0 if self._cleaner is None else self._cleaner.uncleanable_count

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        await end_tasks(tasks)

    def _begin(self, name: str, interval_s: float, duty: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            loop = asyncio.get_running_loop()
            while True:
                due = loop.time() + interval_s
                await asyncio.sleep(interval_s)
                self._stalls.note(due, loop.time())
                try:
                    await duty()
                except ProtocolError as error:  # a failed disk; the log directory reports it itself
                    logger.warning("a duty is put off", extra={"duty": name, "cause": str(error)})
                except Exception:  # must not end the task: without its duties a broker seems alive, but shrinks no ISR
                    logger.exception("a duty failed", extra={"duty": name})

        self._tasks.append(asyncio.get_running_loop().create_task(run(), name=name))

    async def _review(self) -> None:
        left = len(self._hosted.unsettled_partitions)
        loop = asyncio.get_running_loop()
        while left > 0:
            self._hosted.review(min(left, PARTITIONS_PER_TURN), self._stalls.recent_s(loop.time()))
            left -= PARTITIONS_PER_TURN
            await asyncio.sleep(0)
        left = min(len(self._hosted.quiet_partitions), QUIET_PER_ROUND)
        while left > 0:
            self._hosted.review_quiet(min(left, PARTITIONS_PER_TURN), self._stalls.recent_s(loop.time()))
            left -= PARTITIONS_PER_TURN
            await asyncio.sleep(0)

    async def checkpoint_high_watermarks(self) -> None:
        """Write replication-offset-checkpoint, unless nothing has moved."""
        await self._logs.checkpoint_high_watermarks(self._marks)

    def _marks(self, into: dict[TopicPartition, int]) -> Work[None]:
        for partitions in self._some_at_a_time():
            for partition in partitions:
                into[partition.topic, partition.index] = partition.high_watermark
            yield PARTITION_COST * len(partitions)

    def _some_at_a_time(self) -> Iterator[list[Partition]]:
        """All partitions in small lists. Partitions added or removed meanwhile are seen or not, as their turn comes."""
        for by_index in list(self._hosted.by_id.values()):
            partitions = list(by_index.values())
            for at in range(0, len(partitions), PARTITIONS_PER_TURN):
                yield partitions[at : at + PARTITIONS_PER_TURN]

    async def _retain(self) -> None:
        now_ms = self._clock.wall_ms()
        looked_at = 0
        for partitions in self._some_at_a_time():
            for partition in partitions:
                log = partition.log
                if log.closed:
                    continue
                if log.config.bounds_compaction_lag:
                    await log.when_in_memory(partial(log.maybe_roll, now_ms))
                if log.config.remote_storage_enable:
                    log.roll_for_tier(now_ms)
            left, end = partitions, self._clock.monotonic() + self._config.log_retention_check_interval_ms / 1000
            while left and self._clock.monotonic() < end:  # a log may grow as fast as it is shortened: others wait too
                left, pending = await self._delete_old(left, now_ms)
                if pending is not None:
                    await pending.wait()
                elif left:
                    await self._pacer.rest("retention")
            looked_at += len(partitions)
            if looked_at >= PARTITIONS_PER_TURN:
                looked_at = 0
                await self._pacer.rest("retention")

    async def _delete_old(
        self, partitions: list[Partition], now_ms: int
    ) -> tuple[list[Partition], AuditPending | None]:  # fmt: skip
        """Run one step of retention for each partition. Return the partitions that may have more to delete, and a
        pending audit write that some of them wait for."""
        left, waits = [], None
        for partition in partitions:
            log = partition.log
            try:
                if log.closed:
                    continue
                removed = await log.when_in_memory(partial(partition.delete_old_segments, now_ms))
                if removed or (partition.holds_erased and partition.drop_erased(now_ms)):
                    left.append(partition)
                    await self._pacer.rest("retention")
            except AuditPending as pending:
                left.append(partition)
                waits = pending
        return left, waits

    async def _expire_producers(self) -> None:
        now_ms = self._clock.wall_ms()
        await self._pacer.run(self._expired(now_ms), "expire-producers", own=True)

    def _expired(self, now_ms: int) -> Work[None]:
        for partitions in self._some_at_a_time():
            for partition in partitions:
                if len(partition.log.producers):
                    yield from partition.log.producers.expire(now_ms)
            yield PARTITION_COST * len(partitions)

    async def _look_at_transactions(self) -> None:
        await self._pacer.run(self.open_transactions.look(), "open-transactions", own=True)

    def _high_watermark_of(self, log: PartitionLog) -> int:
        partition = self._hosted.get(log.topic, log.partition)
        return partition.high_watermark if partition is not None and partition.log is log else log.log_start_offset
