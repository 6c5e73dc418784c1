"""How long ago a log passed an offset, from ends that were seen now and then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.coordination.groups.lag_history import SEEN_MAX, LagHistory

STEPS = st.lists(st.tuples(st.integers(1, 100), st.integers(0, 50)), min_size=1, max_size=60)
"""Seconds that pass, and records that are written at their end."""


@given(STEPS)
def test_a_lag_grows_with_the_distance_from_the_end(steps: list[tuple[int, int]]) -> None:
    history, now, end = LagHistory(0.0, 0), 0.0, 0
    for seconds, records in steps:
        now, end = now + seconds, end + records
        history.seen(now, end, lowest=0)
        assert len(history) <= SEEN_MAX
        lags = [history.behind_s(offset, now, end) for offset in range(end + 1)]
        assert lags == sorted(lags, reverse=True) and lags[-1] == 0 and lags[0] <= now


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 50)), min_size=1, max_size=SEEN_MAX // 2))
def test_a_lag_is_right_between_two_looks(steps: list[tuple[int, int]]) -> None:
    """Whatever was written between two looks was written after the first and before the second."""
    history, now, end = LagHistory(0.0, 0), 0.0, 0
    written: list[tuple[float, float]] = []  # by offset: the looks before and after
    for seconds, records in steps:
        written += [(now, now + seconds)] * records
        now, end = now + seconds, end + records
        history.seen(now, end, lowest=0)
    for offset, (before, after) in enumerate(written):
        assert now - after <= history.behind_s(offset, now, end) + 1e-9
        assert history.behind_s(offset, now, end) <= now - before + 1e-9


def test_what_no_group_needs_is_forgotten() -> None:
    history = LagHistory(0.0, 0)
    for second in range(1, 10):
        history.seen(float(second), 10 * second, lowest=10 * second - 5)
        assert len(history) == 2
    assert history.behind_s(85, 9.0, 90) == 0.5


def test_a_log_that_was_cut_begins_again() -> None:
    history = LagHistory(0.0, 100)
    history.seen(1.0, 200, lowest=50)
    history.seen(2.0, 150, lowest=50)
    assert history.behind_s(120, 5.0, 150) == 3.0


def test_an_idle_log_keeps_the_time_at_which_it_stopped() -> None:
    history = LagHistory(0.0, 0)
    for second in range(1, 100):
        history.seen(float(second), 10, lowest=5)
    assert history.behind_s(5, 99.0, 10) == 98.5
    assert len(history) == 3
