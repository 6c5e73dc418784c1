"""Retention plans: what may go, in which order, and never past the high watermark."""

from hypothesis import given
from hypothesis import strategies as st

from storage.log.log_config import LogConfig, RetentionLimits
from storage.log.retention import NOTHING, Cause, SegmentView, plan

NOW = 10_000
THREE = [SegmentView(0, 10, 100, 1000), SegmentView(10, 20, 100, 2000), SegmentView(20, 30, 100, 3000)]


def test_by_time() -> None:
    config = LogConfig(retention_ms=7500)
    assert plan(THREE, config.retention_limits, 0, 30, NOW) == (2, 20, Cause.TIME)
    assert plan(THREE, config.retention_limits, 0, 19, NOW) == (1, 10, Cause.TIME)
    assert plan(THREE, config.retention_limits, 0, 9, NOW) == NOTHING
    assert plan(THREE, LogConfig(retention_ms=-1).retention_limits, 0, 30, NOW) == NOTHING


def test_a_young_segment_protects_older_ones_behind_it() -> None:
    segments = [THREE[0]._replace(largest_timestamp=9000), *THREE[1:]]
    assert plan(segments, LogConfig(retention_ms=5000).retention_limits, 0, 30, NOW) == NOTHING


def test_by_size() -> None:

    def to(size: int) -> RetentionLimits:
        return LogConfig(retention_ms=-1, retention_bytes=size).retention_limits

    assert plan(THREE, to(300), 0, 30, NOW) == NOTHING
    assert plan(THREE, to(201), 0, 30, NOW) == NOTHING
    assert plan(THREE, to(200), 0, 30, NOW) == (1, 10, Cause.SIZE)
    assert plan(THREE, to(0), 0, 30, NOW) == (3, 30, Cause.SIZE)


def test_by_log_start_under_any_policy() -> None:
    config = LogConfig(cleanup_policy=("compact",), retention_ms=0, retention_bytes=0)
    assert plan(THREE, config.retention_limits, 0, 30, NOW) == NOTHING
    assert plan(THREE, config.retention_limits, 15, 30, NOW) == (1, 15, Cause.LOG_START)
    assert plan(THREE, config.retention_limits, 30, 30, NOW) == (2, 30, Cause.LOG_START)


def test_the_active_segment_may_go_by_time_unless_it_is_empty() -> None:
    config = LogConfig(retention_ms=100)
    assert plan(THREE, config.retention_limits, 0, 30, NOW).doomed == 3
    assert plan([*THREE, SegmentView(30, 30, 0, 0)], config.retention_limits, 0, 30, NOW).doomed == 3
    assert plan([SegmentView(30, 30, 0, 0)], config.retention_limits, 0, 30, NOW) == NOTHING


views = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99), st.integers(0, NOW)), min_size=1, max_size=8)


@given(views, st.integers(0, 80), st.integers(0, 80), st.integers(-1, NOW), st.integers(-1, 400))
def test_a_plan_obeys_its_bounds(
    drawn: list[tuple[int, int, int]], start: int, high_watermark: int, retention_ms: int, retention_bytes: int
) -> None:
    segments, offset = [], 0
    for count, size, timestamp in drawn:
        segments.append(SegmentView(offset, offset + count, size, timestamp))
        offset += count
    doomed, new_start, cause = plan(
        segments, RetentionLimits(retention_ms, retention_bytes), start, high_watermark, NOW
    )
    assert (cause is None) == (doomed == 0)
    if doomed == 0:
        return
    gone, left = segments[:doomed], segments[doomed:]
    assert gone[-1].next_offset <= high_watermark
    assert new_start >= gone[-1].next_offset
    if cause is Cause.SIZE:
        assert sum(view.size for view in left) >= retention_bytes
    if cause is Cause.TIME:
        assert all(NOW - view.largest_timestamp > retention_ms for view in gone)
    if cause is Cause.LOG_START:
        assert gone[-1].next_offset <= start
