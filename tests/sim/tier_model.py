"""What `__tier_state` says, read record by record as it is committed, and what must hold of it after each record.

It knows nothing of the product's own replay: a partition's history is a list of what was so at which offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from tests.sim.history import TopicPartition
from tests.sim.invariants import CommittedLog, InvariantBroken, tell
from tests.sim.replica_files import Batch, batch_at
from tiering.bucket.segment import SegmentId, SegmentState, TieredSegment
from tiering.shard.tier_records import (
    KeyKind,
    PartitionRecord,
    SwapRecord,
    decode_key,
    decode_partition,
    decode_segment,
    decode_swap,
)

Identity = tuple[bytes, int]  # topic id and partition
Claimed = tuple[int, int]  # leader epoch and broker


class Span(NamedTuple):
    """A partition's tier at one offset of the state: what a manifest of that offset shows."""

    log_start: int
    tier_end: int
    segments: tuple[SegmentId, ...]  # finished ones that reach above the log start


class ModelledTier:
    """One partition. `claims` are all that ever were; `spans` are as of the state offsets in `offsets`."""

    def __init__(self, topic: str, index: int) -> None:
        self.key: TopicPartition = (topic, index)
        self.record = PartitionRecord(topic, "")
        self.segments: dict[SegmentId, TieredSegment] = {}
        self.tier_end = 0
        self.claims: set[Claimed] = set()
        self.offsets: list[int] = []
        self.spans: list[Span] = []

    @property
    def log_start(self) -> int:
        return self.record.log_start_offset

    @property
    def is_dropped(self) -> bool:
        return self.record.dropped_ms > 0

    def in_state(self, state: SegmentState) -> list[TieredSegment]:
        return [segment for _, segment in sorted(self.segments.items()) if segment.state is state]

    def span(self) -> Span:
        finished = self.in_state(SegmentState.COPY_FINISHED)
        return Span(self.log_start, self.tier_end, tuple(s.id for s in finished if s.end_offset > self.log_start))

    def span_at(self, offset: int) -> Span | None:
        at = bisect_right(self.offsets, offset)
        return self.spans[at - 1] if at else None

    def note(self, offset: int) -> None:
        self.offsets.append(offset)
        self.spans.append(self.span())


