"""DescribeTier (10001): this broker's knowledge of the tier, for operators.

For partition -1 the response describes the broker: its store, the tiered partitions that it leads, the deleted topics
that it keeps until their delay is over. For a partition it has the partition's state in `__tier_state`, whichever
broker hosts its shard. The store may be down: nothing waits for it longer than a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from broker.coordination.tier.client import TierClient
from broker.coordination.tier.coordinator import TierCoordinator
from broker.replication.cold_reading import ColdReading, Damage
from broker.requests.context import RequestContext
from broker.requests.forwarding import Forwarder
from broker.tier.led import LedPartition
from broker.tier.opening import LateStore
from broker.tier.service import TierService
from broker.tier.verified import LastVerifications
from common.errors import ErrorCode, OutcomeUnknown, ProtocolError
from common.ports import Clock
from kraft.image.metadata import MetadataImage
from object_store.errors import ObjectMissing, StoreError
from tiering.bucket.cluster_file import ClusterGuard, StaleCluster
from tiering.bucket.keys import TierRoot
from tiering.bucket.segment import SegmentId
from tiering.exports.export_rounds import ExportTrouble
from tiering.manifests.manifest_publisher import ManifestPublisher
from tiering.shard.description import (
    BrokerTier,
    DroppedStatus,
    LedStatus,
    StoreStatus,
    SweepStatus,
    TierPage,
    encode,
)
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import SEGMENTS_PER_REQUEST_MAX
from tiering.upkeep.sweeper import SweepReport
from wire.messages import DescribeTierRequest, DescribeTierResponse, raw_uuid

PROBE_S = 3.0
SHARD_S = 10.0
PARTITIONS_PER_TURN = 128
DROPPED_MAX = 1_000
SEGMENTS_PER_PAGE = SEGMENTS_PER_REQUEST_MAX
LAST_UUID = "f" * 32
SWEEP_LEFT_MAX = 100


class Plane(Protocol):
    """The tier that is described: `broker.tier.plane.TierPlane`."""

    uri: str
    delete_delay_ms: int
    store: LateStore
    root: TierRoot
    guard: ClusterGuard
    publisher: ManifestPublisher
    service: TierService
    verified: LastVerifications

    @property
    def export_trouble(self) -> ExportTrouble: ...

    @property
    def last_sweep(self) -> SweepReport | None: ...


class TierDescriptions:
    """One method per API."""

    def __init__(
        self,
        node_id: int,
        plane: Callable[[], Plane | None],
        client: TierClient,
        coordinator: TierCoordinator,
        forwarder: Forwarder,
        clock: Clock,
        cold: Callable[[], ColdReading | None] = lambda: None,
    ) -> None:
        """`cold` returns the tier's reader, None if this broker has none."""
        self._node_id = node_id
        self._plane = plane
        self._client = client
        self._coordinator = coordinator
        self._forwarder = forwarder
        self._clock = clock
        self._cold = cold

    async def describe_tier(self, context: RequestContext, request: DescribeTierRequest) -> DescribeTierResponse:
        index = request.partition_index
        try:
            if index < 0:
                description: BrokerTier | TierPage = await self._broker()
            else:
                description = await self._page(raw_uuid(request.topic_id), index, request.after_base_offset)
        except ProtocolError as error:
            return _described(error.code, error.message)
        except OutcomeUnknown:
            return _described(ErrorCode.REQUEST_TIMED_OUT, "the tier's state does not answer")
        return _described(ErrorCode.NONE, description=encode(description))

    # one partition -----------------------------------------------------------------------------------------

    async def _page(self, topic_id: bytes, partition: int, after: int) -> TierPage:
        tier = await self._client.describe(topic_id, partition, SHARD_S)
        record = tier.record
        behind = SegmentId(after, LAST_UUID) if after >= 0 else None
        ids = tier.ids(SEGMENTS_PER_PAGE + 1, behind)
        shown = [segment for one in ids[:SEGMENTS_PER_PAGE] if (segment := tier.get(one)) is not None]
        return TierPage(
            known=not tier.is_empty,
            topic=record.topic,
            tenant=record.tenant,
            leader_epoch=record.leader_epoch,
            broker_id=record.broker_id,
            log_start_offset=tier.log_start_offset,
            tier_end_offset=tier.tier_end_offset,
            dropped_ms=record.dropped_ms,
            state_offset=tier.state_offset,
            segments=shown,
            more=len(ids) > SEGMENTS_PER_PAGE,
        )

    # this broker -------------------------------------------------------------------------------------------

    async def _broker(self) -> BrokerTier:
        plane, image = self._plane(), self._forwarder.image
        if plane is None:
            return BrokerTier(broker_id=self._node_id, cluster_id=image.cluster_id or "")
        cold = self._cold()
        damage = cold.damage() if cold is not None else {}
        led: list[LedStatus] = []
        for number, one in enumerate(plane.service.led):
            if number % PARTITIONS_PER_TURN == PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)
            place = (one.partition.topic_id, one.partition.index)
            led.append(_led_status(one, plane.publisher, damage.get(place, [])))
        dropped, more = await self._dropped(plane)
        sweep = plane.last_sweep
        store = await self._store(plane, image)
        return BrokerTier(
            broker_id=self._node_id,
            cluster_id=image.cluster_id or "",
            store=store,
            partitions=led,
            dropped=dropped,
            more_dropped=more,
            sweep=None if sweep is None else _sweep_status(sweep),
            verified=await plane.verified.known() if store.answers else plane.verified.last,
        )

    async def _store(self, plane: Plane, image: MetadataImage) -> StoreStatus:
        """Whether the store answers now; a broker that has nothing to copy does not know otherwise.

        The probe reads the file itself. The response to HEAD has no body, so S3 would not distinguish a missing object
        from a missing bucket, and would give no reason for a rejection.
        """
        answers, reason, asked_ms = True, "", self._clock.wall_ms()
        try:
            async with asyncio.timeout(PROBE_S):
                await plane.store.get(plane.root.cluster_file)
                if plane.guard.missing is not None:
                    await plane.guard.check()
        except ObjectMissing:
            if plane.guard.missing is not None:
                answers, reason = False, plane.guard.missing
        except TimeoutError:
            answers, reason = False, f"no answer within {PROBE_S:g} s"
        except (StoreError, ValueError, StaleCluster) as error:
            answers, reason = False, error.reason if isinstance(error, StoreError) else str(error)
        health, counts, trouble = plane.store.health, plane.service.copier.counts, plane.export_trouble
        if not answers and not health.since_ms:
            since_ms = plane.guard.missing_since_ms if plane.guard.missing is not None else asked_ms
        else:
            since_ms = health.since_ms
        return StoreStatus(
            uri=plane.uri,
            answers=answers and not health.since_ms,
            since_ms=since_ms,
            reason=reason or health.reason,
            refused_since_ms=counts.refused_since_ms,
            incarnation=image.incarnation,
            stale=plane.guard.stale,
            export_trouble_since_ms=trouble.since_ms,
            export_trouble=trouble.reason,
        )

    async def _dropped(self, plane: Plane) -> tuple[list[DroppedStatus], int]:
        """Dropped partitions of the shards that this broker serves now."""
        found: list[DroppedStatus] = []
        total = 0
        for index in self._coordinator.hosted():
            try:
                identities = await self._coordinator.dropped(index)
            except ProtocolError:
                continue
            total += len(identities)
            for identity in identities[: DROPPED_MAX - len(found)]:
                tier = await self._client.describe(*identity, SHARD_S)
                if tier.is_dropped:
                    found.append(_dropped_status(tier, plane.delete_delay_ms))
        return found, max(total - DROPPED_MAX, 0)


