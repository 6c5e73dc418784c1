"""Deletion from the tier: by retention over tier and disk together, by DeleteRecords, and of unfinished copies.

The log start moves first, as a record of the tier's state. Then segments below it become DELETE_STARTED, like those
that a job's segments have replaced. Their objects are deleted when a manifest without them is published and the delay
has passed; then their entries are removed. Objects with records that were erased by key do not wait for the full delay.
"""

from __future__ import annotations

from functools import partial
from itertools import islice

from msgspec import Struct

from broker.tier.led import LedPartition, NotNow, check_owned
from broker.tier.services import Guard, Manifests, TierCalls
from common.ports import Clock
from object_store.errors import StoreError
from object_store.store import ObjectStore
from storage.audit.audit_trail import AuditTrail, audited
from storage.log import retention
from storage.log.retention import SegmentView
from tiering.bucket.keys import TierRoot
from tiering.bucket.segment import TieredSegment
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import SEGMENTS_PER_REQUEST_MAX, FinishDelete, MoveLogStart, StartDelete
from tiering.shard.tier_records import cause_text

OBJECTS_PER_ROUND_MAX = 1_000


class DeleteDelays(Struct, frozen=True):
    """How long objects stay after their deletion began, in milliseconds, for the sake of reads in progress. `erased_ms`
    applies to objects with erased records."""

    usual_ms: int
    erased_ms: int

    def of(self, tier: PartitionTier, segment: TieredSegment) -> int:
        return min(self.usual_ms, self.erased_ms) if holds_erased(tier, segment) else self.usual_ms


def holds_erased(tier: PartitionTier, segment: TieredSegment) -> bool:
    """Whether a DELETE_STARTED segment may hold erased records: it is older than the erasure and below its end."""
    record = tier.record
    return segment.base_offset < record.erased_end_offset and segment.changed_ms <= record.erased_ms


class DeleteCounts(Struct):
    """Since the broker started."""

    segments: int = 0
    bytes: int = 0
    failures: int = 0

    def deleted(self, segments: list[TieredSegment]) -> None:
        self.segments += len(segments)
        self.bytes += sum(segment.object_bytes for segment in segments)

    def failed(self) -> None:
        self.failures += 1


def retained_from(led: LedPartition, tier: PartitionTier, now_ms: int) -> retention.RetentionPlan:
    """The log start that retention.ms and retention.bytes ask for: at most the tier's end, or while copying is
    disabled, at most the high watermark. Raises PagesMissing, ProtocolError."""
    log, tier_end = led.partition.log, tier.tier_end_offset
    limits = log.config.retention_limits
    views = [
        SegmentView(base, end, size, largest if largest >= 0 else now_ms)
        for base, end, largest, size in tier.sizes()
        if end > tier.log_start_offset
    ]
    if log.config.remote_log_copy_disable:
        uncopied, more_bytes = log.oldest_views(limits.ms, now_ms, max(tier_end, tier.log_start_offset))
        bound = led.partition.high_watermark
        return retention.plan(views + uncopied, limits, tier.log_start_offset, bound, now_ms, more_bytes=more_bytes)
    local = sum(segment.size for segment in log.segments if segment.base_offset >= tier_end)
    views.append(SegmentView(tier_end, max(log.log_end_offset, tier_end + 1), local, now_ms))
    return retention.plan(views, limits, tier.log_start_offset, tier_end, now_ms)


