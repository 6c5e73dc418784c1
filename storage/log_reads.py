"""Reads that the tail does not answer: by sparse index and header walk, by time, of aborted transactions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from common.errors import ErrorCode, ProtocolError
from records.batch import BatchHeader
from records.record import decode_records
from storage.batch_walk import walk
from storage.region import Region
from storage.segment import Segment

if TYPE_CHECKING:
    from storage.log_appends import AppendableLog

INFLATED_BYTES_MAX = 128 << 20  # of the one batch that a look-up by time decodes


class TimestampHit(NamedTuple):
    """Where a timestamp was found: `region` begins with the first batch that may hold it and ends with its segment.

    `header` is that batch's. `resolve` looks into the records and may run in a thread.
    """

    header: BatchHeader
    region: Region
    timestamp: int
    least_offset: int

    def resolve(self) -> tuple[int, int, int]:
        """(timestamp, offset, leader epoch) of the record; the caller releases `region` afterwards, on the loop.

        A batch whose records lie is answered by its header: its first offset and its largest timestamp.
        """
        region = self.region
        for position, header in walk(region.file, region.position, region.position + region.length):
            if header.max_timestamp >= self.timestamp:
                found = self._record_in(header, region.file.pread(header.size, position))
                if found is not None:
                    return found
        return self._by_header(self.header)

    def _record_in(self, header: BatchHeader, data: bytes) -> tuple[int, int, int] | None:
        """None when all its records are older, or lie below the log's start."""
        try:
            records = decode_records(memoryview(data), 0, header.size, inflated_bytes_max=INFLATED_BYTES_MAX)
        except (ProtocolError, ValueError):
            return self._by_header(header)
        for record in records:
            if record.timestamp >= self.timestamp and record.offset >= self.least_offset:
                return record.timestamp, record.offset, header.leader_epoch
        return None

    def _by_header(self, header: BatchHeader) -> tuple[int, int, int]:
        return header.max_timestamp, max(header.base_offset, self.least_offset), header.leader_epoch


def segment_at(log: AppendableLog, offset: int) -> int:
    """The number of the segment that holds `offset`, the first for any offset before it."""
    return max(bisect_right(log.segments, offset, key=_base_offset) - 1, 0)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def read_cold(
    log: AppendableLog, offset: int, bytes_max: int, until_offset: int, at_least_one: bool, only_in_memory: bool
) -> Region | None:
    """As `PartitionLog.read` for an offset in [log start, until), `until_offset` not past the readable end."""
    if offset < log.segments[0].base_offset:
        message = f"offset {offset} is in the tier, below {log.segments[0].base_offset}"
        raise ProtocolError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, message)
    cold = log.context.open_files.cold
    cold.is_strict = only_in_memory
    try:
        for number in range(segment_at(log, offset), len(log.segments)):
            segment = log.segments[number]
            if segment.base_offset >= until_offset:
                return None
            if not segment.written:
                continue
            start = segment.find(offset)
            if start < segment.written:
                end = _limit(log, number, until_offset)
                if end - start > bytes_max:
                    end = min(end, _cut(segment, start, bytes_max, at_least_one))
                return open_region(log, segment, start, end) if end > start else None
    except OSError as error:
        raise _failed(log, error) from error
    except ProtocolError as error:
        log.context.health.damaged(log.directory, error.message)
        raise
    finally:
        cold.is_strict = False
    return None


def _limit(log: AppendableLog, number: int, until_offset: int) -> int:
    """Where reads of a segment end that may not see `until_offset`."""
    segment = log.segments[number]
    if number + 1 < len(log.segments) and log.segments[number + 1].base_offset <= until_offset:
        return segment.written
    if until_offset >= log.ends.readable:
        return segment.written
    tail = log.tail
    if segment is log.active and tail is not None and until_offset - tail.base >= tail.starts[0]:
        return tail.positions[bisect_right(tail.starts, until_offset - tail.base) - 1]
    bound = log.bound
    if bound is None or bound[0] != until_offset or bound[1] is not segment:
        bound = log.bound = (until_offset, segment, segment.find(until_offset))
    return bound[2]


def _cut(segment: Segment, start: int, bytes_max: int, at_least_one: bool) -> int:
    """The last batch boundary within `bytes_max`; where the first batch is longer, its end or `start`."""
    end = segment.boundary_at_or_before(start + bytes_max, start)
    if end <= start and at_least_one:
        position, header = next(walk(segment.log, start, segment.written))
        return position + header.size
    return end


