"""Makes a job's new segment: from bytes of batches to indexes, sections and the segment's description.

The indexes are those that a broker would have written for these batches. Producer snapshot and leader epochs are copied
from the input that ends where the new segment does, because they cover everything below that end, not only the
remaining batches. docs/tier-format.md has the sections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from common.checksum import crc32c
from common.ports import Buffer
from records.batch import TRANSACTIONAL, iterate_batches
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import TimeIndex
from tiering.bucket.segment import (
    OFFSET_INDEX,
    TAKEN_OVER,
    TIME_INDEX,
    TRANSACTION_INDEX,
    Section,
    SegmentState,
    TieredSegment,
)
from tiering.shard.swap import merged_epochs

INDEX_INTERVAL_BYTES = 4096  # index.interval.bytes
NO_TIMESTAMP = -1
LOG_BYTES_MAX = 2**31 - 1  # positions in the offset index
OFFSETS_MAX = 2**31 - 1  # between the base offset and the end: offsets in the indexes


class Finished(NamedTuple):
    """`tail`: the sections' bytes, which follow the log's in the object."""

    segment: TieredSegment
    tail: list[bytes]


class SegmentWriter:
    """One new segment from `base_offset` on: `append` in order of offsets, then `finish`. It keeps no bytes of the log;
    the caller writes them to the object."""

    def __init__(self, base_offset: int, index_interval_bytes: int = INDEX_INTERVAL_BYTES) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.log_bytes = 0
        self.records = 0
        self._interval = index_interval_bytes
        self._crc = 0
        self._offsets, self._times = OffsetIndex(base_offset), TimeIndex(base_offset)
        self._offset_entries, self._time_entries = bytearray(), bytearray()
        self._bytes_since_index = 0
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, base_offset
        self._attributes = 0

    def append(self, batches: Buffer) -> None:
        """Add whole batches, whose CRCs the caller has checked. Raises ValueError when the segment becomes too large
        for its indexes, or offsets do not grow."""
        view = memoryview(batches)
        start = self.log_bytes
        for at, header in iterate_batches(view, 0, len(view), verify_crc=False):
            last_offset = header.base_offset + header.last_offset_delta
            if header.base_offset < self.next_offset:
                raise ValueError(f"offset {header.base_offset} where {self.next_offset} or a later one is due")
            self.next_offset = last_offset + 1
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._max_timestamp_offset = header.max_timestamp, last_offset
            if self._bytes_since_index > self._interval:
                self._offset_entries += self._offsets.append(last_offset, start + at)
                self._note_time()
                self._bytes_since_index = 0
            size = header.size
            self._bytes_since_index += size
            self.records += header.count
            self._attributes |= header.attributes
            self.log_bytes = start + at + size
        if self.log_bytes != start + len(view):
            raise ValueError(f"{len(view)} bytes that are not whole batches")
        if self.log_bytes > LOG_BYTES_MAX:
            raise ValueError(f"a segment of {self.log_bytes} bytes")
        self._crc = crc32c(view, self._crc)

    def _note_time(self) -> None:
        if self._max_timestamp > self._times.last_timestamp:
            entry = self._times.append(self._max_timestamp, self._max_timestamp_offset)
            self._time_entries += entry or b""

    def finish(
        self,
        uuid: str,
        inputs: Sequence[TieredSegment],
        taken_over: Mapping[str, bytes],
        transactions: bytes,
        now_ms: int,
    ) -> Finished:
        """The segment that covers exactly `inputs`. `taken_over`: producer snapshot and leader epochs of the last
        input, if it has them; `transactions`: the new transaction index.

        ValueError without a batch: a segment has at least one.
        """
        if not self.log_bytes:
            raise ValueError("a segment without a batch")
        self._note_time()
        bodies = {OFFSET_INDEX: bytes(self._offset_entries), TIME_INDEX: bytes(self._time_entries)}
        if transactions:
            bodies[TRANSACTION_INDEX] = transactions
        bodies |= {name: taken_over[name] for name in TAKEN_OVER if name in taken_over}
        sections: dict[str, Section] = {}
        size = self.log_bytes
        for name, body in bodies.items():
            sections[name] = Section(size, len(body), crc32c(body))
            size += len(body)
        last = inputs[-1]
        segment = TieredSegment(
            uuid=uuid,
            base_offset=self.base_offset,
            end_offset=last.end_offset,
            max_timestamp=self._max_timestamp,
            log_bytes=self.log_bytes,
            object_bytes=size,
            log_crc32c=self._crc,
            sections=sections,
            epochs=merged_epochs(inputs),
            state=SegmentState.COPY_FINISHED,
            broker_id=last.broker_id,
            leader_epoch=last.leader_epoch,
            changed_ms=now_ms,
            has_transactions=bool(self._attributes & TRANSACTIONAL),
            records=self.records,
            rewritten=True,
        )
        return Finished(segment, list(bodies.values()))