def _described(code: ErrorCode, message: str | None = None, description: bytes = b"") -> DescribeTierResponse:
    return DescribeTierResponse(
        throttle_time_ms=0, error_code=code, error_message=message or None, description=description
    )


def _sweep_status(sweep: SweepReport) -> SweepStatus:
    return SweepStatus(
        objects=sweep.count, bytes=sweep.bytes, unfinished=sweep.unfinished, left=sweep.left[:SWEEP_LEFT_MAX]
    )


def _dropped_status(tier: PartitionTier, delay_ms: int) -> DroppedStatus:
    return DroppedStatus(
        topic=tier.record.topic,
        topic_id=tier.topic_id.hex(),
        partition=tier.partition,
        dropped_ms=tier.record.dropped_ms,
        gone_ms=tier.record.dropped_ms + delay_ms,
        log_start_offset=tier.log_start_offset,
        tier_end_offset=tier.tier_end_offset,
    )


def _led_status(led: LedPartition, publisher: ManifestPublisher, damage: Sequence[Damage]) -> LedStatus:
    """`damage` may include segments that were deleted or replaced meanwhile."""
    partition, view = led.partition, led.view
    unread = [one.reason for one in damage if view is None or view.value_of(one.segment) is not None]
    log = partition.log
    tier_end = partition.tier_end_offset if view is None else view.tier_end_offset
    published = publisher.published(partition.topic_id, partition.index)
    return LedStatus(
        topic=partition.topic,
        topic_id=partition.topic_id.hex(),
        partition=partition.index,
        leader_epoch=led.leader_epoch,
        log_start_offset=log.log_start_offset,
        local_log_start_offset=log.local_log_start_offset,
        high_watermark=partition.high_watermark,
        log_end_offset=log.log_end_offset,
        claimed=led.reconciled,
        tier_end_offset=None if view is None else tier_end,
        segments=0 if view is None else view.finished_count,
        tier_bytes=0 if view is None else view.log_bytes,
        copy_lag_bytes=led.uncopied_bytes,
        copying=0 if view is None else len(view.copying()),
        deleting=0 if view is None else len(view.deleting()),
        failures=led.failures,
        waits_for=led.trouble or None,
        manifest_version=None if published is None else published.version,
        manifest_trouble=publisher.trouble(partition.topic_id, partition.index),
        rewritten=0 if view is None else view.rewritten_count,
        erased_end_offset=partition.erased_end_offset,
        holds_erased=partition.holds_erased,
        unreadable=len(unread),
        read_trouble=unread[-1] if unread else None,
    )
