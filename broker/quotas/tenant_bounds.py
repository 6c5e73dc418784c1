"""The bounds of tenants on this broker: their shares of their quotas, and what pressure on the broker leaves them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

SHARE, PRESSURE = "share", "pressure"
"""Why a tenant is bounded: its share of its quota is used up; the broker as a whole is at its limit."""


class TenantBound(NamedTuple):
    """What a tenant may use of this broker per second, None for any amount: bytes of requests, bytes of answers, and
    seconds of the event loop."""

    ingress: float | None = None
    egress: float | None = None
    busy: float | None = None


NO_BOUND = TenantBound()


class TenantBounds(Protocol):
    """Holds the bounds that requests are charged to. `ClientThrottle` implements it."""

    def bound_tenant(self, tenant: str, reason: str, bound: TenantBound) -> None:
        """From now on `bound` holds for the reason SHARE or PRESSURE; `NO_BOUND` ends it. Bounds for the other reason
        stay. A tenant that has none takes no memory, so end the bounds of a tenant that was deleted."""
        ...
