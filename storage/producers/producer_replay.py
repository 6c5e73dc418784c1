"""Restores producer state from a snapshot and the batches after it, by headers; of records, only markers are read.

It opens its own files, so it runs in a thread (recovery) or on the loop (truncation of a small log).
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from common.errors import ProtocolError
from common.ports import Disk
from common.whole_files import read_whole
from records.batch import CONTROL, BatchHeader
from records.control import EndMarker, read_marker
from storage.producers.producer_history import ProducerMark
from storage.producers.producer_state import ProducerStates
from storage.segments.batch_walk import walk
from storage.segments.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, Segment, file_stem

READ_PER_BATCH_BYTES = 128  # reading a header costs about as much as this many bytes: 2 to 10 microseconds


class Remembering(Protocol):
    """A log that is open or being loaded."""

    @property
    def directory(self) -> str: ...

    @property
    def segments(self) -> list[Segment]: ...

    @property
    def snapshots(self) -> list[int]: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def producers(self) -> ProducerStates: ...


class Replay(Struct, frozen=True):
    """Restores a log's producers while the log does not change; `producers` begin empty."""

    directory: str
    segments: list[Segment]
    snapshots: list[int]
    log_end_offset: int
    producers: ProducerStates
    mark: ProducerMark | None = None  # newer than the snapshots
    batches: int = 0  # upper bound of batches after the mark

    def is_short(self, disk: Disk, bytes_max: int) -> bool:
        """Whether there are at most `bytes_max` bytes to read, or headers of as many batches as fit in it. OSError."""
        if self.mark is not None:
            return self.batches <= bytes_max // READ_PER_BATCH_BYTES
        return self.bytes_to_read(disk) <= bytes_max

    def bytes_to_read(self, disk: Disk) -> int:
        """Without a mark: the size of the newest snapshot and of all segments with a batch after it.

        OSError if a file cannot be accessed.
        """
        snapshots = [offset for offset in self.snapshots if offset <= self.log_end_offset]
        start = max(snapshots, default=self.segments[0].base_offset)
        size = disk.file_size(file_stem(self.directory, start) + SNAPSHOT_SUFFIX) if snapshots else 0
        ends = [*(segment.base_offset for segment in self.segments[1:]), self.log_end_offset]
        return size + sum(segment.size for segment, end in zip(self.segments, ends, strict=True) if end > start)

    def run(self, disk: Disk, now_ms: int) -> None:
        """Raises OSError, and ProtocolError(KAFKA_STORAGE_ERROR) if the log contains invalid batches."""
        if self.mark is None:
            load_newest(disk, self, self.log_end_offset, now_ms)
            replay_segments(disk, self, self.segments, self.segments[-1].size)
            return
        self.producers.load_snapshot(self.mark.snapshot, self.mark.offset, now_ms)
        position = self.mark.position
        for segment in self.segments[self.segments.index(self.mark.segment) :]:
            _replay(disk, self.producers, segment, position, segment.size, self.mark.offset)
            position = 0
        self.producers.advance_to(self.log_end_offset)


def load_newest(disk: Disk, log: Remembering, upto_offset: int, now_ms: int) -> None:
    """Begin with the newest valid snapshot at or below `upto_offset`, or empty at the first segment."""
    for offset in sorted(log.snapshots, reverse=True):
        if offset <= upto_offset:
            data = read_whole(disk, file_stem(log.directory, offset) + SNAPSHOT_SUFFIX)
            try:
                log.producers.load_snapshot(data or b"", offset, now_ms)
                return
            except ValueError:
                continue
    log.producers.reset(log.segments[0].base_offset)


def replay_segments(disk: Disk, log: Remembering, segments: Sequence[Segment], last_size: int) -> None:
    """Apply the batches of `segments` between the producers' end offset and the log's; of the last segment `last_size`
    bytes.

    ProtocolError(KAFKA_STORAGE_ERROR) if they contain invalid batches.
    """
    start = log.producers.end_offset
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        size = last_size if is_last else segment.size
        is_before = not is_last and segments[number + 1].base_offset <= start
        if size and not is_before and start < log.log_end_offset:
            _replay(disk, log.producers, segment, 0, size, start)
    log.producers.advance_to(log.log_end_offset)


def _replay(disk: Disk, producers: ProducerStates, segment: Segment, begin: int, size: int, start_offset: int) -> None:
    if begin >= size:
        return
    file = disk.open(segment.stem + LOG_SUFFIX)
    try:
        for position, header in walk(file, begin, size):
            if header.next_offset > start_offset:
                marker = None
                if header.attributes & CONTROL:
                    marker = marker_of(memoryview(file.pread(header.size, position)), 0, header)
                producers.update(header, marker)
    finally:
        file.close()


def marker_of(view: memoryview, at: int, header: BatchHeader) -> EndMarker | None:
    """The marker of a control batch; None if its record is invalid, which no reader of the log can repair."""
    try:
        return read_marker(view, at, header.size)
    except ProtocolError:
        return None
