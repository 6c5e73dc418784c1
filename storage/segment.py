"""One `.log` file with its indexes: where a batch lies, by offset and by time.

Positions handed out are batch boundaries. Nothing here holds a file open: handles come from the bounded cache, and
a closed segment knows its indexes only after somebody asked for them.
"""

from typing import NamedTuple

from records.batch import BatchHeader
from storage import offset_index, time_index
from storage.batch_walk import walk
from storage.index_file import LUMP_ENTRIES, IndexFile, used_bytes
from storage.offset_index import OffsetIndex, search
from storage.open_files import FileHandle, OpenFiles
from storage.time_index import TimeIndex

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
RELATIVE_OFFSETS_MAX = 2**31 - 1
NO_TIMESTAMP = -1
UNKNOWN = -2


def file_stem(directory: str, base_offset: int) -> str:
    """Path of a segment's files without their suffixes."""
    return f"{directory}/{base_offset:020d}"


class LargestTimestamp(NamedTuple):
    """A segment's largest timestamp (-1: none) and the last offset of the first batch that holds it."""

    timestamp: int
    offset: int


class SegmentIndexes:
    """Both sparse indexes of one segment."""

    __slots__ = ("offset_file", "offsets", "time_file", "times")

    def __init__(self, open_files: OpenFiles, stem: str, offsets: OffsetIndex, times: TimeIndex) -> None:
        self.offsets = offsets
        self.times = times
        self.offset_file = IndexFile(open_files, stem + INDEX_SUFFIX, offsets.size)
        self.time_file = IndexFile(open_files, stem + TIME_INDEX_SUFFIX, times.size)

    @classmethod
    def empty(cls, open_files: OpenFiles, stem: str, base_offset: int) -> "SegmentIndexes":
        return cls(open_files, stem, OffsetIndex(base_offset), TimeIndex(base_offset))

    def append(self, last_offset: int, position: int, largest: LargestTimestamp) -> bool:
        """Note a batch, and the largest timestamp so far; whether a lump is due to be written."""
        self.offset_file.pending += self.offsets.append(last_offset, position)
        self.append_time(largest)
        return len(self.offset_file.pending) >= LUMP_ENTRIES * offset_index.ENTRY_BYTES

    def append_time(self, largest: LargestTimestamp) -> None:
        if largest.timestamp > self.times.last_timestamp:
            entry = self.times.append(largest.timestamp, largest.offset)
            if entry is not None:
                self.time_file.pending += entry

    def position_at_or_before(self, position: int) -> int:
        """The last indexed batch boundary up to `position`, 0 when there is none."""
        pread = self.offset_file.pread
        slot = search(pread, self.offsets.count, offset_index.ENTRY_BYTES, _position, position)
        return self.offsets.entry(pread, slot).position if slot >= 0 else 0

    def truncate_to(self, offset: int) -> None:
        self.offset_file.truncate(self.offsets.truncate_to(self.offset_file.pread, offset))
        self.time_file.truncate(self.times.truncate_to(self.time_file.pread, offset))

    def retire(self) -> None:
        self.offset_file.handle.retire()
        self.time_file.handle.retire()


