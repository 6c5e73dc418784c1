"""One replica's log: Kafka's segment files, appended with one write, read as regions of a file.

One writer; every call runs on the event loop unless it says otherwise. `PartitionLog` is the face of parts that each
change their own fields alone: `LogEnds` (how far it reaches), `LogFiles` (directory, settings, whether it takes
changes), `SegmentList`, `LogTail` (appends, roll), `LogDurability` (flush), `LogShortening` (truncation, removal),
`ProducerStates` with their history, and `LeaderEpochCache`.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeVar

from records.batch import BatchHeader
from storage.disk.checkpoint_files import HIGH_WATERMARKS, TopicPartition
from storage.disk.log_flusher import FlushDepth
from storage.indexes.aborted_look_up import unpack_rows
from storage.log.closed_segments import ClosedSegment, SegmentReader, closed_segment_at
from storage.log.leader_epochs import EpochEnd
from storage.log.loaded_log import LoadedLog
from storage.log.log_config import LogConfig
from storage.log.log_context import LogContext
from storage.log.log_durability import LogDurability
from storage.log.log_files import LogFiles
from storage.log.log_shortening import DIVERGED, FROM_TIER, TOO_FAR_BEHIND, LogShortening, Reason
from storage.log.log_tail import Appended, LogTail
from storage.log.retention import SegmentView
from storage.log.segment_list import SegmentList
from storage.log.segment_swap import swap_files
from storage.log.tier_start import Beginning
from storage.producers.producer_history import ProducerHistory
from storage.producers.producer_state import Duplicate, ProducerStates
from storage.segments.region import Region
from storage.segments.segment import Segment, file_stem
from storage.segments.timestamp_hit import TimestampHit

__all__ = ["Appended", "PartitionLog", "Reason", "TimestampHit"]

OFFSET_MAX = 2**63 - 1

T = TypeVar("T")


class PartitionLog:
    """Offsets: `log_start_offset` is the first that is served, `log_end_offset` the next to be assigned.

    `written_end_offset` may count as this replica's log end: bytes below it are in the page cache, and on the device
    where flush.messages is 1. It lags `log_end_offset` only while the disk is slow or a flush runs. A leader's
    followers may read up to `readable_end_offset` what the leader itself has not flushed yet. In a tiered topic
    `local_log_start_offset` may lie above `log_start_offset`: what is between them is in the tier alone.
    """

    __slots__ = (
        "_files",
        "_health",
        "_segments",
        "_tail",
        "config",
        "context",
        "copying_offsets",
        "durability",
        "ends",
        "leader_epochs",
        "partition",
        "producer_history",
        "producers",
        "topic",
    )

    def __init__(self, context: LogContext, loaded: LoadedLog) -> None:
        self.context = context
        self._health = context.health
        self.topic, self.partition = loaded.topic, loaded.partition
        self.leader_epochs = epochs = loaded.epochs
        self.producers = producers = loaded.producers
        producers.join(context.producers)
        self.producer_history = history = ProducerHistory(loaded.snapshots)
        self.ends = ends = loaded.ends
        self.copying_offsets: list[int] = []  # of segments that are being copied: nothing from there on is compacted
        self._files = files = LogFiles(context, loaded)
        self._segments = segments = SegmentList(context, files, ends, loaded.segments)
        self.durability = LogDurability(context, files, ends, segments, epochs, producers, history)
        self._configure(loaded.config)
        self._tail = LogTail(context, files, ends, segments, epochs, producers, history, self.durability)

    @property
    def _shortening(self) -> LogShortening:
        """Created per call: it has no state, and a broker may have 100,000 logs."""
        known = (self._files, self.ends, self._segments, self.leader_epochs, self.producers, self.producer_history)
        return LogShortening(self.context, *known, self.durability, self._tail)

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic}-{self.partition} [{self.log_start_offset}, {self.log_end_offset}))"

    def check(self) -> None:
        """Assert the invariants, in the simulator and in debug runs."""
        self.ends.check()
        self._segments.check()

    # Settings

    def update_config(self, config: LogConfig) -> None:
        """Apply new topic settings, from the next append on."""
        self._configure(config)
        self._tail.configure()

    def _configure(self, config: LogConfig) -> None:
        self.config = config
        self._files.configure(config)
        self.producers.set_limits(config.producer_id_expiration_ms, config.producers_max)

    def found_empty(self, topic_id: bytes, config: LogConfig) -> None:
        """Use the log for this topic: a crash came between the creation of the directory and of its metadata."""
        self._files.renew(topic_id)
        self.update_config(config)

    def note_high_watermark(self) -> None:
        """Its replica's high watermark has moved."""
        self.context.checkpoints.note(HIGH_WATERMARKS)

    # Views

    @property
    def who(self) -> TopicPartition:
        return self._files.who

    @property
    def topic_id(self) -> bytes:
        return self._files.topic_id

    @property
    def log_start_offset(self) -> int:
        return self.ends.log_start

    @property
    def directory(self) -> str:
        return self._files.directory

    @property
    def closed(self) -> bool:
        return self._files.closed

    @property
    def barred(self) -> str | None:
        """Why the log rejects appends and truncations, temporarily or, if closed, permanently."""
        return self._files.barred

    @property
    def pending_writes(self) -> int:
        """Writes that wait for a slow disk."""
        return self._files.pending_writes

    @property
    def segments(self) -> Sequence[Segment]:
        """In order; the last one is the active one."""
        return self._segments.all

    @property
    def active(self) -> Segment:
        return self._segments.active

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def local_log_start_offset(self) -> int:
        """The first offset on this disk, at least the log start."""
        return max(self.log_start_offset, self._segments.all[0].base_offset)

    @property
    def log_end_offset(self) -> int:
        return self.ends.log_end

    @property
    def written_end_offset(self) -> int:
        return self.ends.written

    @property
    def readable_end_offset(self) -> int:
        return self.ends.readable

    @property
    def flushed_end_offset(self) -> int:
        return self.ends.flushed

    @property
    def recovery_point(self) -> int:
        return self.ends.recovery_point

    @property
    def generation(self) -> int:
        return self.ends.generation

    # Reads

    def read(
        self,
        offset: int,
        bytes_max: int,
        until_offset: int,
        *,
        at_least_one: bool = True,
        only_in_memory: bool = False,
    ) -> Region | None:
        """Whole batches from the one that holds `offset`, of one segment, none at or past `until_offset`.

        None when there is nothing to read yet, or when not even the first batch fits `bytes_max` and
        `at_least_one` is off. Raises ProtocolError: OFFSET_OUT_OF_RANGE (before the log's start, after its end),
        OFFSET_MOVED_TO_TIERED_STORAGE (before what this disk holds), KAFKA_STORAGE_ERROR. The caller releases the
        region. With `only_in_memory` nothing waits for the device: PagesMissing where the bytes that lead to the region
        are not in memory. The region's own bytes need not be.
        """
        ends = self.ends
        if offset < ends.log_start or offset > ends.log_end:
            raise ends.out_of_range(offset)
        if self._health.offline is not None or self._files.closed:
            raise self._tail.refusal()
        until_offset = min(until_offset, ends.readable)
        if offset >= until_offset:
            return None
        segments = self._segments
        tail = segments.tail
        if tail is None or offset - tail.base < tail.starts[0]:
            return segments.read(offset, bytes_max, until_offset, at_least_one, only_in_memory)
        starts, positions, active = tail.starts, tail.positions, segments.active
        found = bisect_right(starts, offset - tail.base) - 1
        start = positions[found]
        if until_offset == ends.log_end:
            end = active.size
        else:
            end = positions[bisect_right(starts, until_offset - tail.base) - 1]
        if end - start > bytes_max:
            cut = bisect_right(positions, start + bytes_max) - 1
            if cut > found:
                end = positions[cut]
            elif not at_least_one:
                return None
            elif found + 1 < len(positions):
                end = min(end, positions[found + 1])
        if end <= start:
            return None
        handle = active.log
        file = handle.file
        if file is None:
            return segments.read_tail(start, end, only_in_memory=only_in_memory)
        handle.pin()
        return Region(file, start, end - start, handle, tail.is_fresh(start, segments.cold.age))

    def locate_timestamp(self, timestamp: int) -> TimestampHit | None:
        """The first batch with a record at or after `timestamp` (ms); `TimestampHit.resolve` finds the record."""
        return self._segments.locate_timestamp(timestamp, self.log_start_offset)

    def locate_max_timestamp(self) -> TimestampHit | None:
        """The first batch that holds the log's largest timestamp; None when no record has one."""
        largest = self._segments.largest_timestamp(self.log_start_offset)
        return self.locate_timestamp(largest) if largest >= 0 else None

    async def when_in_memory(self, ask: Callable[[], T]) -> T:
        """Call `ask` on this log; threads first bring into memory what it reads from the device. Returns its result."""
        return await self.context.open_files.cold.when_there(ask)

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """Where the largest epoch up to `epoch` ends in this log."""
        return self.leader_epochs.end_offset_for(epoch, self.ends.log_end)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open, or ended above the high watermark."""
        first = self.producers.first_unstable_offset
        return first if first is None else max(first, self.log_start_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The last stable offset: the end of what readers of committed records may see."""
        self.producers.on_high_watermark(high_watermark)
        first = self.first_unstable_offset
        return high_watermark if first is None else min(first, high_watermark)

    def aborted_transactions(self, start: int, end: int, *, only_in_memory: bool = False) -> list[tuple[int, int]]:
        """(producer id, first offset) of every aborted transaction that touches the range; see `read`."""
        return unpack_rows(self._segments.aborted_rows(start, end, only_in_memory=only_in_memory))

    def aborted_in(self, offset: int, region: Region, until_offset: int) -> tuple[Region, bytearray]:
        """See `SegmentList.aborted_in`; only in memory, see `read`. Release the region that it returns."""
        return self._segments.aborted_in(offset, region, until_offset)

    def aborted_rows(self, start: int, end: int) -> bytearray:
        """See `SegmentList.aborted_rows`; only in memory, see `read`."""
        return self._segments.aborted_rows(start, end, only_in_memory=True)

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
        return self._tail.append_as_leader(buffer, view, at, end, leader_epoch, now_ms, header)

    def append_as_follower(self, view: memoryview, at: int, end: int, final_below: int = 0) -> Appended | None:
        """Append a leader's whole batches, each checked by CRC; a torn last one is left out. None: none was whole.

        `final_below`: the high watermark. Raises ProtocolError: CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE (it begins below
        the log's end), KAFKA_STORAGE_ERROR. Nothing is appended then, unless a disk fails between two segments.
        """
        return self._tail.append_as_follower(view, at, end, final_below)

    def check_admits(self, size: int) -> None:
        """Raise what an append of `size` bytes would raise now: ProtocolError(KAFKA_STORAGE_ERROR)."""
        self._tail.admit(size)

    def find_duplicate(self, header: BatchHeader) -> Duplicate | None:
        """The append that a client's batch repeats, or None; raises as `ProducerStates.check` and as `append`."""
        if self._files.barred is not None:
            raise self._tail.refusal()
        return self.producers.check(header)

    def bar(self, reason: str) -> None:
        """Make the log reject appends and truncations until `unbar`."""
        self._files.bar(reason)

    def unbar(self) -> None:
        """End `bar`."""
        self._files.unbar()

    # Truncation, log start, retention

    def truncate_to(self, offset: int, reason: Reason = DIVERGED, *, only_in_memory: bool = False) -> int:
        """Cut everything from the batch that holds `offset` on; the new log end, which the follower fetches next.

        Raises ProtocolError(KAFKA_STORAGE_ERROR), nothing being cut, while the log is barred, bytes of it wait for a
        slow disk, or checkpoints that tell of what is to be cut are being withdrawn: try again later. It is an
        AuditPending when only the audit's event is still to become durable. With `only_in_memory` PagesMissing, nothing
        being cut, where the device would have to be waited for to know where the cut lies.
        """
        return self._shortening.truncate_to(offset, reason, only_in_memory=only_in_memory)

    def truncate_fully_and_start_at(self, offset: int, reason: Reason = TOO_FAR_BEHIND) -> None:
        """Drop everything and begin at `offset`, the log's start and end: this replica is too far behind its leader's
        log start. Raises as `truncate_to`."""
        self._shortening.truncate_fully_and_start_at(offset, reason)

    def advance_log_start(self, offset: int, cause: str, actor: str = "") -> bool:
        """Serve nothing below `offset` any more; segments wholly below it go, at once or by `delete_old_segments`.
        Whether it moved. Raises ProtocolError(OFFSET_OUT_OF_RANGE) past the log's end, and AuditPending as
        `truncate_to`."""
        return self._shortening.advance_log_start(offset, cause, actor)

    def delete_old_segments(self, now_ms: int, high_watermark: int, tier_end_offset: int = -1) -> int:
        """Drop what retention and the log start allow, nothing at or past the high watermark.

        The number of segments dropped; when it is not 0 there may be more. Of a tiered topic only what the tier holds
        goes, up to `tier_end_offset` (-1: nothing is known of it), by local.retention.ms and local.retention.bytes, and
        the log's start stays. Raises AuditPending as `truncate_to`.
        """
        return self._shortening.delete_old_segments(now_ms, high_watermark, tier_end_offset)

    def drop_erased(self, now_ms: int, high_watermark: int, tier_end_offset: int, erased_end_offset: int) -> int:
        """Drop segments of a tiered log that hold records from below `erased_end_offset`; how many went.

        Where this replica's segments were cut elsewhere than the leader's, newer records are in the last of them: it is
        closed, and goes once all of it lies below what the tier holds. Raises AuditPending, and nothing has gone.
        """
        return self._shortening.drop_erased(now_ms, high_watermark, tier_end_offset, erased_end_offset)

    def oldest_views(self, retention_ms: int, now_ms: int, from_offset: int = -1) -> tuple[list[SegmentView], int]:
        """As `SegmentList.oldest_views`."""
        return self._segments.oldest_views(retention_ms, now_ms, from_offset)

    # Rolling

    def roll(self, now_ms: int) -> None:
        """Begin a new, empty segment at the log's end."""
        self._tail.roll(now_ms)

    def roll_now(self, now_ms: int) -> bool:
        """Roll unless the active segment is empty or must not be changed now. Returns whether it did."""
        return self._tail.roll_if(True, now_ms)

    def maybe_roll(self, now_ms: int) -> bool:
        """As `roll_now` when the active segment is too old, though nothing is appended.

        Raises ProtocolError(KAFKA_STORAGE_ERROR) when it cannot be read.
        """
        return self._tail.may_roll and self._tail.roll_if(self._tail.is_old(now_ms), now_ms)

    def roll_for_tier(self, now_ms: int) -> bool:
        """As `roll_now` when the active segment of a tiered topic was begun too long ago.

        It counts from when the segment was begun, not from its records' times: those may span years. While copying is
        disabled segments are closed as those of any other topic.
        """
        is_old = now_ms - self._segments.active.created_ms > self.config.tier_roll_ms
        return self._tail.roll_if(is_old and not self.config.remote_log_copy_disable, now_ms)

    # Compaction

    def swap_in(self, replaced: Sequence[Segment], size: int, transaction_bytes: int) -> bool:
        """Have the segment whose files lie beside them as `.cleaned` in the place of a run of closed segments.

        It has the first one's base offset, `size` bytes and a transaction index of `transaction_bytes`. False, and the
        new files are the caller's to remove, when the log no longer has exactly these segments, or a copy of one is
        under way. The directory is to be fsynced afterwards, off the loop. OSError when a file cannot be renamed.
        """
        first, copied = self._segments.find_run(replaced), min(self.copying_offsets, default=OFFSET_MAX)
        if first is None or self.closed or self.segments[first + len(replaced)].base_offset > copied:
            return False
        swap_files(self.context.disk, self._files, replaced)
        self._segments.replace(first, replaced, size, transaction_bytes)
        gone = {segment.base_offset for segment in replaced[1:]}
        self.producer_history.drop(gone.__contains__)
        return True

    # The tier

    def closed_segment_at(self, offset: int) -> ClosedSegment | None:
        """The next range to copy: from `offset` to the end of a closed segment; None when there is none yet.

        Raises ProtocolError(KAFKA_STORAGE_ERROR).
        """
        history, config, now_ms = self.producer_history, self.config, self.context.clock.wall_ms()
        given = (self._segments, self.leader_epochs, history.snapshots, self.directory)
        try:
            return closed_segment_at(*given, offset, config.index_interval_bytes, now_ms)
        except OSError as error:
            self._health.fail(f"read {self.directory}: {error}")
            raise self._health.error() from error

    def read_closed(self, closed: ClosedSegment) -> SegmentReader:
        """Reads `closed` in threads, see there."""
        producers = ProducerStates(self.config.producer_id_expiration_ms, self.config.producers_max)
        return SegmentReader(self.context.disk, closed, producers)

    def begin_copy(self, closed: ClosedSegment) -> None:
        """Prevent compaction from `closed` on until `end_copy`."""
        self.copying_offsets.append(closed.segment.base_offset)

    def end_copy(self, closed: ClosedSegment) -> None:
        self.copying_offsets.remove(closed.segment.base_offset)

    def start_at(
        self, offset: int, log_start_offset: int, epochs: Sequence[tuple[int, int]], producers: ProducerStates
    ) -> None:
        """An empty log that begins and ends at `offset`, with all that is known of [log_start_offset, offset).

        `epochs` are (leader epoch, start offset) in order. `producers` are not used any more. Raises as `truncate_to`
        when the disk fails. Go through `tier_start.begin`, which makes it durable.
        """
        log_start_offset = min(log_start_offset, offset)
        self._shortening.begin_without_files(offset, FROM_TIER, log_start_offset)
        for epoch, start_offset in epochs:
            if start_offset < offset:
                self.leader_epochs.assign(epoch, start_offset)
        self.leader_epochs.truncate_from_start(log_start_offset)
        self.producers.adopt(producers)
        self.producer_history.add(offset)  # `tier_start.make_durable` writes it

    def plan_beginning(self) -> Beginning:
        """The changes of `start_at`, to be made durable."""
        stem = file_stem(self.directory, self.ends.log_end)
        return Beginning(stem, self.leader_epochs.encode())

    # Flush and close

    async def flush(self, upto_offset: int | None = None, depth: FlushDepth = FlushDepth.DATA) -> int:
        """Have everything below `upto_offset` (the end) on the device; the new `flushed_end_offset`.

        With depth CLOSED the active segment is left alone, and `upto_offset` is at most where it begins. Raises
        ProtocolError(KAFKA_STORAGE_ERROR).
        """
        await self.durability.flush(self.ends.log_end if upto_offset is None else upto_offset, depth)
        return self.ends.flushed

    async def flush_closed(self) -> int:
        """Have what is known of the closed segments on the device, indexes and producers included; the recovery point.

        Raises ProtocolError(KAFKA_STORAGE_ERROR).
        """
        await self.durability.flush_once(FlushDepth.CLOSED)
        return self.ends.recovery_point

    def close(self) -> None:
        """Let go of its files, without a flush; regions under send keep theirs."""
        self._files.close()
        self.producers.leave()
        for segment in self.segments:
            segment.retire()
