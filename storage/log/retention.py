"""Plans which segments retention deletes; values only."""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from storage.log.log_config import RetentionLimits


class Cause(StrEnum):
    """Why segments are deleted, for the log and for metrics."""

    LOG_START = "log start offset"
    TIME = "retention.ms"
    SIZE = "retention.bytes"
    LOCAL = "local retention"
    ERASURE = "erasure"


SEGMENTS_AT_ONCE_MAX = 64  # renamed on the loop per call; the next call continues


class SegmentView(NamedTuple):
    """One segment. `next_offset`: base of the following segment, or the log's end."""

    base_offset: int
    next_offset: int
    size: int
    largest_timestamp: int  # milliseconds; of its records, else the file's last change


class RetentionPlan(NamedTuple):
    """Delete the `doomed` oldest segments; the log then begins at least at `log_start_offset`."""

    doomed: int
    log_start_offset: int
    cause: Cause | None

    def is_within(self, other: "RetentionPlan") -> bool:
        """Whether `other`, for the same segments, deletes all of it for the same cause."""
        return self.cause == other.cause and self.doomed <= other.doomed

    def bounded(self, segments: Sequence[SegmentView], log_start_offset: int) -> "RetentionPlan":
        """The part of it that may be done at once, for a log that starts at `log_start_offset`."""
        if self.doomed <= SEGMENTS_AT_ONCE_MAX:
            return self
        start = max(log_start_offset, segments[SEGMENTS_AT_ONCE_MAX].base_offset)
        return RetentionPlan(SEGMENTS_AT_ONCE_MAX, start, self.cause)


NOTHING = RetentionPlan(0, 0, None)


def plan(
    segments: Sequence[SegmentView],
    limits: RetentionLimits,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
    more_bytes: int = 0,
) -> RetentionPlan:
    """Deletes the oldest segments first, and only segments completely below the HW; `segments` is in order.

    Segments below the log start are deleted under any limits, except the last one. By time and by size the last one may
    be deleted too, unless it is empty; the caller rolls a new one first. `more_bytes`: size of segments after the given
    ones.
    """
    below_start = _leading(segments[:-1], high_watermark, lambda view: view.next_offset <= log_start_offset)
    best, cause = below_start, Cause.LOG_START
    if limits.ms >= 0:
        by_time = _leading(segments, high_watermark, lambda view: now_ms - view.largest_timestamp > limits.ms)
        if by_time > best:
            best, cause = by_time, Cause.TIME
    if limits.bytes >= 0:
        by_size = _by_size(segments, high_watermark, limits.bytes - more_bytes)
        if by_size > best:
            best, cause = by_size, Cause.SIZE
    if best == 0:
        return NOTHING
    return RetentionPlan(best, max(log_start_offset, segments[best - 1].next_offset), cause)


def plan_local(
    segments: Sequence[SegmentView],
    limits: RetentionLimits,
    log_start_offset: int,
    high_watermark: int,
    tier_end_offset: int,
    now_ms: int,
    more_bytes: int = 0,
) -> RetentionPlan:
    """Which of a tiered log's oldest segments to delete from this disk; the log start does not change.

    Except below the log start, only what the tier holds; `tier_end_offset` is its end.
    """
    below_start = _leading(segments[:-1], high_watermark, lambda view: view.next_offset <= log_start_offset)
    bound = min(high_watermark, tier_end_offset)
    by_limits = plan(segments, limits, log_start_offset, bound, now_ms, more_bytes).doomed
    return RetentionPlan(min(max(below_start, by_limits), SEGMENTS_AT_ONCE_MAX), log_start_offset, Cause.LOCAL)


def plan_erasure(
    base_offsets: Iterable[int], erased_end_offset: int, bound: int, log_start_offset: int
) -> RetentionPlan:
    """The oldest segments with records below `erased_end_offset`, if they are below `bound`; the log start does not
    change. The active segment is never included."""
    count = 0
    for base, next_base in pairwise(base_offsets):
        if base >= erased_end_offset or next_base > bound or count == SEGMENTS_AT_ONCE_MAX:
            break
        count += 1
    return RetentionPlan(count, log_start_offset, Cause.ERASURE)


def _leading(segments: Sequence[SegmentView], high_watermark: int, goes: Callable[[SegmentView], bool]) -> int:
    count = 0
    for view in segments:
        is_last_and_empty = count == len(segments) - 1 and view.size == 0
        if view.next_offset > high_watermark or is_last_and_empty or not goes(view):
            break
        count += 1
    return count


def _by_size(segments: Sequence[SegmentView], high_watermark: int, bytes_max: int) -> int:
    """Delete a segment only if the rest is still at least `bytes_max` long."""
    excess = sum(view.size for view in segments) - bytes_max

    def goes(view: SegmentView) -> bool:
        nonlocal excess
        if excess < view.size:
            return False
        excess -= view.size
        return True

    return _leading(segments, high_watermark, goes) if excess > 0 else 0
