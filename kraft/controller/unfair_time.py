"""For how long tenants were throttled, and how much of it although they used less than their quotas."""

from __future__ import annotations

from typing import NamedTuple

from kraft.quotas.shares import PER_MILLE
from kraft.quotas.tenant_quotas import RESOURCES, Quotas, Resource

FAIR_FROM = 950
"""Per mille of the quota: a tenant that uses so much is throttled with reason, because what idle brokers hold of its
quota is up to a twentieth."""
AHEAD_S_MAX = 11.0
"""As long as brokers' windows, by default: what a client used in it may make it wait now."""
HELD_S = 5.0


class Waited(NamedTuple):
    """Milliseconds over all brokers; `unfair_ms` is the part of `all_ms` below the quota."""

    all_ms: int = 0
    unfair_ms: int = 0


class _Ahead(NamedTuple):
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


class UnfairTime:
    """Since this controller is active. It holds the tenants that were throttled at all. Times are seconds of one
    monotonic clock."""

    def __init__(self) -> None:
        self._of_tenant: dict[str, Waited] = {}
        self._ahead: dict[str, dict[Resource, _Ahead]] = {}  # of those over a quota now or just before
        self.unfair_ms = 0
        """Of all tenants together."""

    def is_over(self, tenant: str, quotas: Quotas, used: Quotas, now: float) -> bool:
        """Whether the tenant, which uses so much now, has reason to wait: for this or for what it used just before.

        Throttled clients are silent for seconds and then send as much as they may at once, so one report's
        time alone would call most of the time unfair for which a tenant is held to its quota.
        """
        before, after = self._ahead.get(tenant, {}), dict[Resource, _Ahead]()
        for resource in RESOURCES:
            if quotas[resource] <= 0:
                continue
            part = used[resource] * PER_MILLE / (FAIR_FROM * quotas[resource])
            ahead_s = before[resource].until(now) if resource in before else 0.0
            if part >= 1.0 or ahead_s > 0:
                after[resource] = _Ahead(now, part, ahead_s)
        if after:
            self._ahead[tenant] = after
        else:
            self._ahead.pop(tenant, None)
        return bool(after)

    def add(self, tenant: str, all_ms: int, unfair_ms: int) -> None:
        before = self.of(tenant)
        self.unfair_ms += unfair_ms
        self._of_tenant[tenant] = Waited(before.all_ms + all_ms, before.unfair_ms + unfair_ms)

    def of(self, tenant: str) -> Waited:
        return self._of_tenant.get(tenant, Waited())

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._of_tenant

    def tenants(self) -> dict[str, Waited]:
        """By tenant id, in the order in which they were throttled first."""
        return self._of_tenant

    def forget(self, tenant: str) -> None:
        self._ahead.pop(tenant, None)
        gone = self._of_tenant.pop(tenant, None)
        if gone is not None:
            self.unfair_ms -= gone.unfair_ms

    def clear(self) -> None:
        self._of_tenant.clear()
        self._ahead.clear()
        self.unfair_ms = 0
