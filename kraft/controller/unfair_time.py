"""For how long tenants were throttled, and how much of it although they used less than their quotas."""

from __future__ import annotations

from typing import NamedTuple

from kraft.quotas.tenant_quotas import RESOURCES, Quotas, Resource
from kraft.quotas.use_in_advance import Advance, advanced


class Waited(NamedTuple):
    """Milliseconds over all brokers; `unfair_ms` is the part of `all_ms` below the quota."""

    all_ms: int = 0
    unfair_ms: int = 0


class UnfairTime:
    """Since this controller is active. It holds the tenants that were throttled at all. Times are seconds of one
    monotonic clock."""

    def __init__(self) -> None:
        self._of_tenant: dict[str, Waited] = {}
        self._ahead: dict[str, dict[Resource, Advance]] = {}  # of those over a quota now or just before
        self.unfair_ms = 0
        """Of all tenants together."""

    def is_over(self, tenant: str, quotas: Quotas, used: Quotas, now: float) -> bool:
        """Whether the tenant, which uses so much now, has reason to wait: for this or for what it used just before."""
        before, after = self._ahead.get(tenant, {}), dict[Resource, Advance]()
        for resource in RESOURCES:
            if quotas[resource] <= 0:
                continue
            advance = advanced(before.get(resource), used[resource], quotas[resource], now)
            if advance is not None:
                after[resource] = advance
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
