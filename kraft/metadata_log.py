"""The committed metadata as record batches, which controllers serve to observers. No I/O.

Each metadata batch is one record batch of Kafka's format with one record, whose value is the encoded batch. The record
batch covers as many offsets as there are metadata records. Its CRC protects the bytes on the wire and on an observer's
disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from common.errors import ErrorCode, ProtocolError
from common.node_settings.controllers import ControllerSettings
from common.pacing import Work, at_once
from kraft.batch_codec import decoding_batch
from kraft.batches import BATCH_BYTES_MAX, Batch, encode_batch
from records.batch import MAGIC, NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader, iterate_batches
from records.builder import assemble
from records.record import decode_records, record_parts

FRAMED_BYTES_MAX = BATCH_BYTES_MAX + 1024
_DEFAULTS = ControllerSettings()


def frame_batch(batch: Batch, encoded: bytes | memoryview | None = None) -> bytearray:
    """`batch` as a record batch of Kafka's format; `encoded`: its `encode_batch`, if available."""
    last_delta = len(batch.records) - 1
    body = record_parts(0, last_delta, None, encode_batch(batch) if encoded is None else encoded)
    header = BatchHeader(
        base_offset=batch.header.base_offset,
        batch_length=0,
        leader_epoch=batch.header.epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=last_delta,
        base_timestamp=batch.header.timestamp_ms,
        max_timestamp=batch.header.timestamp_ms,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        count=1,
    )
    return assemble(header, *body)


class Frame(NamedTuple):
    """A metadata batch in its frame, with the frame's position."""

    value: bytes
    base_offset: int
    next_offset: int
    position: int
    size: int

    @property
    def end(self) -> int:
        """The position after it."""
        return self.position + self.size

    def decoding(self) -> Work[Batch]:
        """Raises ProtocolError(CORRUPT_MESSAGE) if the bytes are not a metadata batch, or not the frame's."""
        batch = yield from decoding_batch(self.value)
        if batch is None or (batch.header.base_offset, batch.end_offset) != (self.base_offset, self.next_offset):
            raise _no_batch(self.position)
        return batch


def frames_in(view: memoryview, position: int = 0) -> Iterator[Frame]:
    """Each complete frame in `view` from `position` on; an incomplete last one is left out.

    Raises ProtocolError(CORRUPT_MESSAGE) at invalid bytes, after it has yielded everything before.
    """
    for at, header in iterate_batches(view, position, len(view)):
        records = decode_records(view, at, header.size, inflated_bytes_max=FRAMED_BYTES_MAX)
        value = records[0].value if len(records) == 1 else None
        if value is None:
            raise _no_batch(at)
        yield Frame(value, header.base_offset, header.next_offset, at, header.size)


class FramedBatch(NamedTuple):
    """A metadata batch and the position of its frame."""

    batch: Batch
    position: int
    size: int


def unframe_batches(view: memoryview) -> Iterator[FramedBatch]:
    """Each complete metadata batch in `view`; an incomplete last one is left out.

    Raises ProtocolError(CORRUPT_MESSAGE) at invalid bytes, after it has yielded everything before.
    """
    for frame in frames_in(view):
        yield FramedBatch(at_once(frame.decoding()), frame.position, frame.size)


def _no_batch(position: int) -> ProtocolError:
    return ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"no metadata batch at position {position}")


class MetadataLog:
    """The tail of the committed batches, framed, limited in count and bytes.

    A reader of an offset before `start_offset` needs a snapshot. The tail is trimmed in runs, so that the average cost
    of an append does not depend on its length; the limits may be exceeded by half until then.
    """

    def __init__(
        self, batches_max: int = _DEFAULTS.metadata_tail_batches_max, bytes_max: int = _DEFAULTS.metadata_tail_bytes_max
    ) -> None:
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._bases: list[int] = []
        self._indices: list[int] = []
        self._epochs: list[int] = []
        self._frames: list[bytearray] = []
        self._bytes = 0
        self.start_offset = 0
        self.start_epoch = 0
        """The epoch of the batch before `start_offset`."""
        self.end_offset = 0

    @property
    def batch_count(self) -> int:
        return len(self._frames)

    def append(self, batch: Batch, encoded: bytes | memoryview | None = None, index: int = 0) -> None:
        """Append a committed batch that begins at `end_offset`; `index`: its entry's in the quorum's log."""
        if batch.header.base_offset != self.end_offset:
            raise ValueError(f"a batch at {batch.header.base_offset} after {self.end_offset}")
        frame = frame_batch(batch, encoded)
        self._bases.append(self.end_offset)
        self._indices.append(index)
        self._epochs.append(batch.header.epoch)
        self._frames.append(frame)
        self._bytes += len(frame)
        self.end_offset = batch.end_offset
        if len(self._frames) > self._batches_max * 3 // 2 or self._bytes > self._bytes_max * 3 // 2:
            self._cut()

    def reset(self, next_offset: int, epoch: int) -> None:
        """Start over after a snapshot that ends before `next_offset`."""
        self._bases, self._indices, self._epochs, self._frames, self._bytes = [], [], [], [], 0
        self.start_offset = self.end_offset = next_offset
        self.start_epoch = epoch

    def read(self, offset: int, bytes_max: int) -> bytes | None:
        """Complete frames from the batch with `offset` on, at least one; b"" at the end, None before the start."""
        if offset < self.start_offset:
            return None
        if offset >= self.end_offset:
            return b""
        first = bisect_right(self._bases, offset) - 1
        size = len(self._frames[first])
        last = first + 1
        while last < len(self._frames) and size + len(self._frames[last]) <= bytes_max:
            size += len(self._frames[last])
            last += 1
        return b"".join(self._frames[first:last])

    def end_offset_at(self, index: int) -> int | None:
        """Where the metadata ends for who has the quorum's log up to `index`; None if this tail does not know it."""
        count = bisect_right(self._indices, index)
        if count == len(self._bases):
            return self.end_offset
        return self._bases[count] if count else None

    def epoch_before(self, offset: int) -> int | None:
        """The epoch of the batch that ends before `offset`; None if this tail does not know it."""
        if offset == self.start_offset:
            return self.start_epoch
        if not self.start_offset < offset <= self.end_offset:
            return None
        return self._epochs[bisect_right(self._bases, offset - 1) - 1]

    def _cut(self) -> None:
        count, size = 0, self._bytes
        while len(self._frames) - count > self._batches_max or (
            size > self._bytes_max and count < len(self._frames) - 1
        ):
            size -= len(self._frames[count])
            count += 1
        if not count:
            return
        self.start_epoch = self._epochs[count - 1]
        self.start_offset = self._bases[count] if count < len(self._bases) else self.end_offset
        del self._bases[:count], self._indices[:count], self._epochs[:count], self._frames[:count]
        self._bytes = size