class TierRecordsAreLegal:
    """Copies form one chain, without a range twice and without a hole above the log start; what is finished is
    committed; nothing is deleted that is neither below the log start nor replaced, by segments of exactly the same
    offsets; and the log start never goes back."""

    def __init__(self, committed: CommittedLog, *, lossy: bool) -> None:
        """`lossy`: the topic may lose what was acknowledged, so that bytes and high watermark prove nothing."""
        self.tiers: dict[Identity, ModelledTier] = {}
        self.forgotten: dict[Identity, ModelledTier] = {}
        self.emptied: Callable[[TopicPartition], None] = lambda key: None  # called with each tier that was
        self._committed, self._lossy = committed, lossy

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        """One committed record. Raises InvariantBroken."""
        decoded = decode_key(key)
        if decoded is None:
            return
        identity = (decoded.topic_id, decoded.partition)
        if decoded.kind is KeyKind.SWAP:
            if value is not None and identity in self.tiers:
                self._swap(self.tiers[identity], decode_swap(value))
                self.tiers[identity].note(offset)
        elif decoded.segment is None:
            self._partition(identity, offset, value)
        elif identity in self.tiers:
            tier = self.tiers[identity]
            if value is None:
                self._forget(tier, decoded.segment)
            else:
                self._segment(tier, decode_segment(decoded.segment, value))
            tier.note(offset)

    def _partition(self, identity: Identity, offset: int, value: bytes | None) -> None:
        tier = self.tiers.get(identity)
        if value is None:
            if tier is not None:
                self.forgotten[identity] = self.tiers.pop(identity)
            return
        record = decode_partition(value)
        if tier is None:
            tier = self.tiers[identity] = ModelledTier(record.topic, identity[1])
        claimed, before = (record.leader_epoch, record.broker_id), tier.record
        if (record.leader_epoch, record.broker_epoch) < (before.leader_epoch, before.broker_epoch):
            raise InvariantBroken(self, f"{tier.key}: claim {claimed} comes after epoch {before.leader_epoch}")
        if record.log_start_offset < tier.log_start:
            raise InvariantBroken(self, f"{tier.key}: log start {tier.log_start} goes to {record.log_start_offset}")
        end = max(tier.tier_end, self._committed.end(tier.key))
        if record.log_start_offset > end and not self._lossy:
            raise InvariantBroken(self, f"{tier.key}: log start {record.log_start_offset} is past {end}")
        tier.claims.add(claimed)
        tier.record = record
        if record.generation > before.generation:
            self._empty(tier, before)
        tier.note(offset)
        self._floor(tier)

    def _empty(self, tier: ModelledTier, before: PartitionRecord) -> None:
        """From here on replicas hold all that is above the log start themselves; nothing goes that was not tiered."""
        for identity, segment in tier.segments.items():
            if segment.state is SegmentState.COPY_FINISHED:
                tier.segments[identity] = replace(segment, state=SegmentState.DELETE_STARTED)
        if tier.log_start > max(tier.tier_end, before.log_start_offset) and not self._lossy:
            raise InvariantBroken(self, f"{tier.key}: it is emptied up to {tier.log_start} of {tier.tier_end}")
        tier.tier_end = tier.record.tier_end_offset
        self._committed.floors[tier.key] = tier.log_start
        self.emptied(tier.key)

    def _forget(self, tier: ModelledTier, segment: SegmentId) -> None:
        known = tier.segments.pop(segment, None)
        if known is not None and not tier.is_dropped and known.state is not SegmentState.DELETE_STARTED:
            raise InvariantBroken(self, f"{tier.key}: {segment} is forgotten while it is {known.state}")

    def _segment(self, tier: ModelledTier, segment: TieredSegment) -> None:
        known = tier.segments.get(segment.id)
        if segment.state is SegmentState.COPY_FINISHED:
            self._finished(tier, segment, known)
        elif segment.state is SegmentState.DELETE_STARTED and known is not None:
            self._deleted(tier, known)
        tier.segments[segment.id] = segment
        self._floor(tier)

    def _swap(self, tier: ModelledTier, swap: SwapRecord) -> None:
        """All of it at once, whatever follows."""
        inputs = [(one, tier.segments.get(one)) for one in (SegmentId(b, u.hex()) for b, u in swap.inputs)]
        end = inputs[0][0].base_offset
        for identity, known in inputs:
            if known is None or known.state is not SegmentState.COPY_FINISHED:
                state = "unknown" if known is None else known.state
                raise InvariantBroken(self, f"{tier.key}: a swap takes {identity}, which is {state}")
            if known.base_offset != end or known.end_offset <= tier.log_start:
                raise InvariantBroken(self, f"{tier.key}: a swap takes {identity} behind {end}, log {tier.log_start}")
            end = known.end_offset
            tier.segments[identity] = replace(known, state=SegmentState.DELETE_STARTED)
        at = inputs[0][0].base_offset
        for base_offset, uuid, value in swap.outputs:
            output = decode_segment(SegmentId(base_offset, uuid.hex()), value)
            if output.base_offset != at or output.id in tier.segments or not output.rewritten:
                raise InvariantBroken(self, f"{tier.key}: a swap brings {output.id} where {at} is due")
            at = output.end_offset
            tier.segments[output.id] = output
        if at != end:
            raise InvariantBroken(self, f"{tier.key}: a swap brings offsets up to {at} for those up to {end}")

    def _finished(self, tier: ModelledTier, segment: TieredSegment, known: TieredSegment | None) -> None:
        base, end = segment.base_offset, segment.end_offset
        if known is not None and known.state is SegmentState.COPY_FINISHED and known.end_offset == end:
            return  # of a swap, once more
        if known is None or known.state is not SegmentState.COPY_STARTED:
            state = "unknown" if known is None else known.state
            raise InvariantBroken(self, f"{tier.key}: the copy of [{base}, {end}) is finished, it was {state}")
        if base != tier.tier_end and not tier.tier_end < base <= tier.log_start:
            text = f"[{base}, {end}) is copied, the tier ends at {tier.tier_end}, the log starts at {tier.log_start}"
            raise InvariantBroken(self, f"{tier.key}: {text}")
        finished = tier.in_state(SegmentState.COPY_FINISHED)
        if finished and (why := misfit(finished[-1], segment)):
            raise InvariantBroken(self, f"{tier.key}: [{base}, {end}) is copied, {why}")
        if not self._lossy and end > self._committed.end(tier.key):
            text = f"[{base}, {end}) is copied, {self._committed.end(tier.key)} are committed"
            raise InvariantBroken(self, f"{tier.key}: {text}")
        tier.tier_end = end

    def _deleted(self, tier: ModelledTier, known: TieredSegment) -> None:
        if known.state is SegmentState.COPY_FINISHED and known.end_offset > tier.log_start:
            text = f"[{known.base_offset}, {known.end_offset}) is deleted, the log starts at {tier.log_start}"
            raise InvariantBroken(self, f"{tier.key}: {text}")

    def _floor(self, tier: ModelledTier) -> None:
        floors = self._committed.floors
        floors[tier.key] = max(floors.get(tier.key, 0), tier.tier_end, tier.log_start)


