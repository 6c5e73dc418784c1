"""Old segments go: by retention, by DeleteRecords, by a leader's log start. First the audit's event, on the device;
then the log start, then the files, which are renamed at once and removed later; regions under send keep theirs.

All of it runs on the event loop, because a rename changes two names and no data: some microseconds each, whatever the
size. So many of them at a time are bounded; what is left goes with the next call of `delete_old_segments`.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from records.audit_event import AuditKind
from storage import retention
from storage.audit_trail import Act, require
from storage.checkpoint_files import LOG_STARTS
from storage.log_flusher import FlushDepth
from storage.segment import DELETED_SUFFIX, SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, Segment, file_stem

if TYPE_CHECKING:
    from storage.partition_log import PartitionLog

SEGMENTS_AT_ONCE_MAX = 64


def advance_log_start(log: PartitionLog, offset: int, cause: str, actor: str = "") -> bool:
    """Whether the log start moved; segments wholly below it are gone then, unless there are very many.

    Raises AuditPending, and nothing has moved.
    """
    if offset <= log.log_start_offset:
        return False
    require(
        log.context.audit,
        Act(
            AuditKind.LOG_START_MOVED,
            log.topic,
            log.topic_id,
            log.partition,
            cause,
            actor,
            before={"log_start_offset": log.log_start_offset},
            after={"log_start_offset": offset},
        ),
    )
    log.serve_from(offset)
    log.leader_epochs.truncate_from_start(offset)
    log.producers.advance_log_start(offset)
    count = 0
    last = min(len(log.segments) - 1, SEGMENTS_AT_ONCE_MAX)
    while count < last and log.segments[count + 1].base_offset <= offset:
        count += 1
    if count:
        remove_segments(log, log.segments[:count])
    return True


def delete_old_segments(log: PartitionLog, now_ms: int, bound: int) -> int:
    """How many segments retention took, at most SEGMENTS_AT_ONCE_MAX; nothing at or past the offset `bound` goes.

    Raises AuditPending, and nothing has gone.
    """
    if log.context.health.offline is not None or log.pending_writes or log.barred is not None:
        return 0
    limits = log.config.retention_limits
    views, more_bytes = oldest_views(log, limits.ms, now_ms)
    count, start_offset, planned_cause = retention.plan(
        views, limits, log.log_start_offset, bound, now_ms, more_bytes=more_bytes
    )
    if count == 0:
        return 0
    if count > SEGMENTS_AT_ONCE_MAX:
        count = SEGMENTS_AT_ONCE_MAX
        start_offset = max(log.log_start_offset, views[count].base_offset)
    cause = str(planned_cause)
    doomed = log.segments[:count]
    if count == len(log.segments):
        log.roll(now_ms)
    if not advance_log_start(log, start_offset, cause):
        remove_locally(log, doomed, cause)
    return len(doomed)


def remove_locally(log: PartitionLog, doomed: list[Segment], cause: str) -> None:
    """Segments go whose records are not served from here, or not at all, any more. Raises AuditPending."""
    end = next(segment.base_offset for segment in log.segments if segment.base_offset > doomed[-1].base_offset)
    act = Act(
        AuditKind.SEGMENTS_DELETED,
        log.topic,
        log.topic_id,
        log.partition,
        cause,
        before={"local_log_start_offset": doomed[0].base_offset, "bytes": sum(one.size for one in doomed)},
        after={"local_log_start_offset": end},
    )
    require(log.context.audit, act)
    remove_segments(log, doomed)


def drop_local_segments(log: PartitionLog, now_ms: int, high_watermark: int, tier_end_offset: int) -> int:
    """How many segments of a tiered log went from this disk, at most SEGMENTS_AT_ONCE_MAX; the log's start stays, the
    tier serves from there on.

    Nothing at or past `tier_end_offset`, up to where the tier is known to hold everything, but what lies below the
    log's start.
    """
    if log.context.health.offline is not None or log.pending_writes or log.barred is not None:
        return 0
    tier_end_offset = _producers_durable(log, tier_end_offset)
    limits = log.config.local_limits
    views, more_bytes = oldest_views(log, limits.ms, now_ms)
    count = retention.plan_local(
        views, limits, log.log_start_offset, high_watermark, tier_end_offset, now_ms, more_bytes
    )
    count = min(count, SEGMENTS_AT_ONCE_MAX)
    doomed = log.segments[:count]
    if doomed:
        if count == len(log.segments):
            log.roll(now_ms)
        remove_locally(log, doomed, "local retention")
        log.context.checkpoints.note(LOG_STARTS)
    return count


def drop_erased(log: PartitionLog, now_ms: int, bound: int, erased_end_offset: int) -> int:
    """How many segments went that hold records from below `erased_end_offset`, at most SEGMENTS_AT_ONCE_MAX.

    Where this replica's segments were cut elsewhere than the leader's, newer records are in the last of them: it is
    closed, and goes once all of it lies below `bound`, up to where the tier holds everything. Raises AuditPending, and
    nothing has gone.
    """
    if log.context.health.offline is not None or log.pending_writes or log.barred is not None:
        return 0
    if log.active.base_offset < erased_end_offset:
        log.roll(now_ms)
    bound = _producers_durable(log, bound)
    count = 0
    for segment, after in pairwise(log.segments):
        if segment.base_offset >= erased_end_offset or after.base_offset > bound or count == SEGMENTS_AT_ONCE_MAX:
            break
        count += 1
    if count:
        remove_locally(log, log.segments[:count], "erasure")
        log.context.checkpoints.note(LOG_STARTS)
    return count


def _producers_durable(log: PartitionLog, tier_end_offset: int) -> int:
    """Up to where local segments may go to the tier's care, at most `tier_end_offset`.

    What producers did in them is then known from the snapshot where the next segment begins alone, and a loss of power
    may take that: it is on the device up to the recovery point. What is not is asked for, and goes the next time.
    """
    if log.recovery_point < min(tier_end_offset, log.active.base_offset):
        log.context.flusher.request(log, FlushDepth.CLOSED)
    return min(tier_end_offset, log.recovery_point)


def oldest_views(
    log: PartitionLog, retention_ms: int, now_ms: int, from_offset: int = -1
) -> tuple[list[retention.SegmentView], int]:
    """The oldest segments, somewhat more than may go at once, and the bytes of the others; only what lies at
    `from_offset` or behind it.

    Timestamps are read from the time indexes only where retention by time asks for them: of the segments that it
    takes, and of the first that it leaves. PagesMissing while reads are strict."""
    first = max(bisect_right(log.segments, from_offset, key=lambda segment: segment.base_offset) - 1, 0)
    behind = min(first + SEGMENTS_AT_ONCE_MAX + 2, len(log.segments))
    segments = log.segments[first:behind]
    following = log.log_end_offset if behind == len(log.segments) else log.segments[behind].base_offset
    ends = [*(segment.base_offset for segment in segments[1:]), following]
    views: list[retention.SegmentView] = []
    is_old = retention_ms >= 0
    try:
        for segment, end in zip(segments, ends, strict=True):
            timestamp = _largest_timestamp(segment) if is_old else now_ms
            is_old = is_old and now_ms - timestamp > retention_ms and len(views) < SEGMENTS_AT_ONCE_MAX
            size = segment.size
            if segment.base_offset < from_offset:
                size -= segment.find(from_offset) if from_offset < end else size
            views.append(retention.SegmentView(max(segment.base_offset, from_offset), end, size, timestamp))
    except OSError as error:
        raise log.context.health.refused(f"read {log.directory}", error) from error
    return views, sum(segment.size for segment in log.segments[behind:])


def _largest_timestamp(segment: Segment) -> int:
    largest = segment.largest_timestamp().timestamp
    return largest if largest >= 0 else segment.created_ms


def remove_segments(log: PartitionLog, segments: list[Segment]) -> None:
    """Take segments out of the log and rename their files; the audit has told of it.

    From the log's front they go oldest first, else newest first: a crash in between must not leave a hole, behind which
    recovery would cut off all that follows.
    """
    doomed = {segment.base_offset for segment in segments}
    log.drop_segments(doomed)
    from_front = bool(log.segments) and segments[0].base_offset < log.segments[0].base_offset
    try:
        for segment in segments if from_front else reversed(segments):
            _discard(log, segment)
        first = log.segments[0].base_offset if log.segments else None
        for offset in log.producer_history.drop(lambda at: at in doomed or (first is not None and at < first)):
            _discard_file(log, file_stem(log.directory, offset) + SNAPSHOT_SUFFIX)
    except OSError as error:
        log.context.health.fail(f"delete in {log.directory}: {error}")
        raise log.context.health.error() from error


def _discard(log: PartitionLog, segment: Segment) -> None:
    segment.retire()
    if segment.exists:
        for suffix in SEGMENT_SUFFIXES:
            if suffix != SEGMENT_SUFFIXES[-1] or segment.transaction_bytes:
                _discard_file(log, segment.stem + suffix)


def _discard_file(log: PartitionLog, path: str) -> None:
    context = log.context
    try:
        context.disk.rename(path, path + DELETED_SUFFIX)
    except FileNotFoundError:
        return
    context.trash.add(path + DELETED_SUFFIX, context.clock.monotonic() + log.config.file_delete_delay_ms / 1000)
