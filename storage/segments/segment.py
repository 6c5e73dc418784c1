"""One `.log` file with its indexes: positions of batches, by offset and by time.

Returned positions are batch boundaries. Nothing here holds a file open: handles come from the bounded cache, and a
closed segment loads its indexes on first use.
"""

from common.errors import ProtocolError
from common.ports import Disk, File
from records.batch import PREFIX_BYTES, BatchHeader
from storage.disk.cold_reads import PagesMissing
from storage.disk.open_files import FileHandle, OpenFiles
from storage.indexes import offset_index, time_index
from storage.indexes.aborted_look_up import AbortedLookUp, Admits
from storage.indexes.index_builder import IndexBuilder, without_timestamp
from storage.indexes.index_file import LUMP_ENTRIES, IndexFile, used_bytes
from storage.indexes.offset_index import OffsetIndex, search
from storage.indexes.time_index import NO_TIMESTAMP, LargestTimestamp, TimeIndex
from storage.indexes.transaction_index import ENTRY_BYTES, AbortedTransaction
from storage.segments.aborted_index import AbortedIndex
from storage.segments.batch_walk import walk

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
RELATIVE_OFFSETS_MAX = 2**31 - 1
INDEX_BYTES_MAX = 10 << 20  # size of an index that is read into memory completely
UNKNOWN = -2


def file_stem(directory: str, base_offset: int) -> str:
    """Path of a segment's files without their suffixes."""
    return f"{directory}/{base_offset:020d}"


