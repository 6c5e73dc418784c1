"""Splits a tenant's quota over the brokers that serve it, by where its demand is. Pure: integers in, integers out.

While a tenant uses clearly less than its quota it has no shares, so that no broker throttles it, wherever its load is
(lazy throttling). Near its quota each broker gets a share in proportion to the demand there. A rate is a number of
bytes per second, or nanoseconds of event loops per second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

PER_MILLE = 1_000
GROWTH, GROWTH_THROTTLED = 1_100, 1_500
"""The demand that a rate stands for, per mille of it. A throttled rate says less about the demand than a free one."""
FLOOR_SHARE = 50
"""Per mille of an even share: the demand of a broker where the tenant uses nothing, so that it can begin there."""
HYSTERESIS = 100
"""Per mille of the quota: how far the use falls below the lazy ratio before the shares end."""


KEPT = 950
"""Per mille: what is left of the demand of clients that wait, from one split to the next, if they use less."""
THROTTLED_NEAR = 900
"""Per mille of its share: a tenant that waited and used so much of it waited for this share, not for another one."""


class Demand(NamedTuple):
    """A tenant's use of one broker. `throttled`: the broker had the tenant's clients wait for this quota. `is_known`:
    the broker has reported it."""

    rate: int
    throttled: bool = False
    is_known: bool = True


def demand_of(rate: int, waited: bool, share: int, before: int) -> Demand:
    """`waited`: the broker, which held `share`, had the tenant's clients wait, for this quota or for another one.

    Clients that wait send in bursts, so what they use in one report's time says little. Their demand falls slowly from
    what it was `before`, to not be taken for idleness between two bursts.
    """
    if not waited:
        return Demand(rate)
    demand = max(rate, before * KEPT // PER_MILLE)
    return Demand(demand, demand * PER_MILLE >= THROTTLED_NEAR * share)


def is_bound(quota: int, used: int, lazy_per_mille: int, was_bound: bool) -> bool:
    """Whether a tenant with this use over all brokers has shares. `lazy_per_mille`: `tidelog.quota.lazy.ratio`."""
    ratio = lazy_per_mille - HYSTERESIS if was_bound else lazy_per_mille
    return used * PER_MILLE >= max(ratio, 0) * quota


def total(quota: int, demands: Iterable[Demand]) -> int:
    """The use over all brokers. One broker counts for the quota at most, so an absurd report hides no other one."""
    return sum(_believed(quota, one.rate) for one in demands)


def shares(quota: int, demands: Mapping[int, Demand]) -> dict[int, int]:
    """Each broker's share of `quota`, by broker. The shares are positive, and their sum is the quota.

    A quota smaller than the number of brokers has shares of 1, because a share of 0 would never let a request through.
    """
    count = len(demands)
    brokers = sorted(demands)
    if quota <= count:
        return dict.fromkeys(brokers, 1)
    floor = FLOOR_SHARE * quota
    weights = [max(_weight(quota, demands[broker]) * count, floor) for broker in brokers]
    whole = sum(weights)
    found = {broker: quota * weight // whole for broker, weight in zip(brokers, weights, strict=True)}
    left = quota - sum(found.values())
    by_rest = sorted(zip(weights, brokers, strict=True), key=lambda one: (-(quota * one[0] % whole), one[1]))
    for _, broker in by_rest[:left]:
        found[broker] += 1
    for broker in brokers:
        if not found[broker]:  # of a quota of some bytes
            found[max(brokers, key=lambda one: (found[one], one))] -= 1
            found[broker] = 1
    return found


def even_share(quota: int, brokers: int) -> int:
    """What a broker grants on its own that has not heard a controller for a long time."""
    return max(quota // max(brokers, 1), 1)


def believed_share(share: int, given: int | None, quota: int, brokers: int) -> int:
    """How much a broker may act on that reports `share`. `given`: the most that this controller gave it, None for none.

    No broker has more than it was given. What it has from a controller before is at most the quota; else it
    counts as an even part, so that one absurd report does not take the quota away from other brokers. A quota of 0 is
    none: what is held of an earlier one counts as it is.
    """
    most = quota if quota > 0 else share
    if given is not None:
        return min(share, given, most)
    return share if share <= most else even_share(quota, brokers)


def granted(target: int, quota: int, elsewhere: int, holds: int | None) -> int | None:
    """The share that a broker may get now, so that the shares in effect never exceed the quota.

    `target` is its share by the present split; `elsewhere` the sum of all shares that other brokers may still act on,
    because they have not confirmed smaller ones. A broker that `holds` none gets none (None) while less than half of
    its target is free: a tiny share would stop its clients for as long as another broker is silent.
    """
    free = quota - elsewhere
    if holds is None:
        return min(target, free) if 2 * free >= target and free > 0 else None
    return max(min(target, max(free, 0)), 1)


def _believed(quota: int, rate: int) -> int:
    return min(max(rate, 0), quota)


def _weight(quota: int, demand: Demand) -> int:
    return _believed(quota, demand.rate) * (GROWTH_THROTTLED if demand.throttled else GROWTH)