def misfit(older: TieredSegment, newer: TieredSegment) -> str:
    """Why two neighbours cannot both be of one history (KIP-405's lineage); empty when they can."""
    starts = dict(older.epochs)
    for epoch, start in newer.epochs:
        if epoch < older.epochs[-1][0]:
            return f"epoch {epoch} comes after epoch {older.epochs[-1][0]}"
        if epoch in starts and start < starts[epoch]:
            return f"epoch {epoch} begins at {start} and at {starts[epoch]}"
        if epoch not in starts and start < older.end_offset:
            return f"epoch {epoch} begins at {start}, within the segment before, which does not have it"
    return ""


def rewritten_away(
    segment: TieredSegment, data: bytes, committed: CommittedLog, key: TopicPartition
) -> tuple[list[int], str]:
    """Offsets at which the batches begin that a job's object lacks; and why what it has is not what is committed."""
    if len(data) != segment.object_bytes:
        return [], f"{len(data)} bytes where {segment.object_bytes} are due"
    at, found = 0, dict[int, Batch]()
    while at < segment.log_bytes:
        batch = batch_at(data, at)
        if committed.at(key, batch.base_offset) != batch or not found.keys() <= set(range(batch.base_offset)):
            return [], f"it holds {tell(batch)}, which is not committed there"
        found[batch.base_offset] = batch
        at += int.from_bytes(data[at + 8 : at + 12], "big") + 12
    due = committed.between(key, segment.base_offset, segment.end_offset)
    return [batch.base_offset for batch in due if batch.base_offset not in found], ""


def content_problem(segment: TieredSegment, data: bytes, committed: CommittedLog, key: TopicPartition) -> str:
    """Why an object's bytes are not exactly what is committed of its range; empty when they are."""
    if len(data) != segment.object_bytes:
        return f"{len(data)} bytes where {segment.object_bytes} are due"
    at, found = 0, []
    while at < segment.log_bytes:
        found.append(batch_at(data, at))
        at += int.from_bytes(data[at + 8 : at + 12], "big") + 12
    due = committed.between(key, segment.base_offset, segment.end_offset)
    for there, batch in zip(found, due, strict=False):
        if there != batch:
            return f"it holds {tell(there)} where {tell(batch)} is committed"
    return "" if len(found) == len(due) else f"{len(found)} batches where {len(due)} are due"
