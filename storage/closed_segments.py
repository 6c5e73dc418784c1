"""Closed segments on their way out of this disk: what one holds, read and checked batch by batch.

The loop says which bytes they are; a thread reads them through a file handle of its own, in short steps, so that
neither the open files of the log nor the event loop notice. Indexes are built anew from the batches: a copy may begin
inside a segment, where the log of another leader was cut elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from common.checksum import crc32c
from common.errors import ErrorCode, ProtocolError
from common.ports import Disk, File
from common.whole_files import read_whole
from records.batch import HEADER_BYTES, PREFIX_BYTES, iterate_batches, read_header
from storage.leader_epochs import LeaderEpochCache
from storage.log_reads import segment_at
from storage.offset_index import OffsetIndex
from storage.producer_replay import load_newest, replay_segments
from storage.producer_state import ProducerStates
from storage.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX, Segment, file_stem
from storage.time_index import TimeIndex
from storage.transaction_index import decode, encode

if TYPE_CHECKING:
    from storage.partition_log import PartitionLog

STEP_BYTES = 1 << 20  # read and checked at once; a longer batch alone


class ClosedSegment(NamedTuple):
    """Bytes [position, end_position) of a closed segment's file: all batches of [base_offset, end_offset).

    `epochs` are (leader epoch, start offset) of the range, the first one's start at or before `base_offset`; `chain`
    goes back to the log's start. `segments` are the log's up to this one, `snapshots` those of its producers.
    """

    directory: str
    base_offset: int
    end_offset: int
    position: int
    end_position: int
    epochs: list[tuple[int, int]]
    chain: list[tuple[int, int]]
    segments: tuple[Segment, ...]
    snapshots: tuple[int, ...]
    index_interval_bytes: int
    now_ms: int

    @property
    def segment(self) -> Segment:
        return self.segments[-1]

    @property
    def size(self) -> int:
        return self.end_position - self.position


def closed_segment_at(log: PartitionLog, offset: int) -> ClosedSegment | None:
    """What lies from `offset` on, up to the end of the first closed segment with a batch there; None: nothing yet.

    Where this disk begins above `offset`, so does what is returned. OSError when the disk cannot be read.
    """
    segments = log.segments
    base_offset = max(offset, segments[0].base_offset)
    for number in range(segment_at(log, base_offset), len(segments) - 1):
        segment, end_offset = segments[number], segments[number + 1].base_offset
        if end_offset <= base_offset or segment.written < segment.size:
            continue
        position = segment.find(base_offset) if segment.base_offset < base_offset else 0
        if position < segment.size:
            entries = log.leader_epochs.entries()
            return ClosedSegment(
                log.directory,
                base_offset,
                end_offset,
                position,
                segment.size,
                log.leader_epochs.chain(base_offset, end_offset),
                [entry for entry in entries if entry[1] < end_offset],
                tuple(segments[: number + 1]),
                tuple(log.producer_history.snapshots),
                log.config.index_interval_bytes,
                log.context.clock.wall_ms(),
            )
    return None


class Contents(NamedTuple):
    """What a reader needs to know of a closed segment; indexes are in the form of their files, from `position` on."""

    log_crc32c: int
    max_timestamp: int  # -1 when no batch has one
    records: int  # as the batches claim
    has_transactions: bool
    offset_index: bytes
    time_index: bytes
    transaction_index: bytes  # empty when nothing was aborted
    producer_snapshot: bytes  # of the segment's end
    leader_epochs: bytes  # up to the segment's end


@dataclass(slots=True)
class _Remembered:
    """A log's end as it was when the segment was closed, for the replay of its producers."""

    directory: str
    segments: list[Segment]
    snapshots: list[int]
    log_end_offset: int
    producers: ProducerStates


@dataclass(slots=True)
class _Built:
    offsets: OffsetIndex
    times: TimeIndex
    offset_entries: bytearray = field(default_factory=bytearray)
    time_entries: bytearray = field(default_factory=bytearray)
    bytes_since_index: int = 0
    max_timestamp: int = -1
    max_timestamp_offset: int = 0
    records: int = 0
    has_transactions: bool = False

    def note_time(self) -> None:
        if self.max_timestamp > self.times.last_timestamp:
            self.time_entries += self.times.append(self.max_timestamp, self.max_timestamp_offset) or b""


