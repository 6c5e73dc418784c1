"""The segments of one log, in order: look-up by offset, reads behind the tail (by sparse index and header walk),
truncation and removal."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from common.errors import ErrorCode, ProtocolError
from common.invariants import check
from storage.indexes.aborted_look_up import INDEX_COST, AbortedLookUp, Admits, admit_all
from storage.log.log_context import LogContext
from storage.log.log_ends import LogEnds
from storage.log.log_files import LogFiles
from storage.log.retention import SEGMENTS_AT_ONCE_MAX, RetentionPlan, SegmentView
from storage.log.tail import Tail
from storage.segments.batch_walk import walk
from storage.segments.region import Region
from storage.segments.segment import Segment
from storage.segments.timestamp_hit import TimestampHit


class Cut(NamedTuple):
    """A truncation: segment `number` is the last that stays, with `position` bytes; the log ends at `end_offset`."""

    number: int
    position: int
    end_offset: int


class _Removal(NamedTuple):
    """A plan that waits for the audit, and the log that it was made for."""

    plan: RetentionPlan
    log_start_offset: int
    base_offsets: tuple[int, int]  # of the first segment, and of the first that stays


class _LookUp(AbortedLookUp):
    """Of aborted transactions: `number` is that of the segment at which it is."""

    __slots__ = ("changes", "number", "region_bytes")

    def __init__(self, start_offset: int, end_offset: int, number: int, changes: int, region_bytes: int) -> None:
        """`region_bytes`: the length of the region that it is for, 0 if it is for none."""
        super().__init__(start_offset, end_offset)
        self.number = number
        self.changes = changes
        self.region_bytes = region_bytes

    def next_segment(self, number: int) -> None:
        self.number = number


class SegmentList:
    """One per log. `active` is the last one, to which batches are appended; `tail` has the positions of its newest
    batches."""

    __slots__ = (
        "_bound",
        "_changes",
        "_context",
        "_ends",
        "_files",
        "_look_ups",
        "_removal",
        "active",
        "all",
        "cold",
        "tail",
    )

    def __init__(self, context: LogContext, files: LogFiles, ends: LogEnds, segments: list[Segment]) -> None:
        self._context = context
        self.cold = context.open_files.cold
        self._look_ups = context.aborted_look_ups
        self._changes = 0  # of what was there: grows with each, but not with what is added at the end
        self._files = files
        self._ends = ends
        self.all = segments
        self.active = segments[-1]
        self.tail: Tail | None = None  # created by the first append
        self._bound: tuple[int, Segment, int] | None = None  # a reader's last bound behind the tail, and its position
        self._removal: _Removal | None = None

    def check(self) -> None:
        """Assert the invariants, in the simulator and in debug runs."""
        bases = [segment.base_offset for segment in self.all]
        check(all(low < high for low, high in pairwise(bases)), "base offsets grow")
        check(self.all[-1] is self.active, "the active segment is the last one")
        check(self.active.base_offset <= self._ends.log_end, "the log ends in its active segment")

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.all)

    def index_of(self, offset: int) -> int:
        """The number of the segment that holds `offset`, the first for any offset before it."""
        return max(bisect_right(self.all, offset, key=_base_offset) - 1, 0)

    def end_of(self, number: int) -> int:
        """The end of segment `number`: where the next one begins, or the log's end."""
        return self.all[number + 1].base_offset if number + 1 < len(self.all) else self._ends.log_end

    # Changes

    def begin(self, base_offset: int, now_ms: int) -> None:
        """Begin a new active segment, in memory."""
        segment = Segment.fresh(self._context.open_files, self._files.directory, base_offset, now_ms)
        self.all.append(segment)
        self.active = segment
        self.tail = None

    def begin_tail(self) -> Tail:
        """From now on record where batches are appended."""
        tail = self.tail = Tail(self.active.base_offset)
        return tail

    def settle_removal(self, plan: RetentionPlan) -> RetentionPlan:
        """`plan`, or an earlier one that still waits for the audit, if that is the first part of it.

        A log that grows while the audit writes would always ask for more otherwise, and never remove anything. An empty
        plan makes it forget.
        """
        if not plan.doomed:
            self._removal = None
            return plan
        start, earlier = self._ends.log_start, self._removal
        if earlier is not None and earlier.plan.is_within(plan):
            count = earlier.plan.doomed
            if earlier[1:] == (start, (self.all[0].base_offset, self.all[count].base_offset)):
                return earlier.plan
        self._removal = _Removal(plan, start, (self.all[0].base_offset, self.all[plan.doomed].base_offset))
        return plan

    def remove(self, doomed: Sequence[Segment]) -> None:
        """Remove segments and rename their files; the audit has recorded it. OSError.

        At the front of the log the oldest is removed first, otherwise the newest: a crash in between must not leave a
        gap, because recovery would truncate everything after it.
        """
        self._changes += 1
        gone = {segment.base_offset for segment in doomed}
        self.all = [segment for segment in self.all if segment.base_offset not in gone]
        self._bound = self._removal = None
        self._files.names_changed()
        from_front = bool(self.all) and doomed[0].base_offset < self.all[0].base_offset
        for segment in doomed if from_front else reversed(doomed):
            self._files.discard_segment(segment)

    def find_run(self, closed: Sequence[Segment]) -> int | None:
        """The number of the first of these closed segments; None if the list no longer has exactly this run."""
        first = self.index_of(closed[0].base_offset)
        last = first + len(closed)
        return first if self.all[first:last] == list(closed) and last < len(self.all) else None

    def replace(self, first: int, replaced: Sequence[Segment], size: int, transaction_bytes: int) -> None:
        """One segment has replaced the closed ones from number `first` on, with the first one's base offset."""
        self._changes += 1
        oldest, newest = replaced[0], replaced[-1]
        swapped = Segment(
            self._context.open_files,
            oldest.stem,
            oldest.base_offset,
            size=size,
            created_ms=newest.created_ms,
            transaction_bytes=transaction_bytes or None,
        )
        self.all[first : first + len(replaced)] = [swapped]
        self._bound = None
        self._files.names_changed()

    def plan_cut(self, offset: int, *, only_in_memory: bool) -> Cut:
        """The truncation from the batch that contains `offset`. OSError; PagesMissing with `only_in_memory`, if finding
        the position needs the device."""
        number = self.index_of(offset)
        segment = self.all[number]
        if only_in_memory:
            with self.cold.only_in_memory():
                segment.look_at_cut(offset)
        position, end_offset = segment.find(offset), offset
        if position < segment.written:
            _, header = next(walk(segment.log.use(), position, segment.written))
            end_offset = min(header.base_offset, offset)
        return Cut(number, position, end_offset)

    def cut(self, plan: Cut) -> None:
        """Remove files newest first, so that a crash in between leaves a shorter log without a gap. OSError."""
        if plan.number + 1 < len(self.all):
            self.remove(self.all[plan.number + 1 :])
        self._changes += 1
        self.active = self.all[plan.number]
        self.active.truncate(plan.position, plan.end_offset)
        self.tail = self._bound = None

    # Reads that the tail does not answer

    def read(
        self, offset: int, bytes_max: int, until_offset: int, at_least_one: bool, only_in_memory: bool
    ) -> Region | None:
        """As `PartitionLog.read` for an offset in [log start, until), `until_offset` not past the readable end."""
        if offset < self.all[0].base_offset:
            message = f"offset {offset} is in the tier, below {self.all[0].base_offset}"
            raise ProtocolError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, message)
        try:
            with self.cold.only_in_memory(is_strict=only_in_memory):
                for number in range(self.index_of(offset), len(self.all)):
                    segment = self.all[number]
                    if segment.base_offset >= until_offset:
                        return None
                    if not segment.written:
                        continue
                    start = segment.find(offset)
                    if start < segment.written:
                        end = self._limit(number, until_offset)
                        if end - start > bytes_max:
                            end = min(end, _boundary(segment, start, bytes_max, at_least_one))
                        return self._open(segment, start, end) if end > start else None
        except OSError as error:
            raise self._failed(error) from error
        except ProtocolError as error:
            self._context.health.damaged(self._files.directory, error.message)
            raise
        return None

    def _limit(self, number: int, until_offset: int) -> int:
        """Where reads of a segment must end so that they do not include `until_offset`."""
        segment, tail = self.all[number], self.tail
        if number + 1 < len(self.all) and self.all[number + 1].base_offset <= until_offset:
            return segment.written
        if until_offset >= self._ends.readable:
            return segment.written
        if segment is self.active and tail is not None and until_offset - tail.base >= tail.starts[0]:
            return tail.positions[bisect_right(tail.starts, until_offset - tail.base) - 1]
        bound = self._bound
        if bound is None or bound[0] != until_offset or bound[1] is not segment:
            bound = self._bound = (until_offset, segment, segment.find(until_offset))
        return bound[2]

    def read_tail(self, start: int, end: int, *, only_in_memory: bool) -> Region:
        """Bytes of the active segment whose file was closed meanwhile. PagesMissing with `only_in_memory`."""
        try:
            with self.cold.only_in_memory(is_strict=only_in_memory):
                return self._open(self.active, start, end)
        except OSError as error:
            raise self._failed(error) from error

    def _open(self, segment: Segment, start: int, end: int) -> Region:
        """A pinned region. PagesMissing while reads are strict and the file is not open."""
        handle = segment.log
        file = handle.use_if_open()
        handle.pin()
        tail = self.tail if segment is self.active else None
        is_fresh = tail is not None and tail.is_fresh(start, self.cold.age)
        return Region(file, start, end - start, handle, is_fresh)

    def _failed(self, error: OSError) -> ProtocolError:
        return self._context.health.refused(f"read {self._files.directory}", error)

    def locate_timestamp(self, timestamp: int, log_start_offset: int) -> TimestampHit | None:
        """The first batch with a record at or after `timestamp`."""
        try:
            for segment in self.all[self.index_of(log_start_offset) :]:
                if segment.written and segment.largest_timestamp().timestamp >= timestamp:
                    found = segment.find_timestamp(timestamp, log_start_offset)
                    if found is not None:
                        position, header = found
                        region = self._open(segment, position, segment.written)
                        return TimestampHit(header, region, timestamp, log_start_offset)
        except OSError as error:
            raise self._failed(error) from error
        return None

    def largest_timestamp(self, log_start_offset: int) -> int:
        """Of all segments from that offset on; -1 if no record has a timestamp."""
        try:
            live = self.all[self.index_of(log_start_offset) :]
            return max((segment.largest_timestamp().timestamp for segment in live if segment.written), default=-1)
        except OSError as error:
            raise self._failed(error) from error

    def aborted_in(self, offset: int, region: Region, until_offset: int) -> tuple[Region, bytearray]:
        """The aborted transactions that overlap `region`, which was read from `offset` on; see `aborted_rows`.

        If an earlier attempt was for fewer bytes, the region is cut to those.
        """
        look_up = self._kept_look_up(offset)
        if look_up is not None and look_up.region_bytes:
            if look_up.region_bytes < region.length:
                region = replace(region, length=look_up.region_bytes)
            end_offset = look_up.end_offset
        else:
            end_offset = self.offset_behind(offset, region, until_offset)
        return region, self.aborted_rows(offset, end_offset, only_in_memory=True, region_bytes=region.length)

    def aborted_rows(
        self, start_offset: int, end_offset: int, *, only_in_memory: bool, region_bytes: int = 0
    ) -> bytearray:
        """(producer id, first offset) of every aborted transaction that overlaps [start, end), as
        `aborted_look_up.unpack_rows` reads them. There may be more that begin at or after the end.

        PagesMissing with `only_in_memory`, if it needs the device or another turn of the event loop.
        """
        for number in range(self.index_of(start_offset), len(self.all)):
            if self.all[number].transaction_bytes:
                break
        else:
            return bytearray()
        look_up = self._kept_look_up(start_offset) if only_in_memory else None
        if look_up is None or look_up.end_offset < end_offset:
            look_up = _LookUp(start_offset, end_offset, number, self._changes, region_bytes)
        try:
            with self.cold.only_in_memory(is_strict=only_in_memory):
                is_done = self._look_up(look_up, self._look_ups.admits if only_in_memory else admit_all)
        except OSError as error:
            raise self._failed(error) from error
        except ValueError as error:
            self._context.health.damaged(self._files.directory, str(error))
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "a damaged transaction index") from error
        if not is_done:
            self._look_ups.keep((self._files.directory, start_offset), look_up)
            raise self._look_ups.next_turn()
        return look_up.rows

    def _kept_look_up(self, start_offset: int) -> "_LookUp | None":
        """An earlier attempt, unless what it has read may have changed since."""
        if not self._look_ups:
            return None
        look_up = self._look_ups.kept((self._files.directory, start_offset))
        return look_up if isinstance(look_up, _LookUp) and look_up.changes == self._changes else None

    def _look_up(self, look_up: "_LookUp", admits: Admits) -> bool:
        """Go on with it. Returns whether it is done."""
        look_up.begin_turn()
        while look_up.number < len(self.all):
            segment = self.all[look_up.number]
            if segment.transaction_bytes:
                is_done, is_complete = segment.search_aborted(look_up, admits)
                if not is_done:
                    return False
                look_up.next_segment(len(self.all) if is_complete else look_up.number + 1)
                if not admits(INDEX_COST):
                    break
            else:
                look_up.next_segment(look_up.number + 1)
        return look_up.number >= len(self.all)

    def offset_behind(self, offset: int, region: Region, until_offset: int) -> int:
        """An upper bound of the offsets in `region`, which was read from `offset` on; at most `until_offset`.

        As in Apache Kafka, from the segment's index. PagesMissing if it is not in memory.
        """
        number = self.index_of(offset)
        segment, tail, end = self.all[number], self.tail, region.position + region.length
        if segment is self.active and tail is not None and end >= tail.positions[0]:
            at = bisect_left(tail.positions, end)
            return min(tail.base + tail.starts[at] if at < len(tail.starts) else until_offset, until_offset)
        following = self.all[number + 1].base_offset if number + 1 < len(self.all) else until_offset
        try:
            with self.cold.only_in_memory():
                return min(segment.offset_behind(end, following), until_offset)
        except OSError as error:
            raise self._failed(error) from error

    def oldest_views(self, retention_ms: int, now_ms: int, from_offset: int = -1) -> tuple[list[SegmentView], int]:
        """The oldest segments, somewhat more than may be deleted at once, and the size of the others; only those at or
        after `from_offset`.

        Timestamps are read from the time indexes only if retention by time needs them: of the segments that it deletes,
        and of the first that it keeps. PagesMissing while reads are strict.
        """
        first = self.index_of(from_offset)
        behind = min(first + SEGMENTS_AT_ONCE_MAX + 2, len(self.all))
        views: list[SegmentView] = []
        is_old = retention_ms >= 0
        try:
            for number in range(first, behind):
                segment, end, timestamp = self.all[number], self.end_of(number), now_ms
                if is_old:
                    largest = segment.largest_timestamp().timestamp
                    timestamp = largest if largest >= 0 else segment.created_ms
                is_old = is_old and now_ms - timestamp > retention_ms and len(views) < SEGMENTS_AT_ONCE_MAX
                size = segment.size
                if segment.base_offset < from_offset:
                    size -= segment.find(from_offset) if from_offset < end else size
                views.append(SegmentView(max(segment.base_offset, from_offset), end, size, timestamp))
        except OSError as error:
            raise self._failed(error) from error
        return views, sum(segment.size for segment in self.all[behind:])


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _boundary(segment: Segment, start: int, bytes_max: int, at_least_one: bool) -> int:
    """The last batch boundary within `bytes_max`; if the first batch is longer, its end or `start`."""
    end = segment.boundary_at_or_before(start + bytes_max, start)
    if end <= start and at_least_one:
        position, header = next(walk(segment.log, start, segment.written))
        return position + header.size
    return end
