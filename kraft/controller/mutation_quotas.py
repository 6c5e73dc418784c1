"""How fast clients may create and delete partitions (KIP-599): one bucket for each quota that applies. No I/O.

As in Apache Kafka a bucket holds `controller.quota.window.num` x `controller.quota.window.size.seconds` seconds' worth
and may go into debt. Who is in debt is refused (THROTTLING_QUOTA_EXCEEDED), or, in versions of a request whose clients
do not know that error, served with a throttle time. Each topic of a request succeeds or fails on its own.

The buckets are the active controller's own: another one begins with full ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from common.errors import ErrorCode, ProtocolError
from common.settings import INT_MAX
from common.token_bucket import TokenBucket
from kraft.controller.policy import ControllerPolicy, tenant_limit
from kraft.image.client_quotas import MUTATION_RATE, OPERATORS
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import MUTATION_RATE as TENANT_MUTATION_RATE
from kraft.image.tenants import SEPARATOR, tenant_of
from wire.apis import ApiKey

BUCKETS_MAX = 65_536
STRICT_FROM: Mapping[int, int] = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
"""APIs that a quota applies to, and the version from which on they are refused."""
_EXCEEDED = "The throttling quota has been exceeded."


class BucketKey(NamedTuple):
    """`setter` has set the quota; None: the limit of the whole tenant `user`."""

    setter: str | None
    user: str | None
    client_id: str | None


class MutationQuota:
    """One request's way to the buckets. A topic is counted once, however often the request is decided."""

    def __init__(self, buckets: list[TokenBucket], now: float, *, is_strict: bool) -> None:
        self._buckets = buckets
        self._now = now
        self._is_strict = is_strict
        self._taken: dict[str | bytes, bool] = {}
        self.throttle_ms = 0

    def take(self, topic: str | bytes, partitions: int) -> None:
        """Count this many created or deleted partitions. Raises THROTTLING_QUOTA_EXCEEDED, and counts nothing."""
        if not self._buckets:
            return
        allowed = self._taken.get(topic)
        if allowed is None:
            allowed = self._taken[topic] = self._takes(partitions)
        if not allowed:
            raise ProtocolError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _EXCEEDED)

    def _takes(self, partitions: int) -> bool:
        for bucket in self._buckets:
            bucket.refill(self._now)
        if self._is_strict and any(bucket.level < 0 for bucket in self._buckets):
            self._throttle()
            return False
        for bucket in self._buckets:
            bucket.spend(partitions, self._now)
        if not self._is_strict:
            self._throttle()
        return True

    def _throttle(self) -> None:
        """Bounded before it is rounded: a quota may be so small that the wait is infinite."""
        wait_s = max(bucket.wait_s() for bucket in self._buckets)
        self.throttle_ms = max(self.throttle_ms, round(min(wait_s * 1000, INT_MAX)))


UNBOUNDED = MutationQuota([], 0.0, is_strict=True)


class MutationQuotas:
    """The buckets of all clients of a cluster."""

    def __init__(self, policy: ControllerPolicy, buckets_max: int = BUCKETS_MAX) -> None:
        self._policy = policy
        self._window_s = policy.quotas.window_num * policy.quotas.window_size_s
        self._most = buckets_max
        self._buckets: OrderedDict[BucketKey, TokenBucket] = OrderedDict()

    def of(
        self, image: MetadataImage, principal: str, client_id: str, api_key: int, version: int, now: float
    ) -> MutationQuota:
        """The quota of a client's request; unbounded for an API that has none."""
        strict_from = STRICT_FROM.get(api_key)
        if strict_from is None:
            return UNBOUNDED
        rates = self._rates(image, principal.removeprefix("User:"), client_id)
        buckets = [self._bucket(key, rate, now) for key, rate in rates]
        return MutationQuota(buckets, now, is_strict=version >= strict_from) if buckets else UNBOUNDED

    def _rates(self, image: MetadataImage, user: str, client_id: str) -> Iterator[tuple[BucketKey, float]]:
        """Per second, of each quota that applies."""
        tenant = image.tenants.get(tenant_of(user) or "")
        asked = [(OPERATORS, user)]
        if tenant is not None:
            asked.append((tenant.id, user.removeprefix(tenant.id + SEPARATOR)))
            limit = tenant_limit(tenant, TENANT_MUTATION_RATE, self._policy)
            if limit:
                yield BucketKey(None, tenant.id, None), limit
        for setter, name in asked:
            level = image.client_quotas.level(setter, name, client_id, MUTATION_RATE)
            if level is not None:
                yield BucketKey(setter, *level.shared_by), level.bound

    def _bucket(self, key: BucketKey, rate: float, now: float) -> TokenBucket:
        burst = rate * self._window_s
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._most:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = TokenBucket(rate, burst, now)
        self._buckets.move_to_end(key)
        if bucket.rate != rate:
            bucket.change(rate, burst)
        return bucket

    def __len__(self) -> int:
        return len(self._buckets)