class Deleter:
    """Shared by all partitions that a broker leads."""

    def __init__(
        self,
        clock: Clock,
        delays: DeleteDelays,
        store: ObjectStore,
        root: TierRoot,
        calls: TierCalls,
        guard: Guard,
        manifests: Manifests,
        audit: AuditTrail,
    ) -> None:
        self._clock = clock
        self._delays = delays
        self._store = store
        self._root = root
        self._calls = calls
        self._guard = guard
        self._manifests = manifests
        self._audit = audit
        self.counts = DeleteCounts()

    async def move_log_start(self, led: LedPartition, offset: int, cause: str, actor: str = "") -> None:
        """Move the log start to `offset`, first in the shard, then here. Raises Fenced, NotNow, ProtocolError."""

        def request(view: PartitionTier) -> MoveLogStart | None:
            if view.log_start_offset >= offset:
                return None
            return MoveLogStart(led.leader_epoch, led.broker_epoch, offset, cause_text(cause, actor))

        await led.change(self._calls, request)
        log = led.partition.log

        def advance() -> bool:
            return log.advance_log_start(min(led.known.log_start_offset, log.log_end_offset), cause, actor)

        if await audited(advance):
            led.partition.log_start_moved()
            self._manifests.changed(led.known.topic_id, led.known.partition)

    def next_s(self, led: LedPartition) -> float:
        """Seconds until the next object may be deleted; infinite if none is to be."""
        tier, now_ms = led.known, self._clock.wall_ms()
        due = (one.changed_ms + self._delays.of(tier, one) - now_ms for one in tier.deleting())
        return max(min(due, default=float("inf")), 0.0) / 1000

    async def retain(self, led: LedPartition) -> None:
        """Move the log start to where retention wants it. Raises as `move_log_start`."""
        log, now_ms = led.partition.log, self._clock.wall_ms()
        plan = await log.when_in_memory(partial(retained_from, led, led.known, now_ms))
        if not plan.doomed or plan.log_start_offset <= led.known.log_start_offset:
            return
        if plan.log_start_offset > log.active.base_offset and not log.roll_now(now_ms):
            return  # bytes of it must be read from the device: next time
        await self.move_log_start(led, plan.log_start_offset, str(plan.cause))

    async def delete(self, led: LedPartition) -> None:
        """Advance the deletion of segments below the log start and of abandoned copies by one step. Raises Fenced,
        NotNow."""
        await self._give_up_copies(led)
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
            self.counts.failed()
            raise NotNow(str(error)) from error
        request = FinishDelete(led.leader_epoch, led.broker_epoch, [segment.id for segment in due])
        await led.change(self._calls, lambda _: request)
        # otherwise the manifest would be behind until the next copy
        self._manifests.changed(led.known.topic_id, led.known.partition)
        self.counts.deleted(due)

    async def _give_up_copies(self, led: LedPartition) -> None:
        """Delete what a copy left that was under way when copying was disabled: no later copy would."""

        def request(view: PartitionTier) -> StartDelete | None:
            left = [segment.id for segment in view.copying()]
            if not left or led.is_copying or not led.partition.log.config.remote_log_copy_disable:
                return None
            return StartDelete(led.leader_epoch, led.broker_epoch, left)

        if led.known.copying():
            await led.change(self._calls, request)

    async def _start(self, led: LedPartition) -> None:
        while True:
            below = [one.id for one in islice(led.known.segments_below_log_start(), SEGMENTS_PER_REQUEST_MAX)]
            if not below:
                return
            request = StartDelete(led.leader_epoch, led.broker_epoch, below)
            await led.change(self._calls, lambda _, request=request: request)  # type: ignore[misc]
            self._manifests.changed(led.known.topic_id, led.known.partition)

    def _due(self, led: LedPartition) -> list[TieredSegment]:
        """The segments whose objects may be deleted now. The delay counts from the start of the deletion, under any
        leader."""
        tier, now_ms = led.known, self._clock.wall_ms()
        due = [one for one in tier.deleting() if one.changed_ms + self._delays.of(tier, one) <= now_ms]
        if not due:
            return []
        head = self._manifests.published(tier.topic_id, tier.partition)
        unnamed = [] if head is None else [one for one in due if tier.state_offset_of(one.id) <= head.tier_state_offset]
        if len(unnamed) < len(due):
            self._manifests.changed(tier.topic_id, tier.partition)
        return unnamed[:OBJECTS_PER_ROUND_MAX]


def erased_objects(tier: PartitionTier) -> bool:
    """Whether objects with erased records wait to be deleted."""
    return any(holds_erased(tier, segment) for segment in tier.deleting())
