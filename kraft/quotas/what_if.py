"""How long a tenant would have been throttled under another way to split its quota. Pure: usage in, seconds out.

The usage is what clients offer to each broker in each interval. Brokers report at the end of an interval, so a split
takes effect in the next one at the earliest, as it does in a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from kraft.quotas.pressure import Claim, pressed
from kraft.quotas.shares import Demand, even_share
from kraft.quotas.split_quota import SplitQuota, SplitRules
from kraft.quotas.use_in_advance import Advance, advanced

BUDGET_S, WEEK_S = 300.0, 7 * 86_400.0
"""The objective: at most so many unfair seconds in a week."""


class Policy(StrEnum):
    """STATIC: an even part for each broker. DYNAMIC: parts by demand. LAZY: by demand, and none far below the quota.
    RESERVED: as LAZY, on brokers with a limit of their own, below which what tenants have reserved is kept free."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    LAZY = "lazy"
    RESERVED = "reserved"


class Throttled(NamedTuple):
    """Seconds in which some broker held the tenant back; `unfair_s`: those in which it had no reason to wait, by the
    controller's rule (`kraft.quotas.use_in_advance`)."""

    all_s: float = 0.0
    unfair_s: float = 0.0


class TenantReplay:
    """One quota of one tenant over the brokers of its cell."""

    def __init__(self, policy: Policy, quota: int, brokers: Sequence[int], rules: SplitRules | None = None) -> None:
        rules = SplitRules() if rules is None else rules
        if policy is Policy.DYNAMIC:
            rules = SplitRules(0, rules.every_s, rules.stale_s)
        self._policy = policy
        self._quota = quota
        self._brokers = tuple(brokers)
        self._split = SplitQuota(rules)
        self._shares: dict[int, int] = {}
        self._advance: Advance | None = None
        self.throttled = Throttled()

    def bound(self, broker: int) -> int:
        if self._policy is Policy.STATIC:
            return even_share(self._quota, len(self._brokers))
        return min(self._shares.get(broker, self._quota), self._quota)

    def pass_interval(self, now: float, seconds: float, offered: Mapping[int, int], most: Mapping[int, float]) -> None:
        """Serve an interval that ends at `now`. `most`: what the pressure on some brokers leaves the tenant."""
        bounds = {broker: min(self.bound(broker), int(most.get(broker, self._quota))) for broker in self._brokers}
        served = {broker: min(offered.get(broker, 0), bounds[broker]) for broker in self._brokers}
        held = {broker: served[broker] < offered.get(broker, 0) for broker in self._brokers}
        self._advance = advanced(self._advance, sum(served.values()), self._quota, now)
        if any(held.values()):
            all_s, unfair_s = self.throttled
            self.throttled = Throttled(all_s + seconds, unfair_s + (seconds if self._advance is None else 0.0))
        if self._policy is not Policy.STATIC:
            self._report(now, {broker: Demand(served[broker], held[broker]) for broker in self._brokers})

    def _report(self, now: float, demands: Mapping[int, Demand]) -> None:
        for broker in self._brokers:
            self._split.confirmed(broker, self._shares.get(broker), now, self._quota, len(self._brokers))
            if self._split.is_due(self._quota, now):
                self._split.compute(self._quota, demands, now, all_heard=True)
            share = self._split.next_share(broker, now, self._brokers, all_heard=True)
            if share is None:
                self._shares.pop(broker, None)
            else:
                self._shares[broker] = share


class TenantUsage(NamedTuple):
    """What one tenant offers: for each interval, bytes per second by broker. `reserved` is its guaranteed minimum."""

    quota: int
    intervals: Sequence[Mapping[int, int]]
    reserved: int = 0


def replay(
    policy: Policy,
    tenants: Mapping[str, TenantUsage],
    brokers: Sequence[int],
    seconds: float,
    capacity: int = 0,
    rules: SplitRules | None = None,
) -> dict[str, Throttled]:
    """All tenants of one cell, interval by interval. `capacity`: bytes per second of a broker, 0 for any."""
    running = {
        tenant: TenantReplay(policy, usage.quota, brokers, rules) for tenant, usage in tenants.items() if usage.quota
    }
    length = max((len(usage.intervals) for usage in tenants.values()), default=0)
    for at in range(length):
        offered = {t: usage.intervals[at] if at < len(usage.intervals) else {} for t, usage in tenants.items()}
        most: dict[str, dict[int, float]] = {}
        if policy is Policy.RESERVED and capacity:
            for broker in brokers:
                for tenant, bound in _pressure(capacity, broker, offered, tenants, running, len(brokers)).items():
                    most.setdefault(tenant, {})[broker] = bound
        for tenant, one in running.items():
            one.pass_interval((at + 1) * seconds, seconds, offered[tenant], most.get(tenant, {}))
    return {tenant: one.throttled for tenant, one in running.items()}


def _pressure(
    capacity: int,
    broker: int,
    offered: Mapping[str, Mapping[int, int]],
    tenants: Mapping[str, TenantUsage],
    running: Mapping[str, TenantReplay],
    count: int,
) -> dict[str, float]:
    claims = {}
    for tenant, usage in tenants.items():
        rate = offered[tenant].get(broker, 0)
        one = running.get(tenant)
        allocated = None if one is None else one.bound(broker)
        if allocated is not None and allocated >= usage.quota:
            allocated = even_share(usage.quota, count)
        if rate:
            claims[tenant] = Claim(rate, allocated, usage.reserved)
    return pressed(capacity, claims)


def within_budget(throttled: Mapping[str, Throttled], observed_s: float) -> float:
    """The part of tenants whose unfair time keeps the objective, in proportion to the time observed."""
    if not throttled:
        return 1.0
    budget_s = BUDGET_S * observed_s / WEEK_S
    return sum(one.unfair_s <= budget_s for one in throttled.values()) / len(throttled)
