"""Limits of new connections per address and per tenant. Faster clients are throttled (KIP-219).

An address is counted when it connects, a tenant when one of its keys has logged in, so that only the tenant's own keys
use up its rate. The first response after that which has a throttle time carries it, and the connection is muted for as
long. No connection is rejected for its rate, and no throttle time exceeds `PAUSE_S_MAX`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from broker.security.session import ClientSession
from common.metrics import Metrics
from common.token_bucket import TokenBucket
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import CONNECTION_RATE, TenantImage

PAUSE_S_MAX = 10.0
BUCKETS_MAX = 65_536  # addresses, and tenants, that connected recently


def pause_of(bucket: TokenBucket, rate: float, now: float) -> float:
    """Count a connection. Returns the seconds that it must wait, 0 within the rate. One second's connections may come
    at once."""
    bucket.change(rate, rate, rate * PAUSE_S_MAX)
    bucket.spend(1, now)
    return bucket.wait_s()


class ConnectionLimits(Protocol):
    """This broker's part of limits that hold for all brokers of a tenant together."""

    def connections_here(self, tenant: TenantImage, most: int) -> int:
        """Of the `most` connections that the tenant may have."""
        ...

    def connection_rate_here(self, tenant: TenantImage, rate: int) -> int:
        """Of the `rate` connections per second that the tenant may make; 0 is unlimited."""
        ...


class WholeLimits:
    """Of a broker that is a tenant's only one."""

    def connections_here(self, tenant: TenantImage, most: int) -> int:
        return most

    def connection_rate_here(self, tenant: TenantImage, rate: int) -> int:
        return rate


class ConnectionRates:
    """Counts all client connections of one broker. What a session owes is part of its next throttle time
    (`ClientThrottle.charge`). A rate of 0 means no limit."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        now: Callable[[], float],
        per_address: int,
        per_tenant: int,
        limits: ConnectionLimits | None = None,
        *,
        buckets_max: int = BUCKETS_MAX,
    ) -> None:
        """`per_tenant`: for tenants without a rate of their own."""
        self._image = image
        self._now = now
        self._per_address = per_address
        self._per_tenant = per_tenant
        self._limits = WholeLimits() if limits is None else limits
        self._buckets_max = buckets_max
        self._of_address: OrderedDict[str, TokenBucket] = OrderedDict()
        self._of_tenant: OrderedDict[str, TokenBucket] = OrderedDict()
        self.throttled = {"address": 0, "tenant": 0}

    def connected(self, session: ClientSession) -> None:
        """A new connection of the session's address, whose rate a client quota may give."""
        quota = self._image().client_quotas.connection_rate(session.client_host)
        rate = self._per_address if quota is None else quota
        self._count(session, "address", self._of_address, session.client_host, rate)

    def logged_in(self, session: ClientSession) -> None:
        """The session has authenticated as a tenant."""
        if session.tenant is not None:
            tenant = self._image().tenants.get(session.tenant)
            rate = self._per_tenant
            if tenant is not None:
                rate = self._limits.connection_rate_here(tenant, tenant.limits.get(CONNECTION_RATE, rate))
            self._count(session, "tenant", self._of_tenant, session.tenant, rate)

    def _count(
        self, session: ClientSession, what: str, buckets: OrderedDict[str, TokenBucket], key: str, rate: float
    ) -> None:
        if rate <= 0:
            return
        now = self._now()
        bucket = buckets.get(key)
        if bucket is None:
            if len(buckets) >= self._buckets_max:
                buckets.popitem(last=False)
            bucket = buckets[key] = TokenBucket(rate, rate, now)
        buckets.move_to_end(key)
        pause_ms = int(pause_of(bucket, rate, now) * 1000)
        if pause_ms:
            self.throttled[what] += 1
            session.owe_pause(pause_ms)

    def register(self, metrics: Metrics) -> None:
        metrics.family(
            "tidelog_connections_throttled_total",
            lambda: [({"of": what}, float(count)) for what, count in self.throttled.items()],
        )
