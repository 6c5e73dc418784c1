"""What leaves the tier: by retention over tier and disk together, by DeleteRecords, and what an unfinished copy left.

The log start moves first, as a record of the tier's state; then segments below it are DELETE_STARTED; their objects go
when a manifest without them is published and the delay has passed; only then is their entry forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from broker.tier.led import Guard, LedPartition, NotNow, TierCalls, check_owned
from common.ports import Clock
from object_store.errors import StoreError
from object_store.store import ObjectStore
from storage import retention
from storage.audit_trail import AuditTrail, audited
from storage.retention import SegmentView
from tiering.keys import TierRoot
from tiering.manifest import ManifestHead
from tiering.partition_tier import PartitionTier
from tiering.segment import TieredSegment
from tiering.shard_protocol import SEGMENTS_PER_REQUEST_MAX, FinishDelete, MoveLogStart, StartDelete

OBJECTS_PER_ROUND_MAX = 1_000


@dataclass(slots=True)
class DeleteCounts:
    """Since the broker started."""

    segments: int = 0
    bytes: int = 0
    failures: int = 0


class Manifests(Protocol):
    """The published image of what the tier holds; `tiering.manifest_publisher.ManifestPublisher`."""

    def lead(self, tier: PartitionTier) -> None:
        """The claim was answered; `tier` is the live view. Publishes what the bucket does not show yet."""
        ...

    def resign(self, topic_id: bytes, partition: int) -> None: ...

    def changed(self, topic_id: bytes, partition: int) -> None:
        """Publish it, soon; calls for one partition are put together."""
        ...

    def published(self, topic_id: bytes, partition: int) -> ManifestHead | None:
        """The newest version that this leader knows as its own."""
        ...


def retained_from(led: LedPartition, tier: PartitionTier, now_ms: int) -> retention.RetentionPlan:
    """Where the log is to begin by retention.ms and retention.bytes, at most at the tier's end."""
    log, tier_end = led.partition.log, tier.tier_end_offset
    views = [
        SegmentView(base, end, size, largest if largest >= 0 else now_ms)
        for base, end, largest, size in tier.sizes()
        if end > tier.log_start_offset
    ]
    local = sum(segment.size for segment in log.segments if segment.base_offset >= tier_end)
    views.append(SegmentView(tier_end, max(log.log_end_offset, tier_end + 1), local, now_ms))
    return retention.plan(views, log.config.retention_limits, tier.log_start_offset, tier_end, now_ms)


class Deleter:
    """Shared by all partitions that a broker leads."""

    def __init__(
        self,
        clock: Clock,
        delay_ms: int,
        store: ObjectStore,
        root: TierRoot,
        calls: TierCalls,
        guard: Guard,
        manifests: Manifests,
        audit: AuditTrail,
    ) -> None:
        self._clock = clock
        self._delay_ms = delay_ms
        self._store = store
        self._root = root
        self._calls = calls
        self._guard = guard
        self._manifests = manifests
        self._audit = audit
        self.counts = DeleteCounts()

    async def move_log_start(self, led: LedPartition, offset: int, cause: str, actor: str = "") -> None:
        """Serve nothing below `offset` any more: committed first, then here. Raises Fenced, NotNow, ProtocolError."""

        def request(view: PartitionTier) -> MoveLogStart | None:
            if view.log_start_offset >= offset:
                return None
            return MoveLogStart(led.leader_epoch, led.broker_epoch, offset, f"{cause} by {actor}" if actor else cause)

        await led.change(self._calls, request)
        log = led.partition.log

        def advance() -> bool:
            return log.advance_log_start(min(led.known.log_start_offset, log.log_end_offset), cause, actor)

        if await audited(advance):
            led.partition.log_start_moved()
            self._manifests.changed(led.known.topic_id, led.known.partition)

    async def retain(self, led: LedPartition) -> None:
        """Move the log start to where retention has it. Raises as `move_log_start`."""
        plan = retained_from(led, led.known, self._clock.wall_ms())
        if plan.doomed and plan.log_start_offset > led.known.log_start_offset:
            await self.move_log_start(led, plan.log_start_offset, str(plan.cause))

    async def delete(self, led: LedPartition) -> None:
        """Bring what lies below the log start, and what copies left behind, one step further. Raises Fenced, NotNow."""
        await self._start(led)
        due = self._due(led)
        if not due:
            return
        await check_owned(self._guard)
        self._audit.note(
            "tier_segments_deleted",
            topic=led.partition.topic,
            partition=led.partition.index,
            base_offsets=[segment.base_offset for segment in due],
            bytes=sum(segment.object_bytes for segment in due),
            log_start_offset=led.known.log_start_offset,
        )
        keys = [self._root.segment_key(led.known.path, segment.id) for segment in due]
        try:
            await self._store.delete(keys)
        except StoreError as error:
            self.counts.failures += 1
            raise NotNow(str(error)) from error
        request = FinishDelete(led.leader_epoch, led.broker_epoch, [segment.id for segment in due])
        await led.change(self._calls, lambda _: request)
        self.counts.segments += len(due)
        self.counts.bytes += sum(segment.object_bytes for segment in due)

    async def _start(self, led: LedPartition) -> None:
        while True:
            below = [one.id for one in islice(led.known.segments_below_log_start(), SEGMENTS_PER_REQUEST_MAX)]
            if not below:
                return
            request = StartDelete(led.leader_epoch, led.broker_epoch, below)
            await led.change(self._calls, lambda _, request=request: request)  # type: ignore[misc]
            led.deletes_offset = led.known.state_offset
            self._manifests.changed(led.known.topic_id, led.known.partition)

    def _due(self, led: LedPartition) -> list[TieredSegment]:
        """Whose objects may go now. The delay counts from when the deletion began, whoever led then."""
        tier = led.known
        latest_ms = self._clock.wall_ms() - self._delay_ms
        due = [segment for segment in tier.deleting() if segment.changed_ms <= latest_ms][:OBJECTS_PER_ROUND_MAX]
        if not due:
            return []
        published = self._manifests.published(tier.topic_id, tier.partition)
        if published is None or published.tier_state_offset < led.deletes_offset:
            self._manifests.changed(tier.topic_id, tier.partition)
            return []
        return due
