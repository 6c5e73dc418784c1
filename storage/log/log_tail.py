"""The growing end of a log: appends as leader or follower to the active segment, and rolls.

The unit is the record batch. An append changes memory first and writes its bytes last: if the disk fails, the whole
directory goes offline, and this state is not used any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from common.errors import ErrorCode, ProtocolError
from records.batch import (
    CONTROL,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    iterate_batches,
    read_header,
    stamp,
    stamp_log_append_time,
)
from records.control import EndMarker, read_marker
from storage.disk.cold_reads import ColdReads
from storage.disk.directory_health import DirectoryHealth
from storage.disk.log_flusher import FlushDepth
from storage.disk.log_writer import LogWriter
from storage.indexes.transaction_index import AbortedTransaction, encode
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.log_config import FOREVER_MS
from storage.log.log_context import LogContext
from storage.log.log_durability import LogDurability
from storage.log.log_ends import LogEnds
from storage.log.log_files import LogFiles
from storage.log.segment_list import SegmentList
from storage.producers.producer_history import ProducerHistory
from storage.producers.producer_state import ProducerStates
from storage.segments.segment import LOG_SUFFIX, RELATIVE_OFFSETS_MAX, TRANSACTION_INDEX_SUFFIX, Segment

_NOT_READ = -2  # below every timestamp


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Offsets of an append, half-open; `max_timestamp`: the log append time, -1 if clients set timestamps."""

    base_offset: int
    next_offset: int
    max_timestamp: int
    duplicate: bool


