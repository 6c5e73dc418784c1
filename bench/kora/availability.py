"""Availability over a month in which given incidents happen, from measured gaps. No I/O.

A month of incidents cannot be measured in minutes, so it is computed: the seconds without acknowledgements are those
that one incident of the kind was measured to cost, times how often it happens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

MONTH_S = 30 * 24 * 3_600
BEFORE = 0.9995
"""What the month's freezes leave of the availability without mitigation."""
GOAL = 0.9999


class Incident(NamedTuple):
    """`times` in the month, each with `gap_s` without acknowledgements."""

    times: int
    gap_s: float


def availability(incidents: Iterable[Incident], period_s: float = MONTH_S) -> float:
    """The share of the period in which a partition took writes. ValueError for impossible incidents."""
    lost_s = 0.0
    for incident in incidents:
        if incident.times < 0 or incident.gap_s < 0:
            raise ValueError(f"{incident} is not possible")
        lost_s += incident.times * incident.gap_s
    return max(0.0, 1 - lost_s / period_s)


def times_for(gap_s: float, wanted: float, period_s: float = MONTH_S) -> int:
    """How often an incident of `gap_s` may happen at most so that the availability is at least `wanted`."""
    return int((1 - wanted) * period_s / gap_s + 1e-9) if gap_s > 0 else 0


def month_of_freezes(without_s: float, with_s: float) -> dict[str, Any]:
    """The month with as many freezes as bring the availability to 99.95 % without mitigation, and the same month with
    it. The arguments are the gaps of one freeze."""
    times = times_for(without_s, BEFORE)
    return {
        "freezes": times,
        "without": round(availability([Incident(times, without_s)]), 6),
        "with": round(availability([Incident(times, with_s)]), 6),
        "goal": GOAL,
    }
