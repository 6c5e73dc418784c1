"""What a broker that is at its own limit leaves each tenant. Pure.

Tenants give way in proportion to what is allocated to them, but none falls below what it has reserved, and what one
does not need is there for the others. A limit is a number of bytes per second, or of seconds of the event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

FULL = 0.9
"""The part of its limit from which on a broker holds its tenants back, and to which it holds them."""
LEFT_MIN = 0.1
"""The part of the limit that tenants have at least, however much clients use that cannot be held back; and of that, the
part that is there for what no tenant has reserved."""
DEMAND_GROWTH = 1.1
"""A tenant that does not wait may want so much more in the next second."""
LESS, MORE = 0.8, 1.05
"""By how much the time of the event loop that tenants may have changes in a second: while requests wait for too long,
and after that."""
FACTOR_MIN, USED_MIN = 0.05, 0.05
OVER_LOOKS = 2
"""Looks in a row at which requests wait for too long before tenants are held back for it. One may be a hiccup."""


class Claim(NamedTuple):
    """One tenant on one broker, per second. `allocated`: its share, or an even part of its quota; None without a quota,
    which counts as an even part of the limit. `is_held`: its clients waited, so that it wants more than it uses."""

    rate: float
    allocated: float | None = None
    reserved: float = 0.0
    is_held: bool = False

    @property
    def demand(self) -> float:
        return float("inf") if self.is_held else max(self.rate, 0.0) * DEMAND_GROWTH


class _Weighed(NamedTuple):
    demand: float
    allocated: float
    reserved: float

    def bound(self, factor: float) -> float:
        return max(self.reserved, self.allocated * factor)


def pressed(limit: float, claims: Mapping[str, Claim], others: float = 0.0, full: float = FULL) -> dict[str, float]:
    """The bound of each tenant, such that together with `others`, which cannot be held back, they use at most `full` of
    the limit; {} while they do so anyhow.

    A bound is the reserved rate, or `allocated` times one factor for all, whichever is larger. Reserved rates
    that do not fit into `1 - LEFT_MIN` of it are cut in proportion.
    """
    most = max(limit * full - max(others, 0.0), limit * LEFT_MIN)
    if sum(claim.rate for claim in claims.values()) <= most and not any(claim.is_held for claim in claims.values()):
        return {}
    weighed = _weighed(most, claims)
    factor = _factor(most, weighed.values())
    return {tenant: one.bound(factor) for tenant, one in weighed.items()}


def _weighed(most: float, claims: Mapping[str, Claim]) -> dict[str, _Weighed]:
    even = most / max(len(claims), 1)
    wanted = sum(min(claim.demand, claim.reserved) for claim in claims.values())
    part = min(most * (1 - LEFT_MIN) / wanted, 1.0) if wanted > 0 else 1.0
    found = {}
    for tenant, one in claims.items():
        reserved = one.reserved if part >= 1.0 else min(one.demand, one.reserved) * part
        found[tenant] = _Weighed(one.demand, even if one.allocated is None else one.allocated, reserved)
    return found


def _factor(most: float, claims: Collection[_Weighed]) -> float:
    """The largest factor with which tenants use at most `most`. What they use grows with it, and is linear between the
    points where one begins to have more than its reserved rate, or has all that it wants."""
    growing = [one for one in claims if one.allocated > 0]
    points = {one.demand / one.allocated for one in growing if one.demand < float("inf")}
    ordered = sorted(points.union([0.0], (one.reserved / one.allocated for one in growing)))
    low, high = 0, len(ordered)  # it is at the first of these or above, and below the second
    while high - low > 1:
        middle = (low + high) // 2
        if _used(ordered[middle], claims) <= most:
            low = middle
        else:
            high = middle
    at = ordered[low]
    slope = sum(one.allocated for one in growing if one.reserved / one.allocated <= at < one.demand / one.allocated)
    return at + (most - _used(at, claims)) / slope if slope > 0 else at


def _used(factor: float, claims: Iterable[_Weighed]) -> float:
    """What tenants would use per second with this factor."""
    return sum(min(demand, max(reserved, allocated * factor)) for demand, allocated, reserved in claims)


class QueueLimit:
    """How much time of the event loop tenants may have together, while requests wait for too long.

    At which use of the loop the waits end depends on the requests, and is not known. So what tenants used when
    it began is cut by a fifth in each second, and given back by a twentieth in each one without.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._used = 0.0
        self._looks_over = 0

    def step(self, is_over: bool, used: float) -> float | None:
        """One second has passed; None while there is no limit. `used`: seconds of the loop, by tenants, in it."""
        self._looks_over = self._looks_over + 1 if is_over else 0
        if self.factor >= 1.0:
            if self._looks_over < OVER_LOOKS:
                return None
            self._used = max(used, USED_MIN)
        self.factor = max(self.factor * LESS, FACTOR_MIN) if is_over else min(self.factor * MORE, 1.0)
        return None if self.factor >= 1.0 else self._used * self.factor