@dataclass(slots=True, eq=False)
class LogTail:
    """One per log. It rejects appends while `files.barred` is set; a `WriteOwner` for its batches."""

    _context: LogContext
    _files: LogFiles
    _ends: LogEnds
    _segments: SegmentList
    _epochs: LeaderEpochCache
    _producers: ProducerStates
    _history: ProducerHistory
    _durability: LogDurability
    _writer: LogWriter = field(init=False)
    _health: DirectoryHealth = field(init=False)
    _cold: ColdReads = field(init=False)
    _log_append_time: bool = field(init=False)
    _full_size: int = field(init=False)  # the active segment accepts no batch beyond any of these three
    _full_offset: int = field(init=False)
    _full_timestamp: int = field(init=False)

    def __post_init__(self) -> None:
        self._writer = self._context.writer
        self._health = self._context.health
        self._cold = self._context.open_files.cold
        self.configure()
        if self._ends.written < self._ends.readable:  # killed before their flush: no append may come that requests one
            self._durability.request(FlushDepth.DATA)

    # Settings

    def configure(self) -> None:
        """Apply new settings, from the next append on."""
        config = self._files.config
        self._log_append_time = config.log_append_time
        self._ends.count_flushed(config.flush_messages == 1)
        self.set_roll_bounds()

    def set_roll_bounds(self) -> None:
        """Update the size limit after a roll or a truncation of the active segment."""
        active, config = self._segments.active, self._files.config
        if config.remote_storage_enable:
            self._context.rolled[self._files.who] = None
        self._full_size = config.segment_bytes
        self._full_offset = active.base_offset + RELATIVE_OFFSETS_MAX
        self._full_timestamp = FOREVER_MS
        if active.size:
            self._full_timestamp = _NOT_READ  # the next append reads the first batch
            if active.indexes.may_overflow(config.segment_index_bytes):
                self._full_size = 0

    def _start_roll_clock(self, first_timestamp: int) -> None:
        """Set when the segment is full by time; never for batches without timestamps."""
        if first_timestamp >= 0:
            self._full_timestamp = first_timestamp + self._files.config.roll_ms - self._roll_jitter_ms()

    def _roll_jitter_ms(self) -> int:
        spread = min(self._files.config.segment_jitter_ms, self._files.config.roll_ms)
        return self._context.rng.randrange(spread) if spread > 0 else 0

    # Admission

    def admit(self, size: int) -> None:
        """Raise what an append of `size` bytes would raise now: ProtocolError(KAFKA_STORAGE_ERROR)."""
        if self._health.refuses_appends or self._files.barred is not None:
            raise self.refusal()
        if self._writer.slow:
            self._writer.admit(size)

    def refusal(self) -> ProtocolError:
        """The error for requests while the log or its directory rejects appends."""
        if self._files.barred is not None:
            return ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, self._files.barred)
        return self._health.error()

    def check_idle(self) -> None:
        """Raise ProtocolError(KAFKA_STORAGE_ERROR) if the log must not be truncated now."""
        if self._health.offline is not None or self._files.barred is not None:
            raise self.refusal()
        if self._files.pending_writes:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "writes wait for a slow disk")

    @property
    def is_idle(self) -> bool:
        """Whether the log may be rolled or truncated now."""
        files = self._files
        return self._health.offline is None and files.barred is None and not files.pending_writes

    # Appends

    def append_as_leader(
        self,
        buffer: bytearray | memoryview,
        view: memoryview,
        at: int,
        end: int,
        leader_epoch: int,
        now_ms: int,
        header: BatchHeader | None,
    ) -> Appended:
        """As `PartitionLog.append_as_leader`."""
        if self._health.refuses_appends or self._writer.slow or self._files.barred is not None:
            self.admit(end - at)
        base = self._ends.log_end
        stamp(buffer, at, base, leader_epoch)
        append_time = now_ms if self._log_append_time else -1
        if self._log_append_time:
            stamp_log_append_time(buffer, at, end - at, now_ms)
            header = read_header(view, at)
        elif header is None:
            header = read_header(view, at)
        else:
            header = header.stamped(base, leader_epoch)
        marker = read_marker(view, at, end - at) if header.attributes & CONTROL else None
        if self._must_roll(header, 0, end - at):
            self._roll(base, now_ms)
        self._write_run(view[at:end], (header,), {0: marker} if marker is not None else None)
        return Appended(base, base + header.last_offset_delta + 1, append_time, False)

    def append_as_follower(self, view: memoryview, at: int, end: int, high_watermark: int) -> Appended | None:
        """As `PartitionLog.append_as_follower`."""
        next_offset = self._ends.log_end
        headers: list[BatchHeader] = []
        markers: dict[int, EndMarker] = {}
        for position, header in iterate_batches(view, at, end, verify_crc=True):
            if header.base_offset < next_offset:
                message = f"a batch at offset {header.base_offset} where {next_offset} is the least"
                raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
            if header.attributes & CONTROL:
                marker = read_marker(view, position, header.size)
                if marker is not None:
                    markers[len(headers)] = marker
            headers.append(header)
            next_offset = header.base_offset + header.last_offset_delta + 1
        if not headers:
            return None
        self.admit(end - at)
        if markers:  # otherwise what ended would add up where the last stable offset is not asked for
            self._producers.on_high_watermark(high_watermark)
        self._append_run(view, at, headers, markers)
        return Appended(headers[0].base_offset, next_offset, -1, False)

    def _append_run(self, view: memoryview, at: int, headers: list[BatchHeader], markers: dict[int, EndMarker]) -> None:
        """Append with one write per segment: every replica rolls at the same batches."""
        first, run_at, position = 0, at, at
        for number, header in enumerate(headers):
            size = header.batch_length + PREFIX_BYTES
            if self._must_roll(header, position - run_at, size):
                if position > run_at:
                    self._write_run(view[run_at:position], headers[first:number], _shifted(markers, first))
                    first, run_at = number, position
                self._roll(self._next_segment(header), self._context.clock.wall_ms())
            if self._segments.active.size == 0 and position == run_at:
                self._start_roll_clock(header.max_timestamp)
            position += size
        self._write_run(view[run_at:position], headers[first:], _shifted(markers, first))

    def _next_segment(self, header: BatchHeader) -> int:
        """The base offset of a leader's next segment: the log's end, even if the batch comes after a gap left by
        compaction. So any gap between two segments after a power loss is known to be a loss."""
        end = self._ends.log_end
        fits = header.next_offset <= end + RELATIVE_OFFSETS_MAX
        return end if self._segments.active.size and fits else header.base_offset

    def _must_roll(self, header: BatchHeader, run_bytes: int, size: int) -> bool:
        """Whether a batch of `size` bytes no longer fits after the active segment and `run_bytes` more."""
        active = self._segments.active
        held, next_offset = active.size + run_bytes, header.base_offset + header.last_offset_delta + 1
        if held == 0:  # an empty segment accepts any batch whose offsets it can represent
            return next_offset > self._full_offset and header.base_offset > active.base_offset
        if self._full_timestamp == _NOT_READ:
            self._read_first_timestamp()
        return (
            held + size > self._full_size
            or header.max_timestamp > self._full_timestamp
            or next_offset > self._full_offset
        )

    def _read_first_timestamp(self) -> None:
        first_timestamp = self.first_timestamp()
        self._full_timestamp = FOREVER_MS
        self._start_roll_clock(first_timestamp)

    def first_timestamp(self) -> int:
        """Of the active segment; -1 if its first batch has none. Raises ProtocolError(KAFKA_STORAGE_ERROR)."""
        try:
            return self._segments.active.first_timestamp()
        except OSError as error:
            raise self._health.refused(f"read {self._files.directory}", error) from error

    def _write_run(
        self, data: memoryview, headers: Sequence[BatchHeader], markers: dict[int, EndMarker] | None
    ) -> None:
        """Append consecutive batches to the active segment, with one write."""
        segments, config, ends, epochs = self._segments, self._files.config, self._ends, self._epochs
        active, tail = segments.active, segments.tail
        if tail is None:
            tail = segments.begin_tail()
        if active.log.file is None:
            self._writer.prepare(active.log)  # after this nothing may fail
        if not active.exists:
            self._files.create(active)
        self._history.before_run(len(headers), self._producers, ends.log_end, active)
        start = position = active.size
        if tail.age != self._cold.age:
            tail.grow_older(self._cold.age, start)
        if start == 0:
            active.begin(headers[0].max_timestamp, self._context.clock.wall_ms())
            self._start_roll_clock(headers[0].max_timestamp)
        next_offset = max(ends.log_end, active.base_offset)  # the roll was at a gap
        for number, header in enumerate(headers):
            tail.append(next_offset, position)
            next_offset = header.base_offset + header.last_offset_delta + 1
            if header.leader_epoch != epochs.latest_epoch and header.leader_epoch >= 0:
                epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                self._update_producer(header, markers.get(number) if markers is not None else None)
            indexes = active.add_batch(header, next_offset - 1, position, config.index_interval_bytes)
            if indexes is not None:
                if indexes.is_lump_due:
                    self._files.write_index_lumps(active)
                if indexes.may_overflow(config.segment_index_bytes):
                    self._full_size = 0
            position += header.batch_length + PREFIX_BYTES
        try:
            is_written = self._writer.write(active.log, data, start, self, (active, position, next_offset))
        except ProtocolError as error:  # memory is ahead of the file
            self._health.fail(f"write {active.log.path}: {error}")
            raise
        if is_written:
            active.appended(position)
            ends.append(next_offset)
        else:
            active.append_later(position)
            ends.append_later(next_offset)
            self._files.begin_write()
        if next_offset - ends.flush_requested >= config.flush_messages:
            ends.request_flush(next_offset)
            self._durability.request(FlushDepth.DATA)
        elif config.flush_ms != FOREVER_MS:
            self._durability.request_within(config.flush_ms)

    def _update_producer(self, header: BatchHeader, marker: EndMarker | None) -> None:
        completed = self._producers.update(header, marker)
        if header.attributes & TRANSACTIONAL:
            self._context.transactional[self._files.who] = None
        if completed is not None and completed.aborted:
            entry = AbortedTransaction(
                completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
            )
            active = self._segments.active
            path = active.stem + TRANSACTION_INDEX_SUFFIX
            try:
                self._files.write(path, encode(entry), active.transaction_bytes, active.aborted_written)
            except ProtocolError as error:  # the producer's state is ahead of the file
                self._health.fail(f"write {path}: {error}")
                raise
            active.add_aborted(entry)

    @property
    def may_roll(self) -> bool:
        """Whether a segment may be closed now and has a record."""
        return self.is_idle and self._segments.active.size > 0

    @property
    def closed(self) -> bool:
        return self._files.closed

    def write_finished(self, tag: object) -> None:
        """The thread has written a postponed run, in order."""
        self._files.write_finished(None)
        segment, size, next_offset = cast(tuple[Segment, int, int], tag)
        segment.in_page_cache(size)
        self._ends.in_page_cache(next_offset)
        if self._ends.counts_flushed:
            self._durability.request(FlushDepth.DATA)

    # Rolling

    def _roll(self, base_offset: int, now_ms: int) -> None:
        """Close the active segment and begin one at `base_offset`, with a producer snapshot there."""
        closed = self._segments.active
        closed.close_indexes()
        self._files.write_index_lumps(closed)
        self._durability.write_snapshot(base_offset)
        self.begin_segment(base_offset, now_ms)
        self._durability.request(FlushDepth.CLOSED)

    def begin_segment(self, base_offset: int, now_ms: int) -> None:
        """Begin a new active segment in memory; the caller has closed the old one."""
        self._segments.begin(base_offset, now_ms)
        self.set_roll_bounds()

    def create_files(self) -> None:
        """Create the files of the active segment without a record: its name preserves the log's end."""
        active = self._segments.active
        self._files.create(active)
        self._files.write(active.stem + LOG_SUFFIX, b"")

    def is_old(self, now_ms: int) -> bool:
        """Whether the active segment is to be closed because of its age. Raises as `first_timestamp`."""
        first = self.first_timestamp()
        return now_ms - (first if first >= 0 else self._segments.active.created_ms) > self._files.config.roll_ms

    def roll_if(self, is_due: bool, now_ms: int) -> bool:
        """`roll` if it is due and possible. Returns whether it did."""
        rolls = is_due and self.may_roll
        if rolls:
            self.roll(now_ms)
        return rolls

    def roll(self, now_ms: int) -> None:
        """Begin a new, empty segment at the log's end."""
        if self._segments.active.size:
            self._roll(self._ends.log_end, now_ms)
            self.create_files()


def _shifted(markers: dict[int, EndMarker], first: int) -> dict[int, EndMarker] | None:
    """Markers by their number in a run that begins with batch `first`."""
    return {number - first: marker for number, marker in markers.items()} if markers else None
