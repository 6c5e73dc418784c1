"""A log's state and how it grows: appends as leader, follower or mirror, and the roll to a new segment.

The unit is the record batch. What an append changes in memory comes first and its bytes last: when the disk refuses
them the whole directory is offline, and nothing of this value is looked at any more.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from common.errors import ErrorCode, ProtocolError
from common.ports import Buffer
from common.whole_files import join
from records.batch import CONTROL, PREFIX_BYTES, BatchHeader, iterate_batches, read_header, stamp, stamp_log_append_time
from records.control import EndMarker, read_marker
from storage.checkpoint_files import LOG_STARTS, PARTITION_METADATA, RECOVERY_POINTS
from storage.loaded_log import LoadedLog
from storage.log_config import FOREVER_MS, LogConfig
from storage.log_context import LogContext
from storage.log_ends import LogEnds
from storage.log_flusher import FlushDepth, FlushJob, plan_flush
from storage.open_files import FileHandle
from storage.producer_history import ProducerHistory
from storage.producer_state import Duplicate
from storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    RELATIVE_OFFSETS_MAX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    LargestTimestamp,
    Segment,
    file_stem,
)
from storage.snapshot_writes import AT_ONCE_MAX
from storage.tail import Tail
from storage.transaction_index import ENTRY_BYTES, AbortedTransaction, encode

_NOT_READ = -2  # below every timestamp
_FIRST_FIELDS = 3  # base offset, batch length, leader epoch
OFFSET_MAX = 2**63 - 1


class Appended(NamedTuple):
    """Offsets of an append, half-open; `max_timestamp` is the log append time, -1 where clients set timestamps."""

    base_offset: int
    next_offset: int
    max_timestamp: int
    duplicate: bool


class AppendableLog:
    """What `PartitionLog` is, without its reads, truncation and removal; see there for the meaning of each field."""

    __slots__ = (
        "_cold",
        "_full_offset",
        "_full_size",
        "_full_timestamp",
        "_health",
        "_log_append_time",
        "_writer",
        "active",
        "barred",
        "bound",
        "closed",
        "config",
        "context",
        "copying_offset",
        "directory",
        "ends",
        "epochs_changed",
        "is_new",
        "leader_epochs",
        "log_start_offset",
        "names_changed",
        "on_written",
        "partition",
        "pending_writes",
        "producer_history",
        "producers",
        "segments",
        "tail",
        "topic",
        "topic_id",
    )

    def __init__(self, context: LogContext, loaded: LoadedLog) -> None:
        self.context = context
        self._writer = context.writer
        self._health = context.health
        self._cold = context.open_files.cold
        self.topic = loaded.topic
        self.partition = loaded.partition
        self.topic_id = loaded.topic_id
        self.directory = loaded.directory
        self.segments, self.active = loaded.segments, loaded.segments[-1]
        self.leader_epochs = loaded.epochs
        self.producers = loaded.producers
        loaded.producers.join(context.producers)
        self.producer_history = ProducerHistory(loaded.snapshots)
        self.log_start_offset = loaded.log_start_offset
        self.ends = LogEnds(loaded.log_end_offset, loaded.recovery_point)
        self.pending_writes = 0  # writes that wait for a slow disk
        self.is_new = loaded.is_new  # its directory's own name and its metadata are not on the device yet
        self.names_changed = loaded.names_changed  # nor are some names in it
        self.epochs_changed = loaded.epochs_changed  # entries of batches that the checkpoint file lacks
        self.closed = False
        self.barred: str | None = None  # why the log takes no appends and is not cut, for now or, once closed, for good
        self.copying_offset = OFFSET_MAX  # of the segment that is being copied: from there on nothing is compacted
        self.on_written: Callable[[], None] | None = None
        self.tail: Tail | None = None
        self.bound: tuple[int, Segment, int] | None = None  # a reader's last bound behind the tail, and its position
        self.update_config(loaded.config)

    # Settings

    def update_config(self, config: LogConfig) -> None:
        """Take new topic settings; they hold from the next append on."""
        self.config = config
        if config.is_compacted:
            self.context.compacted[self.topic, self.partition] = None
        else:
            self.context.compacted.pop((self.topic, self.partition), None)
        if config.remote_storage_enable:
            self.context.checkpoints.note(LOG_STARTS)  # written down from now on: the tier holds what lies below
        self.producers.set_limits(config.producer_id_expiration_ms, config.producers_max)
        self._log_append_time = config.log_append_time
        if self.ends.count_flushed(config.flush_messages == 1):
            self._written_end_moved()
        self._set_roll_bounds()

    def _set_roll_bounds(self) -> None:
        """What the active segment may grow to."""
        active, config = self.active, self.config
        if config.remote_storage_enable:
            self.context.rolled[self.topic, self.partition] = None
        self._full_size = config.segment_bytes
        self._full_offset = active.base_offset + RELATIVE_OFFSETS_MAX
        self._full_timestamp = FOREVER_MS
        if active.size:
            self._full_timestamp = _NOT_READ  # the next append looks at the first batch
            self._note_index_size(active)

    def _start_roll_clock(self, first_timestamp: int) -> None:
        """The next batch that is this much younger begins a new segment; without timestamps none does."""
        if first_timestamp >= 0:
            self._full_timestamp = first_timestamp + self.config.roll_ms - self._roll_jitter_ms()

    def _roll_jitter_ms(self) -> int:
        spread = min(self.config.segment_jitter_ms, self.config.roll_ms)
        return self.context.rng.randrange(spread) if spread > 0 else 0

    def _note_index_size(self, segment: Segment) -> None:
        indexes = segment.indexes
        limit = self.config.segment_index_bytes
        if indexes.offsets.size + 8 > limit or indexes.times.size + 24 > limit:
            self._full_size = 0

    # Appends

    def append_as_leader(
        self,
        buffer: bytearray | memoryview,
        view: memoryview,
        at: int,
        end: int,
        leader_epoch: int,
        now_ms: int,
        header: BatchHeader | None = None,
    ) -> Appended:
        """Append the one batch `view[at:end]`, which `check_produced` and `producers.check` accepted.

        `buffer` is the same memory, writable: offsets, epoch and log append time are stamped in place. `header` saves
        reading it again. Raises ProtocolError(KAFKA_STORAGE_ERROR) when the directory is offline, nearly full or
        more bytes than its budget wait for a slow disk; nothing is appended then.
        """
        if self._health.refuses_appends or self._writer.slow or self.barred is not None:
            self._admit(end - at)
        base = self.ends.log_end
        stamp(buffer, at, base, leader_epoch)
        append_time = now_ms if self._log_append_time else -1
        if self._log_append_time:
            stamp_log_append_time(buffer, at, end - at, now_ms)
            header = read_header(view, at)
        elif header is None:
            header = read_header(view, at)
        else:
            header = BatchHeader._make((base, header[1], leader_epoch, *header[_FIRST_FIELDS:]))
        marker = read_marker(view, at, end - at) if header.attributes & CONTROL else None
        if self._must_roll(header, 0, end - at):
            self._roll(base, now_ms)
        self._write_run(view[at:end], (header,), {0: marker} if marker is not None else None)
        return Appended(base, base + header.last_offset_delta + 1, append_time, False)

    def append_as_follower(self, view: memoryview, at: int, end: int) -> Appended | None:
        """Append a leader's whole batches, each checked by CRC; a torn last one is left out. None: none was whole.

        Raises ProtocolError: CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE (does not begin at the log's end or after it),
        KAFKA_STORAGE_ERROR. Nothing is appended then, except that a disk may fail between two segments of a run.
        """
        next_offset = self.ends.log_end
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
            next_offset = header.next_offset
        if not headers:
            return None
        self._admit(end - at)
        self._append_run(view, at, headers, markers)
        return Appended(headers[0].base_offset, next_offset, -1, False)

    def append_as_mirror(self, view: memoryview, at: int, end: int, leader_epoch: int) -> Appended | None:
        """As a follower with given offsets, but under this leader's own epoch: it is stamped into `view` (writable)."""
        for position, header in iterate_batches(view, at, end, verify_crc=False):
            stamp(view, position, header.base_offset, leader_epoch)
        return self.append_as_follower(view, at, end)

    def _admit(self, size: int) -> None:
        if self._health.refuses_appends or self.barred is not None:
            raise self.refusal()
        if self._writer.slow:
            self._writer.admit(size)

    def refusal(self) -> ProtocolError:
        """What is answered while the log or its directory takes no requests."""
        if self.barred is not None:
            return ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, self.barred)
        return self._health.error()

    def find_duplicate(self, header: BatchHeader) -> Duplicate | None:
        """What a client's batch repeats, None when it is due; raises as `ProducerStates.check` and as `append`."""
        if self.barred is not None:
            raise self.refusal()
        return self.producers.check(header)

    def _append_run(self, view: memoryview, at: int, headers: list[BatchHeader], markers: dict[int, EndMarker]) -> None:
        """One write, or one per segment where the run crosses a roll: every replica rolls at the same batches."""
        first, run_at, position = 0, at, at
        for number, header in enumerate(headers):
            size = header.batch_length + PREFIX_BYTES
            if self._must_roll(header, position - run_at, size):
                if position > run_at:
                    self._write_run(view[run_at:position], headers[first:number], _shifted(markers, first))
                    first, run_at = number, position
                self._roll(self._next_segment(header), self.context.clock.wall_ms())
            if self.active.size == 0 and position == run_at:
                self._start_roll_clock(header.max_timestamp)
            position += size
        self._write_run(view[run_at:position], headers[first:], _shifted(markers, first))

    def _next_segment(self, header: BatchHeader) -> int:
        """Where the segment begins that takes a leader's batch first: at the log's end, though the batch may lie behind
        a gap that compaction left. So what lies between two segments after a loss of power is known to be lost."""
        fits = header.next_offset <= self.ends.log_end + RELATIVE_OFFSETS_MAX
        return self.ends.log_end if self.active.size and fits else header.base_offset

    def _must_roll(self, header: BatchHeader, run_bytes: int, size: int) -> bool:
        """Whether a batch of `size` bytes fits no more behind the active segment's and `run_bytes` more."""
        held = self.active.size + run_bytes
        if held == 0:  # an empty segment takes any batch whose offsets it can tell
            return header.next_offset > self._full_offset and header.base_offset > self.active.base_offset
        if self._full_timestamp == _NOT_READ:
            self._read_first_timestamp()
        return (
            held + size > self._full_size
            or header.max_timestamp > self._full_timestamp
            or header.next_offset > self._full_offset
        )

    def _read_first_timestamp(self) -> None:
        self._full_timestamp = FOREVER_MS
        try:
            self._start_roll_clock(self.active.first_timestamp())
        except OSError as error:
            self._full_timestamp = _NOT_READ
            raise self._health.refused(f"read {self.directory}", error) from error

    def _write_run(
        self, data: memoryview, headers: Sequence[BatchHeader], markers: dict[int, EndMarker] | None
    ) -> None:
        """Append batches that lie back to back to the active segment, with one write."""
        active, config, ends, epochs, tail = self.active, self.config, self.ends, self.leader_epochs, self.tail
        if tail is None:
            tail = self.tail = Tail(active.base_offset)
        if active.log.file is None:
            self._writer.prepare(active.log)  # from here on nothing may be refused
        if not active.exists:
            self._create_files(active)
        self.producer_history.before_run(len(headers), self.producers, ends.log_end, active)
        start = position = active.size
        if tail.age != self._cold.age:
            tail.grow_older(self._cold.age, start)
        if start == 0:
            active.begin(headers[0].max_timestamp, self.context.clock.wall_ms())
            self._start_roll_clock(headers[0].max_timestamp)
        next_offset = max(ends.log_end, active.base_offset)  # the roll was at a gap
        for number, header in enumerate(headers):
            tail.append(next_offset, position)
            next_offset = header.base_offset + header.last_offset_delta + 1
            if header.leader_epoch != epochs.latest_epoch and header.leader_epoch >= 0:
                epochs.assign(header.leader_epoch, header.base_offset)
                self.epochs_changed = True
            elif epochs.latest_start == header.base_offset:
                self.epochs_changed = True  # the first batch of an epoch that was assigned before
            if header.producer_id >= 0:
                self._update_producer(header, markers.get(number) if markers is not None else None)
            if header.max_timestamp > active.max_timestamp:
                active.max_timestamp = header.max_timestamp
                active.max_timestamp_offset = next_offset - 1
            size = header.batch_length + PREFIX_BYTES
            if active.bytes_since_index > config.index_interval_bytes:
                self._index_batch(active, next_offset - 1, position)
            active.bytes_since_index += size
            position += size
        try:
            is_written = self._writer.write(active.log, data, start, self, (active, position, next_offset))
        except ProtocolError as error:  # what is in memory has gone ahead
            self._health.fail(f"write {active.log.path}: {error}")
            raise
        if is_written:
            active.size = active.written = position
            ends.append(next_offset)
        else:
            active.size = position
            ends.append_later(next_offset)
            self.pending_writes += 1
        if next_offset - ends.flush_requested >= config.flush_messages:
            ends.request_flush(next_offset)
            self.context.flusher.request(self, FlushDepth.DATA)
        elif config.flush_ms != FOREVER_MS:
            self.context.flusher.note_unflushed(self, config.flush_ms)

    def _update_producer(self, header: BatchHeader, marker: EndMarker | None) -> None:
        completed = self.producers.update(header, marker)
        if completed is not None and completed.aborted:
            entry = AbortedTransaction(
                completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
            )
            try:
                path, at = self.active.stem + TRANSACTION_INDEX_SUFFIX, self.active.transaction_bytes
                self._write_small(path, encode(entry), at)
            except ProtocolError as error:  # the producer's state is ahead of it
                self._health.fail(f"write {path}: {error}")
                raise
            self.active.transaction_bytes += ENTRY_BYTES
            self.active.least_aborted = min(self.active.least_aborted, entry.first_offset)

    def _index_batch(self, active: Segment, last_offset: int, position: int) -> None:
        active.bytes_since_index = 0
        largest = LargestTimestamp(active.max_timestamp, active.max_timestamp_offset)
        if active.indexes.append(last_offset, position, largest):
            self.write_index_lumps(active)
        self._note_index_size(active)

    def write_index_lumps(self, segment: Segment) -> bool:
        """Write the index entries that wait in memory; whether none waits now. They wait on while the disk is slow
        or full, or while their file cannot be opened."""
        indexes = segment.loaded_indexes
        if indexes is None:
            return True
        for file in (indexes.offset_file, indexes.time_file):
            if file.pending:
                if self._writer.slow:
                    return False
                try:
                    self._writer.write(file.handle, bytes(file.pending), file.flushed, self)
                except ProtocolError:
                    return False
                file.note_written()
        return True

    def _write_small(self, path: str, data: Buffer, position: int) -> None:
        """To a file that is not kept open. When the disk is slow it goes behind what waits already."""
        handle = FileHandle(self.context.open_files, path)
        if not self._writer.write(handle, data, position, self):
            self.pending_writes += 1
        handle.retire()
        self.names_changed = True

    def write_finished(self, tag: object) -> None:
        """The thread has written what was postponed, in order."""
        self.pending_writes -= 1
        if not isinstance(tag, tuple):
            return
        segment, size, next_offset = tag
        segment.written = max(segment.written, size)
        if self.ends.in_page_cache(next_offset):
            self._written_end_moved()
        if self.ends.counts_flushed:
            self.context.flusher.request(self, FlushDepth.DATA)

    def _written_end_moved(self) -> None:
        if self.on_written is not None:
            self.on_written()

    # Flush

    def plan_flush(self, depth: FlushDepth) -> FlushJob | None:
        """What is to be flushed now, None when all of it is on the device."""
        job = plan_flush(self, depth, self.context.snapshots.least(self))
        if job is not None:
            self.is_new = self.names_changed = False
            self.epochs_changed = self.epochs_changed and job.epochs is None
        return job

    def flush_postponed(self, job: FlushJob) -> None:
        """The job was not done: what it alone was to make durable is for the next one."""
        self.epochs_changed |= job.epochs is not None
        self.is_new |= join(self.directory, PARTITION_METADATA) in job.paths
        self.names_changed |= self.directory in job.directories

    def flush_finished(self, job: FlushJob) -> None:
        """The job's files are on the device. A truncation meanwhile makes it void: what was cut is written anew."""
        if job.generation != self.ends.generation:
            self.context.flusher.request(self, FlushDepth.DATA)
            return
        if job.recovery_point > self.ends.recovery_point:
            self.context.checkpoints.note(RECOVERY_POINTS)
        if self.ends.on_device(job.upto_offset, job.recovery_point):
            self._written_end_moved()

    # Rolling

    def _roll(self, base_offset: int, now_ms: int) -> None:
        """Close the active segment and begin one at `base_offset`, with a producer snapshot there."""
        closed = self.active
        closed.indexes.append_time(LargestTimestamp(closed.max_timestamp, closed.max_timestamp_offset))
        self.write_index_lumps(closed)
        self.write_producer_snapshot(base_offset)
        self.start_segment(base_offset, now_ms)
        self.context.flusher.request(self, FlushDepth.CLOSED)

    def start_segment(self, base_offset: int, now_ms: int) -> None:
        """A new active segment, in memory; the caller has dealt with the old one."""
        segment = Segment.fresh(self.context.open_files, self.directory, base_offset, now_ms)
        self.segments.append(segment)
        self.make_active(segment)

    def make_active(self, segment: Segment) -> None:
        """Appends go to `segment`, the last one, from now on."""
        self.active = segment
        self.tail = None
        self._set_roll_bounds()

    def create_active_files(self) -> None:
        """Without a record: the name of an empty segment is what keeps the log's end."""
        self._create_files(self.active)
        self._write_small(self.active.stem + LOG_SUFFIX, b"", 0)

    def _create_files(self, segment: Segment) -> None:
        segment.exists = True
        self.names_changed = True
        if not self._writer.slow:  # else they appear with their first lump
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                self._write_small(segment.stem + suffix, b"", 0)

    def write_producer_snapshot(self, offset: int) -> None:
        """`<offset>.snapshot`, of many producers a little later; one that exists already says the same."""
        if offset not in self.producer_history.snapshots and len(self.producers) > AT_ONCE_MAX:
            self.context.snapshots.begin(self, offset, self.ends.generation)
        elif offset not in self.producer_history.snapshots:
            self._write_small(file_stem(self.directory, offset) + SNAPSHOT_SUFFIX, self.producers.snapshot(), 0)
            self.producer_history.add(offset)

    def wants_snapshot(self, offset: int, generation: int) -> bool:
        """See `SnapshotOwner`."""
        is_there = self.segments[0].base_offset <= offset and offset not in self.producer_history.snapshots
        return is_there and generation == self.ends.generation

    def snapshot_settled(self, offset: int, *, is_named: bool) -> None:
        """See `SnapshotOwner`; the recovery point may move past it now."""
        if is_named:
            self.producer_history.add(offset)
            self.names_changed = True
        self.context.flusher.request(self, FlushDepth.CLOSED)

    def roll(self, now_ms: int) -> None:
        """Begin a new, empty segment at the log's end."""
        if self.active.size:
            self._roll(self.ends.log_end, now_ms)
            self.create_active_files()


def _shifted(markers: dict[int, EndMarker], first: int) -> dict[int, EndMarker] | None:
    """Markers by their number in a run that begins with batch `first`."""
    return {number - first: marker for number, marker in markers.items()} if markers else None
