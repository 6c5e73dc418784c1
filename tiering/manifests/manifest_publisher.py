"""Keeps the manifests of the partitions that a broker leads up to date: after each change, but not more often than
once in a while per partition, a few at a time, again with growing pauses while the store fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from common.backoff import Backoff
from common.errors import OutcomeUnknown, ProtocolError
from common.lifecycle import duty
from object_store.errors import StoreError
from tiering.bucket.cluster_file import StaleCluster
from tiering.manifests.manifest import ManifestHead
from tiering.manifests.manifest_writer import Deposed, ManifestContested, ManifestServices, ManifestWriter, shows
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.tier_shard import PartitionId

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublisherLimits:
    """`interval_s` lies between two versions of one partition at least; `parallel` are written at a time."""

    interval_s: float = 1.0
    parallel: int = 4
    backoff_min_s: float = 1.0
    backoff_max_s: float = 60.0


class _Led:
    """One partition: idle, waiting for its time (`timer`), in the queue or in work (`is_busy`)."""

    __slots__ = ("failures", "is_busy", "is_changed", "next_s", "stopped", "timer", "writer")

    def __init__(self, writer: ManifestWriter) -> None:
        self.writer = writer
        self.next_s = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.is_busy = False
        self.is_changed = False
        self.failures = 0
        self.stopped: str | None = None


class ManifestPublisher:
    """One per broker. Calls on the loop; `start` once, `stop` ends it. A deposed partition stays silent until it is
    led again; `trouble` tells why."""

    def __init__(
        self,
        services: ManifestServices,
        limits: PublisherLimits,
        on_deposed: Callable[[PartitionTier, str], None] = lambda _tier, _reason: None,
    ) -> None:
        self._services = services
        self._limits = limits
        self._backoff = Backoff(limits.backoff_min_s, limits.backoff_max_s)
        self._on_deposed = on_deposed
        self._led: dict[PartitionId, _Led] = {}
        self._queue: asyncio.Queue[tuple[PartitionId, _Led]] = asyncio.Queue()  # bounded: one place per partition led
        self._workers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        for number in range(self._limits.parallel):
            self._workers.append(loop.create_task(self._work(), name=duty(f"publish-manifests-{number}")))

    async def stop(self) -> None:
        for identity in list(self._led):
            self.resign(*identity)
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    # leadership --------------------------------------------------------------------------------------------

    def lead(self, tier: PartitionTier) -> None:
        """This broker's claim was answered; `tier` is its live view. Publishes what the bucket does not show yet."""
        identity = (tier.topic_id, tier.partition)
        self.resign(*identity)
        self._led[identity] = _Led(ManifestWriter(self._services, tier))
        self.changed(tier.topic_id, tier.partition)

    def resign(self, topic_id: bytes, partition: int) -> None:
        """Publish nothing more. A version that is on its way may still appear."""
        led = self._led.pop((topic_id, partition), None)
        if led is None:
            return
        led.stopped = "leadership has gone"
        if led.timer is not None:
            led.timer.cancel()

    def changed(self, topic_id: bytes, partition: int) -> None:
        """The view of a led partition has changed: publish it when its time comes."""
        identity = (topic_id, partition)
        led = self._led.get(identity)
        if led is None or led.stopped is not None:
            return
        led.is_changed = True
        if not led.is_busy and led.timer is None:
            loop = asyncio.get_running_loop()
            led.timer = loop.call_later(max(0.0, led.next_s - loop.time()), self._due, identity, led)

    def published(self, topic_id: bytes, partition: int) -> ManifestHead | None:
        """The newest version in the bucket that this leader knows as its own."""
        led = self._led.get((topic_id, partition))
        return led.writer.published if led is not None else None

    def trouble(self, topic_id: bytes, partition: int) -> str | None:
        """Why nothing more is published for a led partition; None while it goes on."""
        led = self._led.get((topic_id, partition))
        return led.stopped if led is not None else None

    # work --------------------------------------------------------------------------------------------------

    def _due(self, identity: PartitionId, led: _Led) -> None:
        led.timer = None
        led.is_busy = True
        self._queue.put_nowait((identity, led))

    async def _work(self) -> None:
        while True:
            identity, led = await self._queue.get()
            if led.stopped is None:
                await self._publish(led)
            led.is_busy = False
            if led.is_changed:
                self.changed(*identity)

    async def _publish(self, led: _Led) -> None:
        loop, tier = asyncio.get_running_loop(), led.writer.tier
        led.is_changed = False
        try:
            head = await led.writer.publish()
        except (Deposed, StaleCluster) as error:
            self._give_up(led, str(error))
            return
        except (StoreError, ManifestContested, ProtocolError, OutcomeUnknown, ValueError) as error:
            led.failures += 1
            led.next_s = loop.time() + self._backoff.jittered_s(led.failures, self._services.random)
            led.is_changed = True
            fields = {"topic": tier.record.topic, "partition": tier.partition, "error": str(error)}
            _log.warning("manifest not published", extra=fields)
            return
        led.failures = 0
        led.next_s = loop.time() + self._limits.interval_s
        if not shows(head, tier):
            led.is_changed = True

    def _give_up(self, led: _Led, reason: str) -> None:
        tier = led.writer.tier
        if led.stopped is not None:
            return
        led.stopped = reason
        fields = {"topic": tier.record.topic, "partition": tier.partition, "reason": reason}
        _log.error("manifest no longer published", extra=fields)
        self._on_deposed(tier, reason)
