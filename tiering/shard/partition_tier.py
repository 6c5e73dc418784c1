"""The tier's state of one partition, at the shard and at its leader, built by replay of records.

Offsets are Kafka offsets, ends exclusive. Of each segment only the encoded record and four numbers are kept (below 400
bytes), and decoded on demand, because a partition may have 10,000 segments.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from tiering.bucket.keys import PartitionPath
from tiering.bucket.segment import TRANSACTION_INDEX, SegmentId, SegmentState, TieredSegment
from tiering.shard.lineage import Chain, fits
from tiering.shard.tier_records import (
    STATES,
    KeyKind,
    PartitionRecord,
    SegmentRecord,
    SwapRecord,
    TierRecord,
    decode_key,
    decode_partition,
    decode_segment,
    decode_segment_record,
    decode_swap,
    encode_segment,
    encode_value,
    partition_key,
    segment_key,
)

FOUND_MAX = 4  # segments that readers are reading are not decoded again
_FINISHED = STATES.index(SegmentState.COPY_FINISHED)


class TierBefore(NamedTuple):
    """The state that one record changes, before the change."""

    identity: tuple[bytes, int]
    record: PartitionRecord
    state_offset: int
    swap: bytes | None
    generation: int
    segments: list[tuple[SegmentId, bytes | None]]


class PartitionTier:
    """One partition's tier. `replay` changes it, and `undo` undoes the newest replay. Finished segments neither
    overlap nor share a base offset."""

    __slots__ = (
        "_aborting",
        "_bases",
        "_ends",
        "_finished",
        "_log_bytes",
        "_max_timestamps",
        "_others",
        "_recent",
        "generation",
        "log_bytes",
        "partition",
        "record",
        "rewritten_count",
        "state_offset",
        "swap",
        "topic_id",
    )

    def __init__(self, topic_id: bytes, partition: int) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.record = PartitionRecord("", "")
        """The claim, log start and other values that are not a segment's."""
        self.state_offset = -1
        """Of the newest record in `__tier_state` that this reflects; -1 before the first."""
        self.generation = 0
        """How often it was emptied; finished segments belong to this generation, see `PartitionRecord`."""
        self.log_bytes = 0
        """Of all finished segments."""
        self.rewritten_count = 0
        """The finished segments that a job wrote."""
        self.swap: bytes | None = None
        """The record of a swap whose segments' own records are incomplete; they still have to be written."""
        self._aborting = array("q")  # base offsets of those with an index of aborted transactions
        self._bases = array("q")
        self._ends = array("q")
        self._max_timestamps = array("q")
        self._log_bytes = array("q")
        self._finished: list[bytes] = []
        self._others: dict[SegmentId, bytes] = {}
        self._recent: tuple[tuple[bytes, TieredSegment], ...] = ()  # last results of `find`, by record value

    # what it says ------------------------------------------------------------------------------------------

    @property
    def path(self) -> PartitionPath:
        return PartitionPath(self.record.topic, self.topic_id, self.partition, self.record.tenant)

    @property
    def log_start_offset(self) -> int:
        return self.record.log_start_offset

    @property
    def tier_end_offset(self) -> int:
        """The end of everything ever tiered: the next copy begins here, or at the log start if that is higher."""
        return max(self.record.tier_end_offset, self._ends[-1] if self._ends else 0)

    @property
    def is_claimed(self) -> bool:
        return self.record.leader_epoch >= 0

    @property
    def is_dropped(self) -> bool:
        return self.record.dropped_ms > 0

    @property
    def is_empty(self) -> bool:
        """Whether it has neither claim nor segment."""
        return not self.record.topic and not self._finished and not self._others

    @property
    def finished_count(self) -> int:
        """Segments that are COPY_FINISHED, including those below the log start."""
        return len(self._finished)

    def segments(self, from_offset: int | None = None) -> Iterator[TieredSegment]:
        """Finished segments in order that reach above `from_offset` (default: the log start)."""
        first = bisect_right(self._ends, self.log_start_offset if from_offset is None else from_offset)
        for at in range(first, len(self._finished)):
            yield self._segment(at)

    def held(self, from_offset: int) -> HeldSegments:
        """The current segments as in `segments`, still encoded: cheap for any number."""
        first = bisect_right(self._ends, from_offset)
        return HeldSegments(self._bases[first:], self._finished[first:])

    def segments_below_log_start(self) -> Iterator[TieredSegment]:
        """Finished segments that end at or below the log start, oldest first, to be deleted."""
        for at in range(bisect_right(self._ends, self.log_start_offset)):
            yield self._segment(at)

    def find(self, offset: int, epochs: Chain | None = None) -> TieredSegment | None:
        """The finished segment with `offset`, or, if the offset is missing, the next one above it.

        None below the log start, at or above the tier's end, and if the segment's lineage does not fit the partition's
        chain `epochs`.
        """
        if offset < self.log_start_offset:
            return None
        at = bisect_right(self._ends, offset)
        if at == len(self._ends):
            return None
        segment = self._segment_again(at)
        return segment if epochs is None or fits(segment.epochs, segment.end_offset, epochs) else None

    def find_aborting(self, offset: int) -> TieredSegment | None:
        """The first finished segment with an index of aborted transactions, from the result of `find` on."""
        if offset < self.log_start_offset:
            return None
        at = bisect_right(self._ends, offset)
        if at == len(self._ends):
            return None
        which = bisect_left(self._aborting, self._bases[at])
        if which == len(self._aborting):
            return None
        return self._segment_again(bisect_left(self._bases, self._aborting[which]))

    def find_timestamp(self, timestamp: int, from_offset: int = 0) -> TieredSegment | None:
        """The first finished segment above log start and `from_offset` with a record at or after `timestamp`.

        That record may be below the log start; then the search continues from the segment's end.
        """
        for at in range(bisect_right(self._ends, max(from_offset, self.log_start_offset)), len(self._finished)):
            if self._max_timestamps[at] >= timestamp:
                return self._segment(at)
        return None

    def by_max_timestamp(self) -> Iterator[TieredSegment]:
        """Segments above the log start that have a timestamp, by descending timestamp, older ones first if equal.

        The timestamp may be of a record below the log start, or of a batch whose records compaction has removed.
        """
        times = self._max_timestamps
        places = [at for at in range(bisect_right(self._ends, self.log_start_offset), len(times)) if times[at] >= 0]
        for at in sorted(places, key=lambda at: (-times[at], at)):
            yield self._segment(at)

    def sizes(self) -> Iterator[tuple[int, int, int, int]]:
        """(base offset, end offset, max timestamp, log bytes) of each finished segment, oldest first: cheap."""
        return zip(self._bases, self._ends, self._max_timestamps, self._log_bytes, strict=True)

    def get(self, segment: SegmentId) -> TieredSegment | None:
        """The segment in any state."""
        other = self._others.get(segment)
        if other is not None:
            return self._other(segment, other)
        value = self.value_of(segment)
        return None if value is None else decode_segment(segment, value)

    def copying(self) -> list[TieredSegment]:
        """COPY_STARTED, in order of their keys."""
        return [segment for segment in self._other_segments() if segment.state is SegmentState.COPY_STARTED]

    def deleting(self) -> list[TieredSegment]:
        """DELETE_STARTED, in order of their keys; `changed_ms` is when that began."""
        return [segment for segment in self._other_segments() if segment.state is SegmentState.DELETE_STARTED]

    def state_offset_of(self, segment: SegmentId) -> int:
        """The offset of the record that brought it into its state; -1 if unknown."""
        value = self.value_of(segment)
        if value is None:
            return -1
        record = decode_segment_record(value)
        return self.record.emptied_offset if self._is_emptied(record) else record.state_offset

    def value_of(self, segment: SegmentId) -> bytes | None:
        """Its encoded record."""
        other = self._others.get(segment)
        if other is not None:
            return other
        at = bisect_left(self._bases, segment.base_offset)
        if at == len(self._bases) or self._bases[at] != segment.base_offset:
            return None
        value = self._finished[at]
        return value[16:] if value[:16] == bytes.fromhex(segment.uuid) else None

    def last(self) -> TieredSegment | None:
        """The newest finished segment."""
        return self._segment(len(self._finished) - 1) if self._finished else None

    def ids(self, count_max: int, after: SegmentId | None = None) -> list[SegmentId]:
        """Segments in any state, ordered by base offset and uuid, after `after`."""
        first = 0 if after is None else bisect_left(self._bases, after.base_offset)
        found = [self._id(at) for at in range(first, min(first + count_max + 1, len(self._bases)))]
        found.extend(self._others)
        found.sort()
        return found[0 if after is None else bisect_right(found, after) :][:count_max]

    def records(self, after: SegmentId | None, count_max: int) -> list[TierRecord]:
        """The segments of `ids` as records, for handing over."""
        return [
            TierRecord(segment_key(self.topic_id, self.partition, segment), self.value_of(segment))
            for segment in self.ids(count_max, after)
        ]

    # replay ------------------------------------------------------------------------------------------------

    def replay(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Apply records of this partition, oldest first; other records are ignored."""
        for key, value in records:
            decoded = decode_key(key)
            if decoded is None or (decoded.topic_id, decoded.partition) != (self.topic_id, self.partition):
                continue
            if decoded.segment is not None:
                self.replay_segment(decoded.segment, value)
            elif decoded.kind is KeyKind.PARTITION:
                self.replay_partition(value)
            else:
                self.replay_swap(value)

    def become(self, other: PartitionTier) -> None:
        """Replace the state by that of `other`, for the same partition, which is not used any more."""
        for name in PartitionTier.__slots__:
            setattr(self, name, getattr(other, name))

    def replay_partition(self, value: bytes | None) -> None:
        self.record = PartitionRecord("", "") if value is None else decode_partition(value)
        self._begin_generation(self.record.generation)
        self.state_offset = max(self.state_offset, self.record.state_offset)

    def replay_segment(self, segment: SegmentId, value: bytes | None) -> None:
        record = None if value is None else decode_segment_record(value)
        self._forget(segment)
        if record is None or value is None:
            return
        self.state_offset = max(self.state_offset, record.state_offset)
        self._begin_generation(record.generation)
        if record.state != _FINISHED or self._is_emptied(record):
            self._others[segment] = value
            return
        at = bisect_left(self._bases, segment.base_offset)
        self._bases.insert(at, segment.base_offset)
        self._ends.insert(at, record.end_offset)
        self._max_timestamps.insert(at, record.max_timestamp)
        self._log_bytes.insert(at, record.log_bytes)
        self._finished.insert(at, bytes.fromhex(segment.uuid) + value)
        self.log_bytes += record.log_bytes
        self.rewritten_count += record.rewritten
        if any(name == TRANSACTION_INDEX for name, *_ in record.sections):
            insort(self._aborting, segment.base_offset)

    def replay_swap(self, value: bytes | None) -> None:
        """Inputs that are known become DELETE_STARTED and the outputs take their place, with no state in between."""
        self.swap = value
        if value is None:
            return
        swap = decode_swap(value)
        for base_offset, uuid in swap.inputs:
            segment = self.get(SegmentId(base_offset, uuid.hex()))
            if segment is not None:
                gone = replace(segment, state=SegmentState.DELETE_STARTED, changed_ms=swap.changed_ms)
                self.replay_segment(segment.id, encode_segment(gone, swap.state_offset, self.generation))
        for base_offset, uuid, encoded in swap.outputs:
            self.replay_segment(SegmentId(base_offset, uuid.hex()), encoded)
        self.record = after_swap(self.record, swap)
        self.state_offset = max(self.state_offset, swap.state_offset)

    def _begin_generation(self, generation: int) -> None:
        """All finished segments become deletable at once, for any number of them: their own records still say
        COPY_FINISHED. Compaction may have left the record of a newer segment before the partition's own."""
        if generation <= self.generation:
            return
        self.generation = generation
        for at in range(len(self._finished)):
            self._others[self._id(at)] = self._finished[at][16:]
        self._finished.clear()
        for numbers in (self._bases, self._ends, self._max_timestamps, self._log_bytes, self._aborting):
            del numbers[:]
        self.log_bytes = self.rewritten_count = 0

    def _revive(self) -> None:
        """Undo the effect of a higher generation: its deletable segments are finished again."""
        for segment, value in list(self._others.items()):
            record = decode_segment_record(value)
            if record.state == _FINISHED and not self._is_emptied(record):
                self.replay_segment(segment, value)

    def _is_emptied(self, record: SegmentRecord) -> bool:
        return record.state == _FINISHED and record.generation < self.generation

    def _forget(self, segment: SegmentId) -> None:
        if self._others.pop(segment, None) is not None or self.value_of(segment) is None:
            return
        at = bisect_left(self._bases, segment.base_offset)
        self.log_bytes -= self._log_bytes[at]
        self.rewritten_count -= decode_segment_record(self._finished[at][16:]).rewritten
        base = segment.base_offset
        del self._aborting[bisect_left(self._aborting, base) : bisect_right(self._aborting, base)]
        for numbers in (self._bases, self._ends, self._max_timestamps, self._log_bytes):
            del numbers[at]
        del self._finished[at]

    def before(self, touched: list[SegmentId]) -> TierBefore:
        """The current state of everything that a record for these segments may change."""
        segments = [(segment, self.value_of(segment)) for segment in touched]
        identity = (self.topic_id, self.partition)
        return TierBefore(identity, self.record, self.state_offset, self.swap, self.generation, segments)

    def undo(self, before: TierBefore) -> None:
        """Undo the record that was replayed last."""
        for segment, _ in before.segments:  # all of them first: an output may begin where an input does
            self._forget(segment)
        if before.generation < self.generation:
            self.generation = before.generation
            self._revive()
        for segment, value in before.segments:
            self.replay_segment(segment, value)
        self.record, self.state_offset, self.swap = before.record, before.state_offset, before.swap

    def to_records(self) -> list[TierRecord]:
        """The whole state as records, the partition's own first. Replayed into an empty tier they give the same state,
        except for a `swap` whose records are still to be written."""
        own = TierRecord(partition_key(self.topic_id, self.partition), encode_value(self.record))
        return [own, *self.records(None, len(self._finished) + len(self._others))]

    def _id(self, at: int) -> SegmentId:
        return SegmentId(self._bases[at], self._finished[at][:16].hex())

    def _segment(self, at: int) -> TieredSegment:
        return decode_segment(self._id(at), self._finished[at][16:])

    def _segment_again(self, at: int) -> TieredSegment:
        """Cached, because a reader repeatedly needs the same segment and the next one."""
        value = self._finished[at]
        for known, segment in self._recent:
            if known is value:
                return segment
        segment = self._segment(at)
        self._recent = ((value, segment), *self._recent[: FOUND_MAX - 1])
        return segment

    def _other_segments(self) -> list[TieredSegment]:
        return [self._other(segment, self._others[segment]) for segment in sorted(self._others)]

    def _other(self, segment: SegmentId, value: bytes) -> TieredSegment:
        """For segments that are not finished, or of a lower generation, which count as DELETE_STARTED whatever their
        record says."""
        found = decode_segment(segment, value)
        if found.state is not SegmentState.COPY_FINISHED:
            return found
        return replace(found, state=SegmentState.DELETE_STARTED, changed_ms=self.record.emptied_ms)


class HeldSegments:
    """Finished segments of one moment, in order."""

    __slots__ = ("_bases", "_values")

    def __init__(self, bases: array[int], values: list[bytes]) -> None:
        self._bases = bases
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def some(self, first: int, end: int) -> list[TieredSegment]:
        """Those from number `first` up to `end`, decoded."""
        rows = zip(self._bases[first:end], self._values[first:end], strict=True)
        return [decode_segment(SegmentId(base, value[:16].hex()), value[16:]) for base, value in rows]


def after_swap(record: PartitionRecord, swap: SwapRecord) -> PartitionRecord:
    """A partition's values, besides its segments, that a swap changes."""
    if not swap.erase_end:
        return replace(record, swapped_offset=swap.state_offset)
    return replace(
        record,
        swapped_offset=swap.state_offset,
        erased_end_offset=max(record.erased_end_offset, swap.erase_end),
        erased_ms=swap.changed_ms,
    )
