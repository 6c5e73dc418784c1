"""Which transactional ids may have expired, or are left from a move, without a walk over all of them.

Ids are in buckets by the time of their last change, as it was when they were put there. When a bucket is due, each of
its ids is looked at, and put into a later one if it has changed since. So an id costs one look per expiration time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.coordination.groups.tenant_index import ByTenant
from broker.coordination.shard import CoordinatorRecord
from broker.coordination.transactions.records import transaction_record
from kraft.image.key_ranges import Keeping


class ExpiryBuckets:
    """An id is in a bucket, and stays there until the bucket is due, even if it is removed elsewhere. One that is
    removed and made again is in two, which become one when both are due."""

    __slots__ = ("_buckets", "_width_ms")

    def __init__(self, width_ms: int) -> None:
        self._width_ms = width_ms
        self._buckets: dict[int, list[str]] = {}

    def add(self, transactional_id: str, updated_ms: int) -> None:
        self._buckets.setdefault(updated_ms // self._width_ms, []).append(transactional_id)

    def take_until(self, cutoff_ms: int, most: int) -> list[str]:
        """Remove and return at most `most` ids whose time, when they were put here, was `cutoff_ms` or earlier."""
        taken: list[str] = []
        while len(taken) < most and self.is_due(cutoff_ms):
            first = min(self._buckets)
            ids = self._buckets[first]
            left = most - len(taken)
            taken += dict.fromkeys(ids[-left:])
            del ids[-left:]
            if not ids:
                del self._buckets[first]
        return taken

    def is_due(self, cutoff_ms: int) -> bool:
        return bool(self._buckets) and (min(self._buckets) + 1) * self._width_ms <= cutoff_ms


class Leftovers:
    """Ids of tenants that have moved, which another partition keeps: all of a tenant's, or none."""

    def __init__(self, committed: ByTenant[bytes]) -> None:
        self._committed = committed
        self._tenants: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def add(self, tenants: Iterable[str]) -> None:
        """Their ids may be leftovers."""
        self._tenants.update(dict.fromkeys(tenants))

    def removals(self, keeping_of: Callable[[str], Keeping], most: int) -> list[CoordinatorRecord]:
        """Remove at most `most` of them. The records are replayed before the next call."""
        for _ in range(min(most, len(self._tenants))):
            tenant = next(iter(self._tenants))
            names = self._committed.some_of(tenant, most)
            if names and keeping_of(names[0]) is Keeping.FOREIGN:
                return [transaction_record(name, None) for name in names]
            del self._tenants[tenant]
        return []
