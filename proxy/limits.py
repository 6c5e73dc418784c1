"""Limits on connections before login: how many at a time, and how many new ones per second.

Counts are exact over all workers of a proxy (`proxy.shared_state`); each worker enforces its share of a rate. Memory is
bounded: only open connections are counted, and a bucket that is full again is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from common.node_settings.proxy import ProxyLimitSettings
from common.node_settings.tenants import TenantSettings
from common.settings import INT_MAX, same
from common.token_bucket import TokenBucket

BUCKETS_MAX = 65_536  # addresses and tenants of one worker that lately connected


@dataclass(frozen=True, slots=True)
class ProxyLimits(ProxyLimitSettings):
    """Limits of one worker; the rates of an address and of a tenant are divided among `workers`.

    Times are in seconds, rates in connections per second. `opening`: connections that have not reached a broker yet;
    beyond it the oldest is evicted once it is `eviction_age_s` old. `quick`: connections with the faster TLS library,
    which takes more memory. `idle_s` exceeds the brokers' idle limit, so that brokers end idle connections.
    """

    tenant_connections: int = same(TenantSettings, "tenant_connections_max")
    tenant_new_per_second: float = same(TenantSettings, "tenant_connection_rate", float)
    eviction_age_s: float = 1.0
    workers: int = 1


class Buckets:
    """A token bucket per key. Beyond `limit` the least recently used one is dropped."""

    def __init__(self, limit: int = BUCKETS_MAX) -> None:
        self._limit = limit
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def permits(self, key: str, rate: float, now: float) -> bool:
        """Take one token of `key`: `rate` per second, at most a second's worth at once. A rate of 0 is unlimited."""
        if rate <= 0:
            return True
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[key] = TokenBucket(rate, max(1.0, rate), now)
            self._buckets.move_to_end(key)  # a new rate makes a new bucket in its old place
            self._forget(now)
        else:
            self._buckets.move_to_end(key)
        return bucket.take(1, now) == 0.0

    def _forget(self, now: float) -> None:
        """Examine two buckets for each new one, so that full ones do not stay."""
        for _ in range(2):
            key = next(iter(self._buckets))
            if len(self._buckets) > self._limit or (len(self._buckets) > 1 and self._buckets[key].is_full(now)):
                del self._buckets[key]


class Counts:
    """Open connections per key. `elsewhere` returns those of other workers; `changed` is called with each new count."""

    def __init__(
        self,
        elsewhere: Callable[[str], int] = lambda _: 0,
        changed: Callable[[str, int], None] = lambda _key, _count: None,
    ) -> None:
        self._elsewhere = elsewhere
        self._changed = changed
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def total(self, key: str) -> int:
        return self._counts.get(key, 0) + self._elsewhere(key)

    def enter(self, key: str, limit: int) -> bool:
        """Count one more and return True, or return False at the limit."""
        if limit < INT_MAX and self.total(key) >= limit:
            return False
        count = self._counts[key] = self._counts.get(key, 0) + 1
        self._changed(key, count)
        return True

    def leave(self, key: str) -> None:
        count = self._counts[key] - 1
        if count:
            self._counts[key] = count
        else:
            del self._counts[key]
        self._changed(key, count)