class Segment:
    """`size` counts what was appended, `written` what the page cache holds: less only while the disk is slow."""

    __slots__ = (
        "_indexes",
        "_open_files",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "exists",
        "log",
        "max_timestamp",
        "max_timestamp_offset",
        "rolling_timestamp",
        "size",
        "stem",
        "transaction_bytes",
        "written",
    )

    def __init__(self, open_files: OpenFiles, stem: str, base_offset: int, *, size: int, created_ms: int) -> None:
        self._open_files = open_files
        self._indexes: SegmentIndexes | None = None
        self.stem = stem
        self.base_offset = base_offset
        self.log = FileHandle(open_files, stem + LOG_SUFFIX)
        self.size = self.written = size
        self.exists = False  # whether its files were made
        self.bytes_since_index = 0
        self.max_timestamp = UNKNOWN  # the largest of its records, -1 when they have none
        self.max_timestamp_offset = base_offset  # last offset of the first batch that holds it
        self.rolling_timestamp: int | None = None  # of the first batch; None: not looked up yet
        self.created_ms = created_ms  # when it was made, or opened again
        self.transaction_bytes = 0  # length of its `.txnindex`

    @classmethod
    def fresh(cls, open_files: OpenFiles, directory: str, base_offset: int, now_ms: int) -> "Segment":
        """A segment without files; they appear with the first append."""
        segment = cls(open_files, file_stem(directory, base_offset), base_offset, size=0, created_ms=now_ms)
        segment.max_timestamp = NO_TIMESTAMP
        indexes = segment._indexes = SegmentIndexes.empty(open_files, segment.stem, base_offset)
        indexes.offset_file.is_blank = indexes.time_file.is_blank = True
        return segment

    @property
    def indexes(self) -> SegmentIndexes:
        """Loaded on first use. OSError when a file cannot be read."""
        indexes = self._indexes
        if indexes is None:
            indexes = self._indexes = self._load_indexes()
        return indexes

    @property
    def loaded_indexes(self) -> SegmentIndexes | None:
        return self._indexes

    def adopt_indexes(self, indexes: SegmentIndexes) -> None:
        """What recovery has built or read already."""
        self._indexes = indexes

    def _load_indexes(self) -> SegmentIndexes:
        offsets, times = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        indexes = SegmentIndexes(self._open_files, self.stem, offsets, times)
        try:
            file = indexes.offset_file.handle.use()
            used = used_bytes(file, file.size(), offset_index.ENTRY_BYTES)
            offsets = OffsetIndex.load(self.base_offset, file.pread, used)
            file = indexes.time_file.handle.use()
            used = used_bytes(file, file.size(), time_index.ENTRY_BYTES)
            times = TimeIndex.load(self.base_offset, file.pread, used)
        except (FileNotFoundError, ValueError):
            return self._rebuild_indexes()
        if offsets.last_position > self.size:
            return self._rebuild_indexes()
        indexes.offsets, indexes.times = offsets, times
        indexes.offset_file.flushed, indexes.time_file.flushed = offsets.size, times.size
        return indexes

    def _rebuild_indexes(self) -> SegmentIndexes:
        """Entries for the headers alone, kept in memory: somebody removed or damaged the files of a closed segment."""
        indexes = SegmentIndexes.empty(self._open_files, self.stem, self.base_offset)
        builder = IndexBuilder(indexes)
        if self.size:
            for position, header in walk(self.log.use(), 0, self.size):
                builder.add(position, header)
            builder.finish()
        self.max_timestamp, self.max_timestamp_offset = builder.largest
        return indexes

    def largest_timestamp(self) -> LargestTimestamp:
        """Of all its records; read from the last entry of the time index where the segment is closed."""
        if self.max_timestamp == UNKNOWN:
            times = self.indexes.times
            if self.max_timestamp == UNKNOWN:  # building the indexes anew tells it, too
                self.max_timestamp, self.max_timestamp_offset = times.last_timestamp, times.last_offset
        return LargestTimestamp(self.max_timestamp, self.max_timestamp_offset)

    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, -1 when there is none: what rolling by time starts from."""
        timestamp = self.rolling_timestamp
        if timestamp is None:
            timestamp = NO_TIMESTAMP
            if self.written:
                _, header = next(walk(self.log.use(), 0, self.written))
                timestamp = self.rolling_timestamp = header.max_timestamp
        return timestamp

    def find(self, offset: int) -> int:
        """Position of the first batch that ends after `offset`; `written` when all end before it."""
        start = self.indexes.offsets.lookup(self.indexes.offset_file.pread, offset).position
        if start >= self.written:
            return self.written
        for position, header in walk(self.log.use(), start, self.written):
            if header.next_offset > offset:
                return position
        return self.written

    def boundary_at_or_before(self, position: int, start: int) -> int:
        """The last batch boundary up to `position`, itself at most `written`; `start` is one that lies before."""
        if position >= self.written:
            return self.written
        boundary = max(start, self.indexes.position_at_or_before(position))
        for at, header in walk(self.log.use(), boundary, self.written):
            if at + header.size > position:
                return at
        return self.written

    def find_timestamp(self, timestamp: int, offset: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the first batch that ends after `offset` and has a record at or after `timestamp`."""
        indexes = self.indexes
        before = indexes.times.lookup(indexes.time_file.pread, timestamp - 1)
        start = indexes.offsets.lookup(indexes.offset_file.pread, max(before.offset, offset)).position
        if start < self.written:
            for position, header in walk(self.log.use(), start, self.written):
                if header.max_timestamp >= timestamp and header.next_offset > offset:
                    return position, header
        return None

    def truncate(self, position: int, offset: int) -> None:
        """Cut the files at a batch boundary; nothing at or after `offset` is left."""
        self.indexes.truncate_to(offset)
        self.log.use().truncate(position)
        self.size = self.written = position
        self.bytes_since_index = 0
        self.max_timestamp, self.max_timestamp_offset = self._scan_largest()
        if position == 0:
            self.rolling_timestamp = None

    def _scan_largest(self) -> LargestTimestamp:
        """From the time index and the batches behind the last indexed one."""
        times, offsets = self.indexes.times, self.indexes.offsets
        largest = LargestTimestamp(times.last_timestamp, times.last_offset)
        if offsets.last_position < self.size:
            for _, header in walk(self.log.use(), offsets.last_position, self.size):
                if header.max_timestamp > largest.timestamp:
                    largest = LargestTimestamp(header.max_timestamp, header.last_offset)
        return largest

    def retire(self) -> None:
        """Its files are about to go; regions under send keep theirs open."""
        self.log.retire()
        if self._indexes is not None:
            self._indexes.retire()


class IndexBuilder:
    """Builds the indexes of a segment from its batches, in order, as appending them would."""

    def __init__(self, indexes: SegmentIndexes, interval_bytes: int = 4_096) -> None:
        self._indexes = indexes
        self._interval_bytes = interval_bytes
        self.bytes_since_index = 0
        self.largest = LargestTimestamp(NO_TIMESTAMP, indexes.offsets.base_offset)

    def add(self, position: int, header: BatchHeader) -> None:
        if header.max_timestamp > self.largest.timestamp:
            self.largest = LargestTimestamp(header.max_timestamp, header.last_offset)
        if self.bytes_since_index > self._interval_bytes:
            self._indexes.append(header.last_offset, position, self.largest)
            self.bytes_since_index = 0
        self.bytes_since_index += header.size

    def finish(self) -> None:
        """The segment takes no more batches."""
        self._indexes.append_time(self.largest)


def _position(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 4 : at + 8], "big")