class SegmentReader:
    """`steps()` in threads, to the end; then `contents`, with `file` still open for the bytes; then `close()`."""

    def __init__(self, disk: Disk, closed: ClosedSegment, producers: ProducerStates) -> None:
        """`producers` are empty; they are used where no snapshot of the segment's end is there."""
        self._disk = disk
        self._closed = closed
        self._producers = producers
        self._file: File | None = None
        self._contents: Contents | None = None

    @property
    def file(self) -> File:
        if self._file is None:
            raise RuntimeError("the segment was not read")
        return self._file

    @property
    def contents(self) -> Contents:
        if self._contents is None:
            raise RuntimeError("the segment was not read to its end")
        return self._contents

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def steps(self) -> Iterator[int]:
        """Yields the bytes of each step. Raises OSError (FileNotFoundError: the segment has gone), ProtocolError
        (CORRUPT_MESSAGE) when the bytes are not what was appended."""
        closed = self._closed
        file = self._file = self._disk.open(closed.segment.stem + LOG_SUFFIX)
        built = _Built(OffsetIndex(closed.base_offset), TimeIndex(closed.base_offset))
        checksum = 0
        position = closed.position
        size = STEP_BYTES
        while position < closed.end_position:
            data = file.pread(min(size, closed.end_position - position), position)
            used = _take_in(built, memoryview(data), position - closed.position, closed.index_interval_bytes)
            if used == 0:
                size = _batch_bytes(data)
                if size <= len(data) or size > closed.end_position - position:
                    message = f"no whole batch at position {position} of {closed.segment.stem}{LOG_SUFFIX}"
                    raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, message)
                continue
            size = STEP_BYTES
            checksum = crc32c(memoryview(data)[:used], checksum)
            position += used
            yield used
        built.note_time()
        self._contents = Contents(
            checksum,
            built.max_timestamp,
            built.records,
            built.has_transactions,
            bytes(built.offset_entries),
            bytes(built.time_entries),
            self._transaction_index(),
            self._producer_snapshot(),
            _encoded(closed.chain),
        )

    def _transaction_index(self) -> bytes:
        segment = self._closed.segment
        if not segment.transaction_bytes:
            return b""
        data = (read_whole(self._disk, segment.stem + TRANSACTION_INDEX_SUFFIX) or b"")[: segment.transaction_bytes]
        try:
            entries = decode(data)
        except ValueError as error:
            raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"{segment.stem}{TRANSACTION_INDEX_SUFFIX}") from error
        return b"".join(encode(entry) for entry in entries if entry.last_offset >= self._closed.base_offset)

    def _producer_snapshot(self) -> bytes:
        closed = self._closed
        if closed.end_offset in closed.snapshots:
            data = read_whole(self._disk, file_stem(closed.directory, closed.end_offset) + SNAPSHOT_SUFFIX)
            try:
                self._producers.load_snapshot(data or b"", closed.end_offset, closed.now_ms)
            except ValueError:
                pass
            else:
                return data or b""
        remembered = _Remembered(
            closed.directory, list(closed.segments), list(closed.snapshots), closed.end_offset, self._producers
        )
        load_newest(self._disk, remembered, closed.end_offset, closed.now_ms)
        replay_segments(self._disk, remembered, closed.segments, closed.segment.size)
        return self._producers.snapshot()


def _take_in(built: _Built, view: memoryview, position: int, interval_bytes: int) -> int:
    """Take in the whole batches of `view`, which lies at `position` of the copy; how many bytes they are."""
    used = 0
    for at, header in iterate_batches(view, 0, len(view)):
        last_offset = header.base_offset + header.last_offset_delta
        if header.max_timestamp > built.max_timestamp:
            built.max_timestamp, built.max_timestamp_offset = header.max_timestamp, last_offset
        if built.bytes_since_index > interval_bytes:
            built.offset_entries += built.offsets.append(last_offset, position + at)
            built.note_time()
            built.bytes_since_index = 0
        size = header.batch_length + PREFIX_BYTES
        built.bytes_since_index += size
        built.records += header.count
        built.has_transactions = built.has_transactions or header.is_transactional
        used = at + size
    return used


def _batch_bytes(data: bytes) -> int:
    """Of the batch that `data` begins with; 0 when it does not even hold the header."""
    if len(data) < HEADER_BYTES:
        return 0
    return read_header(data, 0).batch_length + PREFIX_BYTES


def _encoded(chain: Sequence[tuple[int, int]]) -> bytes:
    epochs = LeaderEpochCache()
    for epoch, start_offset in chain:
        epochs.assign(epoch, start_offset)
    return epochs.encode()
