"""The bounds of tenants on this broker: their shares of their quotas, and what pressure on the broker leaves them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from broker.security.usage import ThrottleReason

SHARE, PRESSURE = ThrottleReason.SHARE, ThrottleReason.PRESSURE
"""Why a tenant is bounded."""


class TenantBound(NamedTuple):
    """What a tenant may use of this broker per second, None for any amount: bytes of requests, bytes of answers, and
    seconds of the event loop. `saves`: a tenant that uses little for some time may use more at once later."""

    ingress: float | None = None
    egress: float | None = None
    busy: float | None = None
    saves: bool = True


NO_BOUND = TenantBound()


class TenantBounds(Protocol):
    """Holds the bounds that requests are charged to. `ClientThrottle` implements it."""

    def bound_tenant(self, tenant: str, reason: ThrottleReason, bound: TenantBound) -> None:
        """From now on `bound` holds for the reason SHARE or PRESSURE; `NO_BOUND` ends it. Bounds for the other reason
        stay. A tenant that has none takes no memory, so end the bounds of a tenant that was deleted."""
        ...
