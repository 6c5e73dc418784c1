"""Closed segments to be copied to the tier: read and checked batch by batch.

The loop determines the bytes; a thread reads them with its own file handle, in short steps, so that neither the log's
open files nor the event loop are affected. Indexes are rebuilt from the batches, because a copy may begin inside a
segment if another leader rolled at other offsets.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from common.checksum import crc32c
from common.errors import ErrorCode, ProtocolError
from common.ports import Disk, File
from common.whole_files import read_whole
from records.batch import HEADER_BYTES, PREFIX_BYTES, iterate_batches, read_header
from storage.indexes.index_builder import IndexBuilder, IndexEntries, without_timestamp
from storage.indexes.transaction_index import decode, encode
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.segment_list import SegmentList
from storage.producers.producer_replay import Replay, load_newest, replay_segments
from storage.producers.producer_state import ProducerStates
from storage.segments.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX, Segment, file_stem

STEP_BYTES = 1 << 20  # read and checked at once; a longer batch is read alone


class ClosedSegment(NamedTuple):
    """Bytes [position, end_position) of a closed segment's file: all batches of [base_offset, end_offset).

    `epochs`: (leader epoch, start offset) of the range, the first at or before `base_offset`; `chain`: back to the
    log's start. `segments`: the log's segments up to this one; `snapshots`: of its producers.
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


def closed_segment_at(
    segments: SegmentList,
    epochs: LeaderEpochCache,
    snapshots: Sequence[int],
    directory: str,
    offset: int,
    index_interval_bytes: int,
    now_ms: int,
) -> ClosedSegment | None:
    """The part from `offset` on, up to the end of the first closed segment with a batch there; None: nothing yet.

    If this disk begins above `offset`, so does the result. OSError if the disk cannot be read.
    """
    base_offset = max(offset, segments.all[0].base_offset)
    for number in range(segments.index_of(base_offset), len(segments.all) - 1):
        segment, end_offset = segments.all[number], segments.end_of(number)
        if end_offset <= base_offset or segment.written < segment.size:
            continue
        position = segment.find(base_offset) if segment.base_offset < base_offset else 0
        if position < segment.size:
            return ClosedSegment(
                directory,
                base_offset,
                end_offset,
                position,
                segment.size,
                epochs.chain(base_offset, end_offset),
                [entry for entry in epochs.entries() if entry[1] < end_offset],
                tuple(segments.all[: number + 1]),
                tuple(snapshots),
                index_interval_bytes,
                now_ms,
            )
    return None


class Contents(NamedTuple):
    """The derived data of a closed segment; indexes in the form of their files, from `position` on."""

    log_crc32c: int
    max_timestamp: int  # -1 if no batch has one
    records: int  # by the batches' headers
    has_transactions: bool
    offset_index: bytes
    time_index: bytes
    transaction_index: bytes  # empty without aborted transactions
    producer_snapshot: bytes  # as of the segment's end
    leader_epochs: bytes  # up to the segment's end


class SegmentReader:
    """Run `steps()` in threads, to the end; then `contents` and `file`, open for reading; then `close()`."""

    def __init__(self, disk: Disk, closed: ClosedSegment, producers: ProducerStates) -> None:
        """`producers`: an empty state, used if there is no snapshot of the segment's end."""
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
        """Yields the bytes of each step. Raises OSError (FileNotFoundError: the segment was deleted), ProtocolError
        (CORRUPT_MESSAGE) if the bytes are damaged."""
        closed = self._closed
        file = self._file = self._disk.open(closed.segment.stem + LOG_SUFFIX)
        entries = IndexEntries(closed.base_offset)
        built = _Built(IndexBuilder(entries, without_timestamp(closed.base_offset), closed.index_interval_bytes))
        checksum = 0
        position = closed.position
        size = STEP_BYTES
        while position < closed.end_position:
            data = file.pread(min(size, closed.end_position - position), position)
            used = built.add_batches(memoryview(data), position - closed.position)
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
        built.indexes.finish()
        self._contents = Contents(
            checksum,
            built.indexes.largest.timestamp,
            built.records,
            built.has_transactions,
            bytes(entries.offset_entries),
            bytes(entries.time_entries),
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
        replay = Replay(
            closed.directory, list(closed.segments), list(closed.snapshots), closed.end_offset, self._producers
        )
        load_newest(self._disk, replay, closed.end_offset, closed.now_ms)
        replay_segments(self._disk, replay, closed.segments, closed.segment.size)
        return self._producers.snapshot()


class _Built:
    """The data collected from the batches so far."""

    def __init__(self, indexes: IndexBuilder) -> None:
        self.indexes = indexes
        self.records = 0
        self.has_transactions = False

    def add_batches(self, view: memoryview, position: int) -> int:
        """Process the complete batches of `view`, which is at `position` of the copy. Returns their size."""
        used = 0
        for at, header in iterate_batches(view, 0, len(view)):
            self.indexes.add(position + at, header)
            self.records += header.count
            self.has_transactions = self.has_transactions or header.is_transactional
            used = at + header.size
        return used


def _batch_bytes(data: bytes) -> int:
    """Size of the first batch of `data`; 0 if even its header is incomplete."""
    if len(data) < HEADER_BYTES:
        return 0
    return read_header(data, 0).batch_length + PREFIX_BYTES


def _encoded(chain: Sequence[tuple[int, int]]) -> bytes:
    epochs = LeaderEpochCache()
    for epoch, start_offset in chain:
        epochs.assign(epoch, start_offset)
    return epochs.encode()
