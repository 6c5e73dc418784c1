"""Publishes the manifests of the partitions that a broker leads after changes, with a minimum interval per partition, a
few at a time, and with backoff while the store fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec import Struct

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


class PublisherLimits(Struct, frozen=True):
    """`interval_s`: the minimum between two versions of one partition. `parallel`: concurrent writes."""

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

    def stop(self, reason: str) -> None:
        """Nothing more is published, whatever changes."""
        self.stopped = reason
        if self.timer is not None:
            self.timer.cancel()

    def change(self) -> bool:
        """Note a change. Returns whether nothing sees to it yet, neither a timer nor work under way."""
        self.is_changed = True
        return not self.is_busy and self.timer is None

    def wait(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer

    def begin(self) -> None:
        """Its interval has passed: it is queued."""
        self.timer, self.is_busy = None, True

    def end(self) -> bool:
        """Its turn is over. Returns whether it has changed meanwhile."""
        self.is_busy = False
        return self.is_changed

    def look(self) -> None:
        """The changes so far are being written."""
        self.is_changed = False

    def fail(self, pause_s: Callable[[int], float], now: float) -> None:
        """Nothing was written: again after a pause, by the number of failures in a row."""
        self.failures += 1
        self.next_s = now + pause_s(self.failures)
        self.is_changed = True

    def succeed(self, next_s: float, *, shows_all: bool) -> None:
        """A version was written; the next one not before `next_s`."""
        self.failures = 0
        self.next_s = next_s
        self.is_changed = self.is_changed or not shows_all


class ManifestPublisher:
    """One per broker, used on the loop. A deposed partition is not published until it is led again; `trouble` returns
    why."""

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
        """Publish changes of `tier`, the live view of a partition whose claim was granted."""
        identity = (tier.topic_id, tier.partition)
        self.resign(*identity)
        self._led[identity] = _Led(ManifestWriter(self._services, tier))
        self.changed(tier.topic_id, tier.partition)

    def resign(self, topic_id: bytes, partition: int) -> None:
        """Publish nothing more. A write under way may still complete."""
        led = self._led.pop((topic_id, partition), None)
        if led is not None:
            led.stop("leadership has gone")

    def changed(self, topic_id: bytes, partition: int) -> None:
        """Publish a led partition's changed view when its interval has passed."""
        identity = (topic_id, partition)
        led = self._led.get(identity)
        if led is None or led.stopped is not None:
            return
        if led.change():
            loop = asyncio.get_running_loop()
            led.wait(loop.call_later(max(0.0, led.next_s - loop.time()), self._due, identity, led))

    def published(self, topic_id: bytes, partition: int) -> ManifestHead | None:
        """The newest version in the bucket that this leader knows as its own."""
        led = self._led.get((topic_id, partition))
        return led.writer.published if led is not None else None

    def trouble(self, topic_id: bytes, partition: int) -> str | None:
        """Why a led partition is no longer published; None otherwise."""
        led = self._led.get((topic_id, partition))
        return led.stopped if led is not None else None

    # work --------------------------------------------------------------------------------------------------

    def _due(self, identity: PartitionId, led: _Led) -> None:
        led.begin()
        self._queue.put_nowait((identity, led))

    async def _work(self) -> None:
        while True:
            identity, led = await self._queue.get()
            if led.stopped is None:
                await self._publish(led)
            if led.end():
                self.changed(*identity)

    async def _publish(self, led: _Led) -> None:
        loop, tier = asyncio.get_running_loop(), led.writer.tier
        led.look()
        try:
            head = await led.writer.publish()
        except (Deposed, StaleCluster) as error:
            self._give_up(led, str(error))
            return
        except (StoreError, ManifestContested, ProtocolError, OutcomeUnknown, ValueError) as error:
            led.fail(lambda failures: self._backoff.jittered_s(failures, self._services.random), loop.time())
            fields = {"topic": tier.record.topic, "partition": tier.partition, "error": str(error)}
            _log.warning("manifest not published", extra=fields)
            return
        led.succeed(loop.time() + self._limits.interval_s, shows_all=shows(head, tier))

    def _give_up(self, led: _Led, reason: str) -> None:
        tier = led.writer.tier
        if led.stopped is not None:
            return
        led.stop(reason)
        fields = {"topic": tier.record.topic, "partition": tier.partition, "reason": reason}
        _log.error("manifest no longer published", extra=fields)
        self._on_deposed(tier, reason)
