"""Which silent connections are closed, and when each is looked at again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.node_settings.connections import ConnectionSettings
from wire import pauses
from wire.silence import Overdue, Quiet

LIMITS = ConnectionSettings(stall_s=10.0, idle_s=60.0)


def quiet(active_s: float = 0.0, paused: int = 0, *, holds_up: bool = False, is_waiting: bool = False) -> Quiet:
    return Quiet(active_s, 0.0, paused, 7, holds_up, is_waiting)


@pytest.mark.parametrize(
    ("state", "now", "verdict"),
    [
        (quiet(active_s=5.0), 64.0, 65.0),
        (quiet(active_s=5.0), 65.0, Overdue()),
        (quiet(is_waiting=True), 1_000.0, 1_060.0),
        (quiet(paused=pauses.MUTED), 1_000.0, 1_060.0),
        (quiet(paused=pauses.UNSENT), 9.0, 10.0),
        (quiet(paused=pauses.UNSENT), 10.0, Overdue("reads no replies: 7 bytes unsent for 10 s", reset=True)),
        (quiet(paused=pauses.CLOSING | pauses.UNSENT, is_waiting=True), 10.0, Overdue(reset=True)),
        (quiet(active_s=1.0, holds_up=True), 10.0, 11.0),
        (quiet(holds_up=True), 10.0, Overdue("half a frame and nothing more for 10 s while memory is short")),
        (quiet(paused=pauses.MEMORY, holds_up=True), 10.0, 70.0),
    ],
)
def test_who_makes_no_progress_is_closed_and_who_waits_for_us_is_not(
    state: Quiet, now: float, verdict: Overdue | float
) -> None:
    assert state.looked_at(LIMITS, now) == verdict


@given(st.integers(0, 10**6), st.integers(0, 63), st.booleans(), st.booleans())
def test_who_was_just_heard_stays_and_is_looked_at_again(now: int, paused: int, holds_up: bool, waits: bool) -> None:
    state = Quiet(now, now, paused, 0, holds_up, waits)
    again = state.looked_at(LIMITS, now)
    assert isinstance(again, float)
    assert now < again <= now + LIMITS.idle_s
    calm = state._replace(paused=paused & ~(pauses.UNSENT | pauses.CLOSING), holds_up=False)
    assert calm.looked_at(ConnectionSettings(idle_s=0), now) is None