class SegmentIndexes:
    """Both sparse indexes of one segment."""

    __slots__ = ("offset_file", "offsets", "time_file", "times")

    def __init__(
        self, open_files: OpenFiles, stem: str, offsets: OffsetIndex, times: TimeIndex, *, is_blank: bool = False
    ) -> None:
        self.offsets = offsets
        self.times = times
        self.offset_file = IndexFile(open_files, stem + INDEX_SUFFIX, offsets.size, is_blank=is_blank)
        self.time_file = IndexFile(open_files, stem + TIME_INDEX_SUFFIX, times.size, is_blank=is_blank)

    @classmethod
    def empty(cls, open_files: OpenFiles, stem: str, base_offset: int, *, is_blank: bool = False) -> "SegmentIndexes":
        return cls(open_files, stem, OffsetIndex(base_offset), TimeIndex(base_offset), is_blank=is_blank)

    def load(self, offset_file: File, time_file: File, size: int) -> None:
        """Load the index files of a closed segment of `size` bytes. ValueError if they are damaged."""
        base_offset = self.offsets.base_offset
        used = used_bytes(offset_file, offset_file.size(), offset_index.ENTRY_BYTES)
        offsets = OffsetIndex.load(base_offset, offset_file.pread, used)
        used = used_bytes(time_file, time_file.size(), time_index.ENTRY_BYTES)
        times = TimeIndex.load(base_offset, time_file.pread, used)
        if offsets.last_position > size:
            raise ValueError("an offset index of a longer segment")
        self.offsets, self.times = offsets, times
        self.offset_file.found(offsets.size)
        self.time_file.found(times.size)

    def append(self, last_offset: int, position: int, largest: LargestTimestamp) -> None:
        """Add a batch, and the largest timestamp so far."""
        self.offset_file.append(self.offsets.append(last_offset, position))
        self.append_time(largest)

    def append_time(self, largest: LargestTimestamp) -> None:
        if largest.timestamp > self.times.last_timestamp:
            entry = self.times.append(largest.timestamp, largest.offset)
            if entry is not None:
                self.time_file.append(entry)

    @property
    def is_lump_due(self) -> bool:
        """Whether enough entries wait in memory to be written."""
        return len(self.offset_file.pending) >= LUMP_ENTRIES * offset_index.ENTRY_BYTES

    def may_overflow(self, bytes_max: int) -> bool:
        """Whether one of the files may exceed `bytes_max` with the next batch."""
        return (self.offsets.count + 1) * offset_index.ENTRY_BYTES > bytes_max or (
            self.times.count + 2
        ) * time_index.ENTRY_BYTES > bytes_max

    def position_at_or_before(self, position: int) -> int:
        """The last indexed batch boundary up to `position`, 0 if there is none."""
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
    """`size`: appended bytes; `written`: bytes in the page cache, less than `size` only while the disk is slow.

    `transaction_bytes` and `written_transaction_bytes`: the same of its `.txnindex`. An entry is written before its
    abort marker, so it is there as soon as readers of committed records may see past that.
    """

    __slots__ = (
        "_aborted",
        "_indexes",
        "_open_files",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "exists",
        "has_transaction_file",
        "is_fresh",
        "log",
        "max_timestamp",
        "max_timestamp_offset",
        "rolling_timestamp",
        "size",
        "stem",
        "transaction_bytes",
        "written",
        "written_transaction_bytes",
    )

    def __init__(
        self,
        open_files: OpenFiles,
        stem: str,
        base_offset: int,
        *,
        size: int,
        created_ms: int,
        transaction_bytes: int | None = None,
        is_fresh: bool = False,
    ) -> None:
        """`transaction_bytes`: the length of its `.txnindex`, None if there is none."""
        self._open_files = open_files
        self._aborted: AbortedIndex | None = None  # its `.txnindex`, once it was used
        self._indexes: SegmentIndexes | None = None
        self.is_fresh = is_fresh  # created by this process: without indexes in memory it has none on disk
        self.stem = stem
        self.base_offset = base_offset
        self.log = FileHandle(open_files, stem + LOG_SUFFIX)
        self.size = self.written = size
        self.exists = not is_fresh  # whether its files were created
        self.bytes_since_index = 0
        self.max_timestamp = NO_TIMESTAMP if is_fresh else UNKNOWN  # of its records, -1 if none has one
        self.max_timestamp_offset = base_offset  # last offset of the first batch with it
        self.rolling_timestamp: int | None = None  # of the first batch; None: unknown
        self.created_ms = created_ms  # when it was created, or opened again
        self.has_transaction_file = transaction_bytes is not None  # maybe without an entry, after a truncation
        self.transaction_bytes = self.written_transaction_bytes = transaction_bytes or 0

    @classmethod
    def fresh(cls, open_files: OpenFiles, directory: str, base_offset: int, now_ms: int) -> "Segment":
        """A segment without files. They and its indexes in memory are created with the first append, because most
        partitions of a large cluster are empty."""
        stem = file_stem(directory, base_offset)
        return cls(open_files, stem, base_offset, size=0, created_ms=now_ms, is_fresh=True)

    @property
    def indexes(self) -> SegmentIndexes:
        """Loaded on first use. OSError if a file cannot be read, PagesMissing while reads are strict."""
        indexes = self._indexes
        if indexes is None and self.is_fresh:
            indexes = SegmentIndexes.empty(self._open_files, self.stem, self.base_offset, is_blank=True)
            self._indexes = indexes
        elif indexes is None:
            cold = self._open_files.cold
            if cold.is_strict and not cold.trusts((self.stem, INDEX_SUFFIX)):
                raise PagesMissing(cold.begin(LoadIndexes(self._open_files, self)))
            indexes = self._indexes = self._load_indexes()
        return indexes

    @property
    def loaded_indexes(self) -> SegmentIndexes | None:
        return self._indexes

    def begin(self, first_timestamp: int, now_ms: int) -> None:
        """Its first batch arrives: an empty segment does not age."""
        self.rolling_timestamp = first_timestamp
        self.created_ms = now_ms

    def made_files(self) -> None:
        """Its files exist, or will when a slow disk has caught up."""
        self.exists = True

    def lacks_files(self) -> None:
        """There was no room for its files: they are created with the first batch."""
        self.exists = False

    def add_batch(
        self, header: BatchHeader, last_offset: int, position: int, index_interval_bytes: int
    ) -> SegmentIndexes | None:
        """Add a batch that is being appended at `position`. Returns the indexes if it got an entry in them."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = last_offset
        indexes = None
        if self.bytes_since_index > index_interval_bytes:
            self.bytes_since_index = 0
            indexes = self.indexes
            indexes.append(last_offset, position, LargestTimestamp(self.max_timestamp, self.max_timestamp_offset))
        self.bytes_since_index += header.batch_length + PREFIX_BYTES
        return indexes

    def appended(self, size: int) -> None:
        """It is `size` bytes long, all of them in the page cache."""
        self.size = self.written = size

    def append_later(self, size: int) -> None:
        """It has grown to `size` bytes, some of which wait for a slow disk."""
        self.size = size

    def in_page_cache(self, size: int) -> None:
        """Waiting bytes up to `size` are written; a later append may have overtaken this."""
        self.written = max(self.written, size)

    def _aborted_index(self) -> AbortedIndex:
        if self._aborted is None:
            path = self.stem + TRANSACTION_INDEX_SUFFIX
            self._aborted = AbortedIndex(self._open_files, path, self.transaction_bytes)
        return self._aborted

    def add_aborted(self, entry: AbortedTransaction) -> None:
        """`entry` is the last one of its `.txnindex`, or will be when a slow disk has caught up."""
        self._aborted_index().add(entry)
        self.has_transaction_file = True
        self.transaction_bytes += ENTRY_BYTES

    def aborted_written(self) -> None:
        """One more entry of its `.txnindex` is in the page cache."""
        self.written_transaction_bytes += ENTRY_BYTES

    def close_indexes(self) -> None:
        """No more batches follow: add the last entry of the time index."""
        self.indexes.append_time(LargestTimestamp(self.max_timestamp, self.max_timestamp_offset))

    def adopt_indexes(self, indexes: SegmentIndexes, largest: LargestTimestamp | None) -> None:
        """Use indexes that a thread has built or read, and the largest timestamp if it found that too."""
        self._indexes = indexes
        if largest is not None:
            self.max_timestamp, self.max_timestamp_offset = largest

    def recovered(self, bytes_since_index: int, transaction_bytes: int) -> None:
        """Note that the scan after an unclean stop has rebuilt the indexes."""
        self.bytes_since_index = bytes_since_index
        self.transaction_bytes = self.written_transaction_bytes = transaction_bytes
        self.has_transaction_file |= transaction_bytes > 0

    def _load_indexes(self) -> SegmentIndexes:
        indexes = SegmentIndexes.empty(self._open_files, self.stem, self.base_offset)
        try:
            indexes.load(indexes.offset_file.handle.use(), indexes.time_file.handle.use(), self.size)
        except (FileNotFoundError, ValueError):
            file = self.log.use() if self.size else None
            indexes, largest = _rebuilt(self._open_files, self.stem, self.base_offset, file, self.size)
            self.max_timestamp, self.max_timestamp_offset = largest
        return indexes

    def largest_timestamp(self) -> LargestTimestamp:
        """Of all its records; for a closed segment, from the last entry of the time index."""
        if self.max_timestamp == UNKNOWN:
            times = self.indexes.times
            if self.max_timestamp == UNKNOWN:  # rebuilding the indexes finds it too
                self.max_timestamp, self.max_timestamp_offset = times.last_timestamp, times.last_offset
        return LargestTimestamp(self.max_timestamp, self.max_timestamp_offset)

    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, -1 if there is none: the start of rolling by time."""
        timestamp = self.rolling_timestamp
        if timestamp is None:
            timestamp = NO_TIMESTAMP
            if self.written:
                _, header = next(walk(self.log, 0, self.written))
                timestamp = self.rolling_timestamp = header.max_timestamp
        return timestamp

    def find(self, offset: int) -> int:
        """Position of the first batch that ends after `offset`; `written` if none does."""
        start = self.indexes.offsets.lookup(self.indexes.offset_file.pread, offset).position
        if start >= self.written:
            return self.written
        for position, header in walk(self.log, start, self.written):
            if header.next_offset > offset:
                return position
        return self.written

    def boundary_at_or_before(self, position: int, start: int) -> int:
        """The last batch boundary up to `position`, at most `written`; `start` is one before it."""
        if position >= self.written:
            return self.written
        boundary = max(start, self.indexes.position_at_or_before(position))
        for at, header in walk(self.log, boundary, self.written):
            if at + header.size > position:
                return at
        return self.written

    def offset_behind(self, position: int, otherwise: int) -> int:
        """An offset above all offsets before `position`, a batch boundary: from the index, else `otherwise`."""
        indexes = self.loaded_indexes
        if indexes is None or position >= self.written:
            return otherwise
        pread = indexes.offset_file.pread
        slot = search(pread, indexes.offsets.count, offset_index.ENTRY_BYTES, _position, position - 1) + 1
        return indexes.offsets.entry(pread, slot).offset if slot < indexes.offsets.count else otherwise

    def find_timestamp(self, timestamp: int, offset: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the first batch that ends after `offset` and has a record at or after `timestamp`."""
        indexes = self.indexes
        before = indexes.times.lookup(indexes.time_file.pread, timestamp - 1)
        start = indexes.offsets.lookup(indexes.offset_file.pread, max(before.offset, offset)).position
        if start < self.written:
            for position, header in walk(self.log, start, self.written):
                if header.max_timestamp >= timestamp and header.next_offset > offset:
                    return position, header
        return None

    def look_at_cut(self, offset: int) -> None:
        """Read what `find` and `truncate` will read: PagesMissing while reads are strict and some of it is not in
        memory."""
        self.find(offset)
        indexes = self.indexes
        indexes.times.look_at_cut(indexes.time_file.pread, offset)
        if self.transaction_bytes:
            self._aborted_index().look_at_cut(self.transaction_bytes // ENTRY_BYTES, offset)

    def truncate(self, position: int, offset: int) -> None:
        """Truncate the files at a batch boundary; nothing at or after `offset` remains."""
        self.indexes.truncate_to(offset)
        self.log.use().truncate(position)
        self.size = self.written = position
        self.bytes_since_index = 0
        self.max_timestamp, self.max_timestamp_offset = self._scan_largest()
        if position == 0:
            self.rolling_timestamp = None
        if self.transaction_bytes:
            self._truncate_transactions(offset)

    def _truncate_transactions(self, offset: int) -> None:
        file = self._open_files.disk.open(self.stem + TRANSACTION_INDEX_SUFFIX)
        try:
            kept_bytes = self._aborted_index().cut(file, self.transaction_bytes // ENTRY_BYTES, offset)
            self.transaction_bytes = self.written_transaction_bytes = kept_bytes
        finally:
            file.close()

    def _scan_largest(self) -> LargestTimestamp:
        """From the time index and the batches after the last indexed one."""
        times, offsets = self.indexes.times, self.indexes.offsets
        largest = LargestTimestamp(times.last_timestamp, times.last_offset)
        if offsets.last_position < self.size:
            for _, header in walk(self.log.use(), offsets.last_position, self.size):
                if header.max_timestamp > largest.timestamp:
                    largest = LargestTimestamp(header.max_timestamp, header.last_offset)
        return largest

    def search_aborted(self, look_up: AbortedLookUp, admits: Admits) -> tuple[bool, bool]:
        """Search its aborted transactions. Returns whether that is done, and whether later segments cannot add any.

        Entries that wait for a slow disk are left out. OSError if the file cannot be read, PagesMissing while reads are
        strict; ValueError if it is damaged.
        """
        if not self.written_transaction_bytes:
            return True, False
        return self._aborted_index().search(look_up, self.written_transaction_bytes // ENTRY_BYTES, admits)

    def retire(self) -> None:
        """Its files will be deleted; regions being sent keep theirs open."""
        self.log.retire()
        if self._aborted is not None:
            self._aborted.retire()
        if self._indexes is not None:
            self._indexes.retire()


class LoadIndexes:
    """Loads a closed segment's indexes in a thread, through its own files, which become the segment's afterwards."""

    __slots__ = ("_files", "_indexes", "_largest", "_open_files", "_segment", "key")

    def __init__(self, open_files: OpenFiles, segment: Segment) -> None:
        self._open_files = open_files
        self._segment = segment
        self._files: list[File] = []
        self._indexes: SegmentIndexes | None = None
        self._largest: LargestTimestamp | None = None
        self.key = (segment.stem, INDEX_SUFFIX)

    def run(self) -> None:
        segment, disk = self._segment, self._open_files.disk
        indexes = SegmentIndexes.empty(self._open_files, segment.stem, segment.base_offset)
        try:
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                self._files.append(disk.open(segment.stem + suffix))
            for file in self._files:
                file.pread(INDEX_BYTES_MAX, 0)  # so that searches find them in memory
            offset_file, time_file = self._files
            indexes.load(offset_file, time_file, segment.size)
        except (FileNotFoundError, ValueError):
            indexes, self._largest = self._rebuild(disk)
        self._indexes = indexes

    def _rebuild(self, disk: Disk) -> tuple[SegmentIndexes, LargestTimestamp]:
        segment = self._segment
        given = (self._open_files, segment.stem, segment.base_offset)
        if not segment.size:
            return _rebuilt(*given, None, 0)
        file = disk.open(segment.stem + LOG_SUFFIX)
        try:
            return _rebuilt(*given, file, segment.size)
        except ProtocolError as error:
            raise OSError(error.message) from error
        finally:
            file.close()

    def finish(self) -> None:
        segment, indexes = self._segment, self._indexes
        if indexes is None or segment.loaded_indexes is not None or segment.log.retired:
            for file in self._files:
                file.close()
            return
        segment.adopt_indexes(indexes, self._largest)
        for file, handle in zip(self._files, (indexes.offset_file.handle, indexes.time_file.handle), strict=False):
            self._open_files.adopt(handle, file)


def _rebuilt(
    open_files: OpenFiles, stem: str, base_offset: int, file: File | None, size: int
) -> tuple[SegmentIndexes, LargestTimestamp]:
    """Entries rebuilt from the headers, kept in memory, because the files of a closed segment are missing or
    damaged."""
    indexes = SegmentIndexes.empty(open_files, stem, base_offset)
    builder = IndexBuilder(indexes, without_timestamp(base_offset))
    if file is not None:
        for position, header in walk(file, 0, size):
            builder.add(position, header)
        builder.finish()
    return indexes, builder.largest


def _position(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 4 : at + 8], "big")
