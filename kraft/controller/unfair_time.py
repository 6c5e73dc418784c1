"""For how long tenants were throttled, and how much of it although they used less than their quotas."""

from __future__ import annotations

from typing import NamedTuple


class Waited(NamedTuple):
    """Milliseconds over all brokers; `unfair_ms` is the part of `all_ms` below the quota."""

    all_ms: int = 0
    unfair_ms: int = 0


class UnfairTime:
    """Since this controller is active. It holds the tenants that were throttled at all."""

    def __init__(self) -> None:
        self._of_tenant: dict[str, Waited] = {}
        self.unfair_ms = 0
        """Of all tenants together."""

    def add(self, tenant: str, all_ms: int, unfair_ms: int) -> None:
        before = self.of(tenant)
        self.unfair_ms += unfair_ms
        self._of_tenant[tenant] = Waited(before.all_ms + all_ms, before.unfair_ms + unfair_ms)

    def of(self, tenant: str) -> Waited:
        return self._of_tenant.get(tenant, Waited())

    def tenants(self) -> dict[str, Waited]:
        """By tenant id, in the order in which they were throttled first."""
        return self._of_tenant

    def forget(self, tenant: str) -> None:
        gone = self._of_tenant.pop(tenant, None)
        if gone is not None:
            self.unfair_ms -= gone.unfair_ms

    def clear(self) -> None:
        self._of_tenant.clear()
        self.unfair_ms = 0
