"""Shards of followed partitions that are kept up to date, so that a new leader serves at once.

A standby has exactly what is below the follower's high watermark, so an ordinary change of leader takes nothing back.
If the log was truncated or replaced, it starts over. All standbys of a broker share a memory limit; shards that do not
fit are loaded from the log when their partition is led.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec import Struct

from broker.coordination.loading import LoadLimits, load_shard
from broker.coordination.partition_access import CoordinatedLog, CoordinatedPartition
from broker.coordination.shard import Shard
from broker.coordination.snapshots import ShardSnapshots, begin_shard, still
from common.errors import ProtocolError, StorageFailure
from common.lifecycle import duty, end_task
from common.pacing import Pacer

SIZE_AFTER_RECORDS = 20_000  # a growing standby is measured again after this many records

_log = logging.getLogger(__name__)

Key = tuple[str, int]


class StandbyLimits(Struct, frozen=True):
    """`bytes_max`: limit for all standbys, 0 for no standbys. `interval_s`: pause between two checks of the logs."""

    bytes_max: int = 0
    interval_s: float = 0.5


class _Standby(Struct):
    """`shard` reflects `log` below `applied`; `generation` is the log's number of truncations then."""

    shard: Shard | None  # None if it does not fit into the memory limit
    log: CoordinatedLog
    generation: int
    applied: int
    size: int = 0  # as measured; 0 before
    measured_at: int = 0  # `applied` at the measurement

    def is_of(self, partition: CoordinatedPartition) -> bool:
        """Whether everything that the standby has applied is still in the partition's log."""
        log = partition.log
        return self.log is log and self.generation == log.generation and self.applied <= log.log_end_offset

    async def follow(self, partition: CoordinatedPartition, shard: Shard, limits: LoadLimits, pacer: Pacer) -> None:
        """Replay up to the high watermark. Raises as `load_shard`."""
        until = partition.high_watermark
        self.applied = await load_shard(partition, shard, limits, pacer, self.applied, until)

    def measure(self, shard: Shard) -> bool:
        """Measure the shard if it has grown by many records. Returns whether it did."""
        if self.size and self.applied - self.measured_at < SIZE_AFTER_RECORDS:
            return False
        self.size, self.measured_at = shard.held_bytes(), self.applied
        return True

    def release(self) -> None:
        """It does not fit into the memory limit: free the shard, but keep the entry, so that it is not started
        again."""
        self.shard, self.size = None, 0


class Standbys:
    """Owns one task, which follows one partition after another. `followed` returns the current partitions."""

    def __init__(
        self,
        followed: Callable[[], list[CoordinatedPartition]],
        make_shard: Callable[[str, int], Shard],
        load: LoadLimits,
        limits: StandbyLimits,
        pacer: Pacer,
        snapshots: ShardSnapshots | None,
    ) -> None:
        self._followed = followed
        self._make_shard = make_shard
        self._load = load
        self._limits = limits
        self._pacer = pacer
        self._snapshots = snapshots
        self._kept: dict[Key, _Standby] = {}
        self._advancing: tuple[Key, asyncio.Task[None]] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._limits.bytes_max:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=duty("standby-shards"))

    async def stop(self) -> None:
        if self._advancing is not None:
            self._advancing[1].cancel()
        await end_task(self._task)
        self._task = None
        self._kept.clear()

    @property
    def size(self) -> int:
        """Bytes of all standbys as measured."""
        return sum(standby.size for standby in self._kept.values())

    def take(self, partition: CoordinatedPartition) -> tuple[Shard, int] | None:
        """Remove and return the partition's standby, and the offset from which the log must be replayed."""
        key = (partition.topic, partition.index)
        if self._advancing is not None and self._advancing[0] == key:
            self._advancing[1].cancel()  # no further slice runs; records that were already applied may be applied again
        standby = self._kept.pop(key, None)
        if standby is None or standby.shard is None or not standby.is_of(partition):
            return None
        return standby.shard, standby.applied

    async def _run(self) -> None:
        while True:
            followed = {(partition.topic, partition.index): partition for partition in self._followed()}
            for key in [key for key in self._kept if key not in followed]:
                del self._kept[key]
            for key, partition in followed.items():
                await self._follow(key, partition)
            await asyncio.sleep(self._limits.interval_s)

    async def _follow(self, key: Key, partition: CoordinatedPartition) -> None:
        standby = self._kept.get(key)
        if standby is None or not standby.is_of(partition):
            log = partition.log
            generation = log.generation
            shard, begin = await begin_shard(partition, lambda: self._make_shard(*key), self._snapshots)
            standby = self._kept[key] = _Standby(shard, log, generation, begin)
        if standby.shard is None or standby.applied >= partition.high_watermark:
            return
        step = asyncio.get_running_loop().create_task(self._advance(key, partition, standby, standby.shard))
        self._advancing = (key, step)
        await asyncio.wait([step])
        self._advancing = None
        if not step.cancelled():
            step.result()

    async def _advance(self, key: Key, partition: CoordinatedPartition, standby: _Standby, shard: Shard) -> None:
        try:
            await standby.follow(partition, shard, self._load, self._pacer)
        except (ProtocolError, StorageFailure, OSError, ValueError) as error:
            fields = {"topic": partition.topic, "partition": partition.index, "error": str(error)}
            _log.warning("a standby is dropped for now", extra=fields)
            self._kept.pop(key, None)
            return
        if standby.measure(shard) and self.size > self._limits.bytes_max:
            standby.release()
            fields = {"topic": partition.topic, "partition": partition.index}
            _log.info("a standby does not fit into the memory limit", extra=fields)
            return
        if not standby.is_of(partition):
            return  # the log was truncated meanwhile: the shard may have records of both lineages
        if self._snapshots is not None and self._snapshots.is_due(partition, shard, standby.applied):
            await self._snapshots.write(partition, shard, still(standby.applied))
