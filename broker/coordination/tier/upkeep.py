"""Upkeep of the bucket by the host of tier shards: removes the tiers of deleted topics and unreferenced objects.

A deleted topic's partition is dropped in the shard, and its manifest marks it as dropped. Manifest and objects stay for
the delay, in which the topic can be restored. Then a manifest without segments is published, everything else is
deleted, and the shard forgets the partition; the sweep deletes that manifest later. The next host can repeat each step
from where this one stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from itertools import chain

from msgspec import Struct, field

from broker.coordination.tier.client import TierClient
from broker.coordination.tier.coordinator import TierCoordinator
from common.backoff import SLIGHT
from common.errors import OutcomeUnknown, ProtocolError
from common.identifiers import ZERO_UUID
from common.lifecycle import duty, end_tasks
from kraft.image.metadata import MetadataImage
from object_store.errors import StoreError
from tiering.bucket.cluster_file import StaleCluster
from tiering.bucket.keys import PartitionPath
from tiering.manifests.manifest_writer import Deposed, ManifestContested, ManifestServices, ManifestWriter
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import Done, ForgetPartition
from tiering.shard.tier_shard import PartitionId
from tiering.upkeep.inventory import list_partitions
from tiering.upkeep.sweeper import Sweeper, SweepLimits, SweepReport

_log = logging.getLogger(__name__)

_PUT_OFF = (StoreError, ManifestContested, Deposed, ProtocolError, OutcomeUnknown, ValueError)
"""Expected failures of one partition's upkeep; the others go on."""


class UpkeepConfig(Struct, frozen=True):
    """`delete_delay_ms`: how long the objects of a deleted topic stay."""

    delete_delay_ms: int = 24 * 3_600_000
    round_s: float = 30.0
    sweep_interval_s: float = 3_600.0
    sweep: SweepLimits = field(default_factory=SweepLimits)


class TierUpkeep:
    """One per broker with a tier. `last_sweep`: what the last sweep removed."""

    def __init__(
        self,
        services: ManifestServices,
        coordinator: TierCoordinator,
        client: TierClient,
        image: Callable[[], MetadataImage],
        config: UpkeepConfig,
    ) -> None:
        self.last_sweep: SweepReport | None = None
        self._services = services
        self._coordinator = coordinator
        self._client = client
        self._image = image
        self._config = config
        self._sweeper = Sweeper(services.store, services.root, config.sweep)
        # dropped partitions whose manifest says so, and when they were dropped
        self._announced: dict[PartitionId, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._begin("end-deleted-tiers", self._config.round_s, self.end_deleted)
        self._begin("sweep-tier", self._config.sweep_interval_s, self.sweep)

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        await end_tasks(tasks)

    def _begin(self, name: str, interval_s: float, work: Callable[[], Awaitable[object]]) -> None:
        async def run() -> None:
            while True:
                await asyncio.sleep(SLIGHT.spread(interval_s, self._services.random))
                try:
                    await work()
                except StaleCluster as error:
                    _log.error("the tier's upkeep has ended", extra={"upkeep": name, "reason": str(error)})
                    return
                except _PUT_OFF as error:
                    _log.warning("the tier's upkeep is put off", extra={"upkeep": name, "error": str(error)})

        self._tasks.append(asyncio.get_running_loop().create_task(run(), name=duty(name)))

    # deleted topics ----------------------------------------------------------------------------------------

    async def end_deleted(self) -> None:
        """One round over the dropped partitions of the shards here. Raises StaleCluster."""
        await self._coordinator.drop_missing()
        dropped: dict[PartitionId, None] = {}
        for index in self._coordinator.hosted():
            with contextlib.suppress(ProtocolError):  # another broker leads the shard by now, and ends them
                dropped.update(dict.fromkeys(await self._coordinator.dropped(index)))
        self._announced = {identity: when for identity, when in self._announced.items() if identity in dropped}
        for identity in dropped:
            try:
                await self._end(identity)
            except _PUT_OFF as error:
                self._put_off("a deleted topic's data is not removed yet", identity, error)

    async def _end(self, identity: PartitionId) -> None:
        tier = await self._client.describe(*identity)
        dropped_ms = tier.record.dropped_ms
        if not dropped_ms:
            return
        if self._services.clock.wall_ms() - dropped_ms < self._config.delete_delay_ms:
            if self._announced.get(identity) != dropped_ms:
                await ManifestWriter(self._services, tier).publish()
                self._announced[identity] = dropped_ms
            return
        report = SweepReport()
        last = await ManifestWriter(self._services, tier).publish(empty=True)
        await self._sweeper.remove_partition(tier.path, last.version, report)
        while True:
            reply = await self._coordinator.call(*identity, ForgetPartition())
            if not isinstance(reply, Done) or not reply.records:
                break
        fields = {"topic": tier.record.topic, "partition": tier.partition, "objects": report.count}
        _log.warning("a deleted topic's data is removed", extra=fields | {"bytes": report.bytes})

    # sweeping ----------------------------------------------------------------------------------------------

    async def sweep(self) -> SweepReport:
        """One sweep over the partitions of the shards here. Raises StaleCluster, and errors of listing the bucket."""
        await self._services.guard.check()
        report = SweepReport()
        now_ms = self._services.clock.wall_ms()
        topics = await list_partitions(self._services.store, self._services.root)
        for path in chain.from_iterable(topics.values()):
            identity = (path.topic_id, path.partition)
            if not self._answers_for(identity):
                continue
            try:
                await self._services.guard.check()
                await self._sweep_one(path, now_ms, report)
            except _PUT_OFF as error:
                self._put_off("not swept", identity, error)
        if self._answers_for((ZERO_UUID, 0)):
            await self._sweeper.sweep_unfinished(now_ms, report)
            await self._sweeper.sweep_probes(now_ms, report)
            await self._sweeper.sweep_proposals(now_ms, report)
        self.last_sweep = report
        fields = {"objects": report.count, "bytes": report.bytes, "unfinished": report.unfinished}
        _log.info("tier swept", extra=fields | {"left": len(report.left)})
        for what in report.left:
            _log.warning("left in the tier", extra={"reason": what})
        return report

    async def _sweep_one(self, path: PartitionPath, now_ms: int, report: SweepReport) -> None:
        identity = (path.topic_id, path.partition)

        async def state() -> PartitionTier | None:
            tier = await self._client.describe(*identity)
            return tier if tier.is_claimed and tier.path == path else None

        async def is_unknown() -> bool:
            tier = await self._client.describe(*identity)
            return tier.is_empty and self._image().topics.get_by_id(path.topic_id) is None

        if (await self._client.describe(*identity)).is_empty:
            await self._sweeper.sweep_unknown(path, is_unknown, self._config.delete_delay_ms, now_ms, report)
        else:
            await self._sweeper.sweep_partition(path, state, now_ms, report)

    def _answers_for(self, identity: PartitionId) -> bool:
        """Whether the shard of this partition is hosted here."""
        try:
            return self._coordinator.shard_of(*identity) in self._coordinator.hosted()
        except ProtocolError:
            return False

    def _put_off(self, what: str, identity: PartitionId, error: Exception) -> None:
        fields = {"topic_id": identity[0].hex(), "partition": identity[1], "error": str(error)}
        _log.warning(what, extra=fields)
