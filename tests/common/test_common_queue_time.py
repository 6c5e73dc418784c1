"""The time that a queue's members wait is the sum of its length over time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.queue_time import QueueTime


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=20), st.floats(0, 300))
def test_it_is_what_each_has_waited_so_far(stays: list[tuple[float, float]], until: float) -> None:
    """Each stay is the time of a coming, and how long it lasts."""
    now = [0.0]
    queue = QueueTime(lambda: now[0])
    moves = [(came, 1) for came, _ in stays] + [(came + lasts, -1) for came, lasts in stays]
    for at, more in sorted(moves):
        if at > until:
            break
        now[0] = at
        queue.changed(more)
    now[0] = until
    waited = sum(min(came + lasts, until) - came for came, lasts in stays if came < until)
    assert queue.seconds == pytest.approx(waited, abs=1e-6)


def test_a_queue_that_is_dropped_waits_no_longer() -> None:
    now = [10.0]
    queue = QueueTime(lambda: now[0])
    queue.changed(3)
    now[0] = 12.0
    queue.is_now(0)
    now[0] = 20.0
    assert queue.seconds == 6.0
