"""One compaction pass over one log, in steps for a thread: reads segments, writes `.cleaned` ones.

The pass only reads the log's files; its driver swaps in the results. A step ends after a bounded number of bytes, so
that the driver can stop, throttle or yield between steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from common.errors import ErrorCode, ProtocolError
from common.ports import Disk, File
from common.whole_files import read_whole, write_fully, write_whole
from records.batch import HEADER_BYTES, PREFIX_BYTES, BatchHeader, iterate_batches, read_header
from storage.cleaning.compaction import CleaningPlan, CompactionSegment, OffsetMap, group_segments
from storage.cleaning.compaction_filter import (
    BatchFilter,
    FilterCounts,
    FilterSettings,
    Report,
    TransactionTracker,
    index_batch,
)
from storage.indexes import transaction_index
from storage.indexes.index_builder import IndexBuilder, IndexEntries, without_timestamp
from storage.indexes.transaction_index import AbortedTransaction
from storage.log.log_config import LogConfig
from storage.log.segment_swap import cleaned_path
from storage.producers.frozen_producers import LastRecord
from storage.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, file_stem

READ_BYTES = 1 << 20  # read at once, in one step; a longer batch is read alone


class PassInput(NamedTuple):
    """Everything that a pass knows of the log, as of its plan."""

    directory: str
    # all, in order; of the last, active one only the aborted transactions are read
    segments: Sequence[CompactionSegment]
    plan: CleaningPlan
    last_records: Callable[[], Mapping[int, LastRecord]]  # called in a thread
    config: LogConfig
    map_bytes: int
    inflated_bytes_max: int
    keeps_deletes: bool
    now_ms: int


class CleanedSegment(NamedTuple):
    """The files of a new segment, written and fsynced; `is_same` if its content equals the one old segment."""

    base_offset: int
    size: int
    transaction_bytes: int
    is_same: bool


class _Output:
    """The new segment while it is being written."""

    def __init__(self, log: File, base_offset: int, index_interval_bytes: int) -> None:
        self._log = log
        self.entries = IndexEntries(base_offset)
        self._indexes = IndexBuilder(self.entries, without_timestamp(base_offset), index_interval_bytes)
        self._pending = bytearray()
        self.size = 0

    def append(self, batch: memoryview | bytearray) -> None:
        self._indexes.add(self.size + len(self._pending), read_header(batch, 0))
        self._pending += batch

    def write(self) -> int:
        """Write what was appended. Returns the number of bytes."""
        written, self._pending = self._pending, bytearray()
        write_fully(self._log, written, self.size)
        self.size += len(written)
        return len(written)

    def finish(self) -> None:
        self.write()
        self._indexes.finish()
        self._log.fsync()


class CleaningPass:
    """`index()`, then `clean(group)` for each of `groups()`. Steps yield the number of bytes read and written."""

    def __init__(self, disk: Disk, given: PassInput, report: Report) -> None:
        self._disk = disk
        self._given = given
        self._report = report
        self._map = OffsetMap(given.map_bytes)
        self._filter: BatchFilter | None = None
        self.cleaned: CleanedSegment | None = None
        self.end_offset = given.plan.first_dirty_offset  # where the next pass begins

    @property
    def counts(self) -> FilterCounts:
        return self._filter.counts if self._filter is not None else FilterCounts()

    @property
    def keys(self) -> int:
        return len(self._map)

    def index(self) -> Iterator[int]:
        """Fill the offset map from the dirty segments, until it is full or they end.

        Raises OSError, FileNotFoundError if retention has deleted a segment, ProtocolError(CORRUPT_MESSAGE) for a batch
        with a wrong CRC.
        """
        given = self._given
        plan = given.plan
        start = plan.first_dirty_offset
        dirty = [s for s in given.segments if start < s.next_offset <= plan.first_uncleanable_offset]
        tracker = TransactionTracker(self._aborted_transactions(start))
        for segment in dirty:
            path = file_stem(given.directory, segment.base_offset) + LOG_SUFFIX
            for view, batches in self._read(path, segment.size):
                for at, header in batches:
                    if header.next_offset > start and not index_batch(
                        self._map, tracker, view, at, header, start, given.inflated_bytes_max
                    ):
                        self.end_offset = max(start, self._map.latest_offset + 1)
                        return
                yield len(view)
            self._map.advance_to(segment.next_offset - 1)
        self.end_offset = max(start, self._map.latest_offset + 1)

    def groups(self) -> list[list[CompactionSegment]]:
        """Groups of segments that become one segment each, in order. Raises FileNotFoundError if retention has deleted
        one."""
        given = self._given
        reach = [s for s in given.segments if s.next_offset <= given.plan.first_uncleanable_offset]
        measured = [s._replace(index_bytes=self._index_bytes(s)) for s in reach]
        self._filter = BatchFilter(
            self._map,
            TransactionTracker(self._aborted_transactions(given.segments[0].base_offset)),
            given.last_records(),
            given.plan.first_uncleanable_offset,
            given.now_ms,
            FilterSettings(given.config.delete_retention_ms, given.inflated_bytes_max, given.keeps_deletes),
            self._report,
        )
        return group_segments(measured, self.end_offset, given.config)

    def clean(self, group: Sequence[CompactionSegment]) -> Iterator[int]:
        """Write the rest of `group` as `.cleaned` files; `cleaned` has the result. Raises as `index`."""
        given = self._given
        batch_filter = self._filter
        if batch_filter is None:
            raise ValueError("call groups() first")
        base = group[0].base_offset
        batch_filter.kept_aborted.clear()
        log_path = cleaned_path(given.directory, base, LOG_SUFFIX)
        log = self._disk.open(log_path, create=True)
        try:
            log.truncate(0)
            output = _Output(log, base, given.config.index_interval_bytes)
            is_same = len(group) == 1
            for segment in group:
                path = file_stem(given.directory, segment.base_offset) + LOG_SUFFIX
                for view, batches in self._read(path, segment.size):
                    for at, header in batches:
                        left = batch_filter.filter(view, at, header)
                        is_same = is_same and isinstance(left, memoryview)
                        if left is not None:
                            output.append(left)
                    yield len(view) + output.write()
            output.finish()
        finally:
            log.close()
        transactions = b"".join(transaction_index.encode(entry) for entry in batch_filter.kept_aborted)
        self._write(base, INDEX_SUFFIX, output.entries.offset_entries)
        self._write(base, TIME_INDEX_SUFFIX, output.entries.time_entries)
        if transactions:
            self._write(base, TRANSACTION_INDEX_SUFFIX, transactions)
        self._disk.sync_directory(given.directory)
        self.cleaned = CleanedSegment(base, output.size, len(transactions), is_same)

    def _write(self, base_offset: int, suffix: str, data: bytes | bytearray) -> None:
        write_whole(self._disk, cleaned_path(self._given.directory, base_offset, suffix), data)

    def _read(self, path: str, size: int) -> Iterator[tuple[memoryview, Iterator[tuple[int, BatchHeader]]]]:
        """The first `size` bytes of a segment in pieces of complete batches, with CRCs checked."""
        if size == 0:
            return
        file = self._disk.open(path)
        try:
            position = 0
            while position < size:
                data = file.pread(min(READ_BYTES, size - position), position)
                end = _whole_end(data)
                if end == 0 and len(data) >= PREFIX_BYTES:
                    length = int.from_bytes(data[8:12], "big", signed=True) + PREFIX_BYTES
                    if HEADER_BYTES <= length <= size - position:
                        data = file.pread(length, position)
                        end = _whole_end(data)
                if end == 0:
                    raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"no record batch at position {position} of {path}")
                view = memoryview(data)[:end]
                yield view, iterate_batches(view, 0, end, verify_crc=True)
                position += end
        finally:
            file.close()

    def _aborted_transactions(self, start_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions that overlap [start_offset, first uncleanable offset); their markers may be in any later
        segment.

        A damaged index is an error, because guessing would restore aborted records.
        """
        given = self._given
        end_offset = given.plan.first_uncleanable_offset
        found: list[AbortedTransaction] = []
        for segment in given.segments:
            if segment.next_offset <= start_offset:
                continue
            path = file_stem(given.directory, segment.base_offset) + TRANSACTION_INDEX_SUFFIX
            data = read_whole(self._disk, path)
            if not data:
                continue
            whole = len(data) - len(data) % transaction_index.ENTRY_BYTES  # the active one may be growing
            try:
                entries = transaction_index.decode(data[:whole])
            except ValueError as error:
                raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"{path}: {error}") from error
            touching, is_complete = transaction_index.collect(entries, start_offset, end_offset)
            found += touching
            if is_complete:
                break
        return found

    def _index_bytes(self, segment: CompactionSegment) -> int:
        stem = file_stem(self._given.directory, segment.base_offset)
        if segment.size == 0:
            return 0
        return max(self._disk.file_size(stem + INDEX_SUFFIX), self._disk.file_size(stem + TIME_INDEX_SUFFIX))


def _whole_end(data: bytes) -> int:
    """Where the last complete batch of `data` ends, 0 if there is none."""
    at = 0
    while len(data) - at >= HEADER_BYTES:
        size = int.from_bytes(data[at + 8 : at + 12], "big", signed=True) + PREFIX_BYTES
        if size < HEADER_BYTES or size > len(data) - at:
            break
        at += size
    return at
