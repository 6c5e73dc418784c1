"""Whether a tenant whose clients wait has reason to: it uses its quota, or has used it in advance just before. Pure.

Throttled clients are silent for seconds and then send as much as they may at once, so one report's time alone would
call most of the time unfair for which a tenant is held to its quota.
"""

from __future__ import annotations

from typing import NamedTuple

from kraft.quotas.shares import PER_MILLE

FAIR_FROM = 950
"""Per mille of the quota: a tenant that uses so much is throttled with reason, because what idle brokers hold of its
quota is up to a twentieth."""
AHEAD_S_MAX = 11.0
"""As long as brokers' windows, by default: what a client used in it may make it wait now."""
HELD_S = 5.0


class Advance(NamedTuple):
    """For how many seconds a tenant has used one quota in advance until `at_s`, and the part of it that it uses since.
    A report holds for `HELD_S`: a tenant that later ones do not name uses nothing."""

    at_s: float
    part: float
    seconds: float = 0.0

    def until(self, now: float) -> float:
        passed_s = max(now - self.at_s, 0.0)
        held_s = min(passed_s, HELD_S)
        ahead_s = min(self.seconds + (self.part - 1.0) * held_s, AHEAD_S_MAX)
        return max(ahead_s - (passed_s - held_s), 0.0)


def advanced(before: Advance | None, used: float, quota: float, now: float) -> Advance | None:
    """What follows from a report, at `now` on one clock of seconds, that the tenant uses so much of a quota per second.
    None: it has no reason to wait."""
    part = used * PER_MILLE / (FAIR_FROM * quota)
    ahead_s = 0.0 if before is None else before.until(now)
    return Advance(now, part, ahead_s) if part >= 1.0 or ahead_s > 0 else None
