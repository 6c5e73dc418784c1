"""Limits on connections before anybody has logged in: how many at a time, and how many new ones a second.

Counts are exact over all workers of a proxy (`proxy.shared_state`); rates are each worker's share. Everything here is
bounded: who is counted is connected, and a bucket that is full again is forgotten.
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
    """Of one worker, but for those of an address and of a tenant, whose rates are divided among `workers`. Times in
    seconds, rates in connections a second.

    `opening` connections are accepted and not yet through to a broker; beyond it the oldest makes room once it is
    `crowd_patience_s` old. `quick` ones have the faster library's TLS, which takes more memory. `idle_s` is longer than
    the brokers' own patience, so that these end idle connections.
    """

    tenant_connections: int = same(TenantSettings, "tenant_connections_max")
    tenant_new_per_second: float = same(TenantSettings, "tenant_connection_rate", float)
    crowd_patience_s: float = 1.0
    workers: int = 1


class Buckets:
    """A bucket for each of many keys. When there are too many, the one that was not asked for longest is forgotten."""

    def __init__(self, limit: int = BUCKETS_MAX) -> None:
        self._limit = limit
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def permits(self, key: str, rate: float, now: float) -> bool:
        """Whether `key` may have one more now, at `rate` a second and a second's worth at once; 0 is without limit."""
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
        """Two are looked at for each that is made, so full ones do not stay."""
        for _ in range(2):
            key = next(iter(self._buckets))
            if len(self._buckets) > self._limit or (len(self._buckets) > 1 and self._buckets[key].is_full(now)):
                del self._buckets[key]


class Counts:
    """How many each key has open here; `elsewhere` tells how many more other workers know of, and `changed` is told."""

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
        """Count one more, unless there are `limit` already."""
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
