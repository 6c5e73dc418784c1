"""The changes of one tier shard decision, as records of `__tier_state`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from common.decision import Decision
from tiering.bucket.segment import SegmentId, SegmentState, TieredSegment
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import Done, RefusalCode, Refused, Reply
from tiering.shard.tier_records import (
    PartitionRecord,
    SwapRecord,
    TierRecord,
    decode_swap,
    encode_segment,
    encode_value,
    partition_key,
    segment_key,
    swap_key,
)


class Moment(NamedTuple):
    """The moment of a decision: wall clock in milliseconds, and the offset of its first record."""

    now_ms: int
    next_offset: int


class RefusedError(Exception):
    """Ends a decision; `reply` is sent to the requester."""

    def __init__(self, error: RefusalCode, text: str) -> None:
        super().__init__(text)
        self.reply = Refused(error, text)


class Changes:
    """The records of one decision, each with its own offset in it.

    They begin with the records of a swap that an earlier host of the shard did not complete.
    """

    def __init__(self, tier: PartitionTier, moment: Moment) -> None:
        self.records: list[TierRecord] = []
        self._tier = tier
        self._moment = moment
        self._generation = tier.generation
        if tier.swap is not None:
            for touched in decode_swap(tier.swap).segment_ids():
                segment = tier.get(touched)
                if segment is not None:
                    self.keep_segment(segment)
            self.end_swap(tier.record)

    @property
    def now_ms(self) -> int:
        return self._moment.now_ms

    @property
    def offset(self) -> int:
        """Of the next record."""
        return self._moment.next_offset + len(self.records)

    def put_partition(self, record: PartitionRecord) -> None:
        self._generation = max(self._generation, record.generation)
        value = encode_value(replace(record, state_offset=self.offset))
        self.records.append(TierRecord(partition_key(self._tier.topic_id, self._tier.partition), value))

    def put_segment(self, segment: TieredSegment, state: SegmentState) -> None:
        value = self._encoded(replace(segment, state=state, changed_ms=self._moment.now_ms))
        self.records.append(TierRecord(self._key(segment.id), value))

    def keep_segment(self, segment: TieredSegment) -> None:
        """Unchanged, including the time of its last change."""
        self.records.append(TierRecord(self._key(segment.id), self._encoded(segment)))

    def _encoded(self, segment: TieredSegment) -> bytes:
        return encode_segment(segment, self.offset, self._generation)

    def forget_segment(self, segment: SegmentId) -> None:
        self.records.append(TierRecord(self._key(segment), None))

    def put_swap(self, swap: SwapRecord) -> None:
        """The record with the complete swap."""
        self.records.append(TierRecord(swap_key(self._tier.topic_id, self._tier.partition), encode_value(swap)))

    def end_swap(self, record: PartitionRecord) -> None:
        """The records of its segments are complete. The partition's own record is repeated, because a tombstone does
        not carry the state's offset."""
        self.put_partition(record)
        self.records.append(TierRecord(swap_key(self._tier.topic_id, self._tier.partition), None))
        self.put_partition(record)

    def done(self, repeated: Sequence[SegmentId] = ()) -> Decision[TierRecord, Reply]:
        """The decision, with the records as reply; without records, the current ones of the partition and of
        `repeated`."""
        tier = self._tier
        if self.records:
            return Decision(Done(self.offset - 1, tier.state_offset, list(self.records)), self.records)
        present: list[tuple[bytes, bytes | None]] = [
            (partition_key(tier.topic_id, tier.partition), encode_value(tier.record))
        ]
        return Decision(
            Done(
                tier.state_offset, tier.state_offset, [*present, *((self._key(s), tier.value_of(s)) for s in repeated)]
            )
        )

    def _key(self, segment: SegmentId) -> bytes:
        return segment_key(self._tier.topic_id, self._tier.partition, segment)
