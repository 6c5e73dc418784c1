"""One replica's log: Kafka's segment files, appended with one write, read as regions of a file.

One writer; every call runs on the event loop unless it says otherwise. Appends and the roll are in `log_appends`, cold
reads in `log_reads`, truncation in `log_truncation`, removal of old segments in `segment_removal`.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeVar

from common.errors import ErrorCode, ProtocolError
from storage import closed_segments, log_reads, log_truncation, segment_removal
from storage.checkpoint_files import HIGH_WATERMARKS, LOG_STARTS
from storage.closed_segments import ClosedSegment, SegmentReader
from storage.leader_epochs import EpochEnd
from storage.log_appends import AppendableLog, Appended
from storage.log_flusher import FlushDepth, FlushJob
from storage.log_reads import TimestampHit
from storage.log_truncation import Reason
from storage.producer_replay import Replay
from storage.producer_snapshot import decode_snapshot
from storage.producer_state import ProducerStates
from storage.region import Region
from storage.segment import SNAPSHOT_SUFFIX, Segment, file_stem
from storage.tier_start import Beginning

__all__ = ["Appended", "PartitionLog", "Reason", "TimestampHit"]

T = TypeVar("T")

FROM_TIER = Reason("begins where the tier ends")
TOO_FAR_BEHIND = Reason("the leader's log begins above this one's end")


class PartitionLog(AppendableLog):
    """Offsets: `log_start_offset` is the first that is served, `log_end_offset` the next to be assigned.

    The other ends are those of `LogEnds`. `written_end_offset` may count as this replica's log end: bytes below it are
    in the page cache, and on the device where flush.messages is 1. It lags `log_end_offset` only while the disk is slow
    or a flush runs; `on_written` is called, on the loop, whenever it caught up some. A leader's followers may read up
    to `readable_end_offset` what the leader itself has not flushed yet. In a tiered topic `local_log_start_offset` may
    lie above `log_start_offset`: what is between them is in the tier alone.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic}-{self.partition} [{self.log_start_offset}, {self.log_end_offset}))"

    @property
    def local_log_start_offset(self) -> int:
        """The first offset that this disk holds, at least the log's start."""
        return max(self.log_start_offset, self.segments[0].base_offset)

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
        if offset < self.log_start_offset or offset > ends.log_end:
            raise self._out_of_range(offset)
        if self._health.offline is not None or self.closed:
            raise self.refusal()
        until_offset = min(until_offset, ends.readable)
        if offset >= until_offset:
            return None
        tail = self.tail
        if tail is None or offset - tail.base < tail.starts[0]:
            return log_reads.read_cold(self, offset, bytes_max, until_offset, at_least_one, only_in_memory)
        starts, positions, active = tail.starts, tail.positions, self.active
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
            return log_reads.open_tail(self, active, start, end, only_in_memory)
        handle.recently_used = True
        handle.pin()
        return Region(file, start, end - start, handle, tail.is_fresh(start, self._cold.age))

    def _out_of_range(self, offset: int) -> ProtocolError:
        message = f"offset {offset} outside [{self.log_start_offset}, {self.log_end_offset}]"
        return ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE, message)

    def locate_timestamp(self, timestamp: int) -> TimestampHit | None:
        """The first batch with a record at or after `timestamp` (ms); `TimestampHit.resolve` finds the record."""
        return log_reads.locate_timestamp(self, timestamp)

    def locate_max_timestamp(self) -> TimestampHit | None:
        """The first batch that holds the log's largest timestamp; None when no record has one."""
        return log_reads.locate_max_timestamp(self)

    async def when_in_memory(self, ask: Callable[[], T]) -> T:
        """What `ask` returns of this log; what it reads from the device, threads bring into memory first."""
        return await self.context.open_files.cold.when_there(ask)

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """Where the largest epoch up to `epoch` ends in this log."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open, or ended above the high watermark."""
        first = self.producers.first_unstable_offset
        return first if first is None else max(first, self.log_start_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """What a reader of committed records may see."""
        self.producers.on_high_watermark(high_watermark)
        first = self.first_unstable_offset
        return high_watermark if first is None else min(first, high_watermark)

    def aborted_transactions(
        self, start_offset: int, end_offset: int, *, only_in_memory: bool = False
    ) -> list[tuple[int, int]]:
        """(producer id, first offset) of every aborted transaction that touches the range; see `read`."""
        return log_reads.aborted_transactions(self, start_offset, end_offset, only_in_memory=only_in_memory)

    def aborted_in(self, offset: int, region: Region, until_offset: int) -> list[tuple[int, int]]:
        """Those that touch `region`, which was read from `offset` on; only in memory, see `read`."""
        return log_reads.aborted_in(self, offset, region, until_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    # The tier

    def closed_segment_at(self, offset: int) -> ClosedSegment | None:
        """The next range to copy: from `offset` to the end of a closed segment; None when there is none yet.

        Raises ProtocolError(KAFKA_STORAGE_ERROR).
        """
        try:
            return closed_segments.closed_segment_at(self, offset)
        except OSError as error:
            self._health.fail(f"read {self.directory}: {error}")
            raise self._health.error() from error

    def read_closed(self, closed: ClosedSegment) -> SegmentReader:
        """Reads `closed` in threads, see there."""
        producers = ProducerStates(self.config.producer_id_expiration_ms, self.config.producers_max)
        return SegmentReader(self.context.disk, closed, producers)

    def start_at(
        self, offset: int, log_start_offset: int, epochs: Sequence[tuple[int, int]], producer_snapshot: bytes
    ) -> None:
        """An empty log that begins and ends at `offset`, with all that is known of [log_start_offset, offset).

        `epochs` are (leader epoch, start offset) in order. Raises ValueError when the snapshot is damaged, and nothing
        has happened; as `truncate_to` when the disk fails. Go through `tier_start.begin`, which makes it durable.
        """
        decode_snapshot(producer_snapshot)
        log_start_offset = min(log_start_offset, offset)
        log_truncation.truncate_fully_and_start_at(self, offset, FROM_TIER, log_start_offset)
        self.log_start_offset = log_start_offset
        for epoch, start_offset in epochs:
            if start_offset < offset:
                self.leader_epochs.assign(epoch, start_offset)
        self.leader_epochs.truncate_from_start(log_start_offset)
        self.epochs_changed = True
        self.producers.load_snapshot(producer_snapshot, offset, self.context.clock.wall_ms())
        self.producer_history.add(offset)  # `tier_start.make_durable` writes it

    def plan_beginning(self) -> Beginning:
        """What `start_at` has changed, for the device."""
        stem = file_stem(self.directory, self.log_end_offset)
        return Beginning(stem, self.active.exists, self.producers.snapshot(), self.leader_epochs.encode())

    # What it waits for

    def bar(self, reason: str) -> None:
        """Neither append nor cut until `unbar`."""
        if not self.closed:
            self.barred = reason

    def unbar(self) -> None:
        """What the log waited for has come, unless it was closed meanwhile."""
        if not self.closed:
            self.barred = None

    def plan_replay(self) -> Replay:
        """How its producers become known anew."""
        config, history = self.config, self.producer_history
        mark = history.newest_mark(self.segments, self.log_end_offset)
        return Replay(
            self.directory,
            list(self.segments),
            list(history.snapshots),
            self.log_end_offset,
            ProducerStates(config.producer_id_expiration_ms, config.producers_max),
            mark,
            history.batches_behind(mark) if mark is not None else 0,
        )

    def producers_read(self, producers: ProducerStates) -> None:
        """They are known anew, as they were when the replay was planned: the log's start may have moved since."""
        self.producers.adopt(producers)
        self.producers.advance_log_start(self.log_start_offset)
        self.unbar()

    def producers_unreadable(self, error: ProtocolError) -> None:
        """Only a start that scans the log can mend it: it stays barred until then."""
        self.context.audit.note("log_damaged", topic=self.topic, partition=self.partition, error=error.message)

    # Rolling by age

    @property
    def _may_roll(self) -> bool:
        is_idle = self._health.offline is None and self.barred is None and not self.pending_writes
        return is_idle and self.active.size > 0

    def maybe_roll(self, now_ms: int) -> bool:
        """Begin a new segment when the active one is too old, though nothing is appended; whether it did.

        Raises ProtocolError(KAFKA_STORAGE_ERROR) when it cannot be read.
        """
        active = self.active
        if not self._may_roll:
            return False
        try:
            first = active.first_timestamp()
        except OSError as error:
            raise self._health.refused(f"read {self.directory}", error) from error
        if now_ms - (first if first >= 0 else active.created_ms) <= self.config.roll_ms:
            return False
        self.roll(now_ms)
        return True

    def roll_now(self, now_ms: int) -> bool:
        """Begin a new segment unless the active one is empty, or must not be touched now; whether it did."""
        if not self._may_roll:
            return False
        self.roll(now_ms)
        return True

    def roll_for_tier(self, now_ms: int) -> bool:
        """Begin a new segment when the active one of a tiered topic was begun too long ago; whether it did.

        It counts from when the segment was begun, not from its records' times: those may span years. While copying is
        disabled segments are closed as those of any other topic.
        """
        active = self.active
        if self.config.remote_log_copy_disable or not self._may_roll:
            return False
        if now_ms - active.created_ms <= self.config.tier_roll_ms:
            return False
        self.roll(now_ms)
        return True

    # Truncation, removal, flush

    def truncate_to(
        self, offset: int, reason: Reason = log_truncation.DIVERGED, *, only_in_memory: bool = False
    ) -> int:
        """Cut everything from the batch that holds `offset` on; the new log end, which the follower fetches next.

        Raises ProtocolError(KAFKA_STORAGE_ERROR), nothing being cut, while the log is barred, bytes of it wait for a
        slow disk, or checkpoints that tell of what is to be cut are being withdrawn: try again later. It is an
        AuditPending when only the audit's event is still to become durable. With `only_in_memory` PagesMissing, nothing
        being cut, where the device would have to be waited for to know where the cut lies.
        """
        return log_truncation.truncate_to(self, offset, reason, only_in_memory=only_in_memory)

    def truncate_fully_and_start_at(self, offset: int, reason: Reason = TOO_FAR_BEHIND) -> None:
        """Drop everything and begin at `offset`: this replica is too far behind its leader's log start.

        Raises as `truncate_to`.
        """
        log_truncation.truncate_fully_and_start_at(self, offset, reason)

    def advance_log_start(self, offset: int, cause: str, actor: str = "") -> bool:
        """Serve nothing below `offset` any more; segments wholly below it go. Whether it moved.

        Raises ProtocolError(OFFSET_OUT_OF_RANGE) past the log's end, and AuditPending as `truncate_to`.
        """
        if offset > self.log_end_offset:
            raise self._out_of_range(offset)
        return segment_removal.advance_log_start(self, offset, cause, actor)

    def delete_old_segments(self, now_ms: int, high_watermark: int, tier_end_offset: int = -1) -> int:
        """Drop what retention and the log start allow, nothing at or past the high watermark.

        The number of segments dropped; when it is not 0 there may be more. Of a tiered topic only what the tier holds
        goes, up to `tier_end_offset` (-1: nothing is known of it), by local.retention.ms and local.retention.bytes, and
        the log's start stays. Raises AuditPending as `truncate_to`.
        """
        if self.config.remote_storage_enable:
            return segment_removal.drop_local_segments(self, now_ms, high_watermark, tier_end_offset)
        return segment_removal.delete_old_segments(self, now_ms, high_watermark)

    def drop_erased(self, now_ms: int, high_watermark: int, tier_end_offset: int, erased_end_offset: int) -> int:
        """Drop segments of a tiered log that begin below `erased_end_offset`, see `segment_removal.drop_erased`."""
        return segment_removal.drop_erased(self, now_ms, min(high_watermark, tier_end_offset), erased_end_offset)

    # What truncation, removal and compaction have done on the disk

    def serve_from(self, offset: int) -> None:
        """The log's start is `offset`."""
        self.log_start_offset = offset
        self.context.checkpoints.note(LOG_STARTS)

    def note_high_watermark(self) -> None:
        """Its replica's high watermark has moved."""
        self.context.checkpoints.note(HIGH_WATERMARKS)

    def cut_epochs(self, end_offset: int) -> None:
        """No leader epoch begins at `end_offset` or behind it."""
        self.leader_epochs.truncate_from_end(end_offset)
        self.epochs_changed = True

    def end_at(self, end_offset: int, active: Segment) -> None:
        """Appends go on at `end_offset` in `active`, the last segment. `ends` were cut before."""
        self.tail = self.bound = None
        self.cut_epochs(end_offset)
        self.make_active(active)

    def drop_segments(self, base_offsets: set[int]) -> None:
        """Those that begin there are no part of it any more."""
        self.segments = [segment for segment in self.segments if segment.base_offset not in base_offsets]
        self.bound = None
        self.names_changed = True

    def swap_segments(self, first: int, last: int, swapped: Segment) -> None:
        """`swapped` is in the place of the closed segments at [first, last)."""
        gone = {segment.base_offset for segment in self.segments[first + 1 : last]}
        self.segments[first:last] = [swapped]
        self.bound = None
        self.names_changed = True
        self.producer_history.drop(gone.__contains__)

    def check_admits(self, size: int) -> None:
        """Raise as an append of `size` bytes would now: ProtocolError(KAFKA_STORAGE_ERROR)."""
        self._admit(size)

    async def flush(self, upto_offset: int | None = None, depth: FlushDepth = FlushDepth.DATA) -> int:
        """Have everything below `upto_offset` (the end) on the device; the new `flushed_end_offset`.

        With depth CLOSED the active segment is left alone, and `upto_offset` is at most where it begins. Raises
        ProtocolError(KAFKA_STORAGE_ERROR).
        """
        target = self.log_end_offset if upto_offset is None else min(upto_offset, self.log_end_offset)
        while self.flushed_end_offset < target:
            if self._health.offline is not None:
                raise self._health.error()
            if self.pending_writes:
                await self._writer.drained()
            if not await self.context.flusher.flush(self, depth):
                break
        return self.flushed_end_offset

    async def flush_closed(self) -> int:
        """Have what is known of the closed segments on the device, indexes and producers included; the recovery point.

        Raises ProtocolError(KAFKA_STORAGE_ERROR).
        """
        if self.pending_writes:
            await self._writer.drained()
        await self.context.flusher.flush(self, FlushDepth.CLOSED)
        return self.recovery_point

    def write_end_snapshot(self) -> bool:
        """See `Stopping`."""
        snapshots, end_offset = self.producer_history.snapshots, self.log_end_offset
        is_lacking = self.barred is None and bool(len(self.producers) or snapshots) and end_offset not in snapshots
        if is_lacking:
            self.write_producer_snapshot(end_offset)
        return is_lacking

    def plan_stop(self, *, is_new: bool) -> FlushJob | None:
        """See `Stopping`."""
        ends, job = self.ends, self.plan_flush(FlushDepth.COMPLETE)
        if is_new:
            job = job or FlushJob(self.directory, ends.generation, ends.log_end, ends.recovery_point)
            path = file_stem(self.directory, ends.log_end) + SNAPSHOT_SUFFIX
            if path not in job.paths:
                job.paths.append(path)
            if self.directory not in job.directories:
                job.directories.append(self.directory)
        return job

    def close(self) -> None:
        """Let go of its files, without a flush; regions under send keep theirs."""
        self.closed = True
        self.context.compacted.pop((self.topic, self.partition), None)
        self.barred = "the log is closed"
        self.producers.leave()
        for segment in self.segments:
            segment.retire()
