"""What a broker that is at its own limit leaves each tenant. Pure.

Tenants give way in proportion to what is allocated to them, but none falls below what it has reserved, and what one
does not need is there for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

FULL = 0.9
"""The part of its limit from which on a broker holds its tenants back, and to which it holds them."""
DEMAND_GROWTH = 1.1
"""A tenant that does not wait may want so much more in the next second."""
ROUNDS_MAX = 64


class Claim(NamedTuple):
    """One tenant on one broker, per second. `allocated`: its share, an even part of its quota, or what it uses where it
    has none; `is_held`: its clients waited, so that it wants more than it uses."""

    rate: float
    allocated: float
    reserved: float = 0.0
    is_held: bool = False

    @property
    def demand(self) -> float:
        return float("inf") if self.is_held else max(self.rate, 0.0) * DEMAND_GROWTH


def pressed(limit: float, claims: Mapping[str, Claim]) -> dict[str, float]:
    """The bound of each tenant, such that together they use at most `FULL` of the limit; {} while they do so anyhow.

    A bound is the reserved rate, or `allocated` times one factor for all, whichever is larger. If more than the limit
    is reserved, each has what it has reserved.
    """
    most = limit * FULL
    if sum(claim.rate for claim in claims.values()) <= most and not any(claim.is_held for claim in claims.values()):
        return {}
    factor = _factor(most, claims)
    return {tenant: max(claim.reserved, claim.allocated * factor) for tenant, claim in claims.items()}


def _factor(most: float, claims: Mapping[str, Claim]) -> float:
    """The largest factor, found by halving: what is used grows with it."""
    low, high = 0.0, 1.0
    while used(high, claims) < most and high < 1e9:
        if all(claim.demand <= max(claim.reserved, claim.allocated * high) for claim in claims.values()):
            return high
        high *= 2
    for _ in range(ROUNDS_MAX):
        middle = (low + high) / 2
        if used(middle, claims) <= most:
            low = middle
        else:
            high = middle
    return low


def used(factor: float, claims: Mapping[str, Claim]) -> float:
    """What tenants would use per second with this factor."""
    return sum(min(one.demand, max(one.reserved, one.allocated * factor)) for one in claims.values())