def open_region(log: AppendableLog, segment: Segment, start: int, end: int) -> Region:
    """A region with its pin. PagesMissing while reads are strict and its file is not open."""
    handle = segment.log
    try:
        file = handle.use_if_open()
    except OSError as error:
        raise _failed(log, error) from error
    handle.pin()
    tail = log.tail if segment is log.active else None
    is_fresh = tail is not None and tail.is_fresh(start, log.context.open_files.cold.age)
    return Region(file, start, end - start, handle, is_fresh)


def open_tail(log: AppendableLog, segment: Segment, start: int, end: int, only_in_memory: bool) -> Region:
    """As `open_region`."""
    cold = log.context.open_files.cold
    cold.is_strict = only_in_memory
    try:
        return open_region(log, segment, start, end)
    finally:
        cold.is_strict = False


def _failed(log: AppendableLog, error: OSError) -> ProtocolError:
    return log.context.health.refused(f"read {log.directory}", error)


def locate_timestamp(log: AppendableLog, timestamp: int) -> TimestampHit | None:
    """The first batch with a record at or after `timestamp`."""
    try:
        for segment in log.segments[segment_at(log, log.log_start_offset) :]:
            if segment.written and segment.largest_timestamp().timestamp >= timestamp:
                found = segment.find_timestamp(timestamp, log.log_start_offset)
                if found is not None:
                    position, header = found
                    region = open_region(log, segment, position, segment.written)
                    return TimestampHit(header, region, timestamp, log.log_start_offset)
    except OSError as error:
        raise _failed(log, error) from error
    return None


def locate_max_timestamp(log: AppendableLog) -> TimestampHit | None:
    """The first batch that holds the log's largest timestamp."""
    try:
        live = log.segments[segment_at(log, log.log_start_offset) :]
        largest = max((segment.largest_timestamp().timestamp for segment in live if segment.written), default=-1)
    except OSError as error:
        raise _failed(log, error) from error
    return locate_timestamp(log, largest) if largest >= 0 else None


def aborted_transactions(
    log: AppendableLog, start_offset: int, end_offset: int, *, only_in_memory: bool = False
) -> list[tuple[int, int]]:
    """(producer id, first offset) of every aborted transaction that touches [start, end).

    With `only_in_memory` PagesMissing where the device would have to be waited for.
    """
    found: list[tuple[int, int]] = []
    cold = log.context.open_files.cold
    cold.is_strict = only_in_memory
    try:
        for number in range(segment_at(log, start_offset), len(log.segments)):
            segment = log.segments[number]
            if segment.transaction_bytes:
                entries, complete = segment.aborted_until(start_offset, end_offset)
                found += [(entry.producer_id, entry.first_offset) for entry in entries]
                if complete:
                    break
    except OSError as error:
        raise _failed(log, error) from error
    except ValueError as error:
        log.context.health.damaged(log.directory, str(error))
        raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "a damaged transaction index") from error
    finally:
        cold.is_strict = False
    return found


def aborted_in(log: AppendableLog, offset: int, region: Region, until_offset: int) -> list[tuple[int, int]]:
    """Those that touch `region`, which was read from `offset` on. Raises as `aborted_transactions`, only in memory."""
    cold = log.context.open_files.cold
    cold.is_strict = True
    try:
        end_offset = _end_of_region(log, offset, region, until_offset)
    except OSError as error:
        raise _failed(log, error) from error
    finally:
        cold.is_strict = False
    return aborted_transactions(log, offset, end_offset, only_in_memory=True)


def _end_of_region(log: AppendableLog, offset: int, region: Region, until_offset: int) -> int:
    """No offset of `region`, which was read from `offset` on, lies at or behind this; at most `until_offset`.

    By the indexes of its segment, as Apache Kafka has it: readers are told of transactions up to here.
    """
    number = segment_at(log, offset)
    segment, end = log.segments[number], region.position + region.length
    tail = log.tail
    if segment is log.active and tail is not None and end >= tail.positions[0]:
        at = bisect_left(tail.positions, end)
        bound = tail.base + tail.starts[at] if at < len(tail.starts) else until_offset
    else:
        following = log.segments[number + 1].base_offset if number + 1 < len(log.segments) else until_offset
        bound = segment.offset_behind(end, following)
    return min(bound, until_offset)
