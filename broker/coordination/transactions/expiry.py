"""Which transactional ids may have expired, or are left from a move, without a walk over all of them.

Ids are in buckets by the time of their last change, as it was when they were put there. When a bucket is due, each of
its ids is looked at, and put into a later one if it has changed since. So an id costs one look per expiration time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from broker.coordination.groups.tenant_index import ByTenant
from broker.coordination.shard import CoordinatorRecord
from broker.coordination.transactions.config import TransactionConfig
from broker.coordination.transactions.records import transaction_record, updated_ms_of
from kraft.image.key_ranges import Keeping

LOOKS_PER_REMOVAL = 4  # half of them may be at the ends of buckets


class ExpiryBuckets:
    """An id is in a bucket until the bucket is due, or until it is found removed. One that is removed and made again
    may be in two, which become one when both are due."""

    __slots__ = ("_buckets", "_is_known", "_swept", "_to_sweep", "_width_ms")

    def __init__(self, width_ms: int, is_known: Callable[[str], bool]) -> None:
        """`is_known`: whether an id exists."""
        self._width_ms = width_ms
        self._is_known = is_known
        self._buckets: dict[int, list[str]] = {}
        self._to_sweep: deque[int] = deque()  # buckets that are still to be looked through, the first one in part
        self._swept = 0  # ids of the first one

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, transactional_id: str, updated_ms: int) -> None:
        self._buckets.setdefault(updated_ms // self._width_ms, []).append(transactional_id)

    def removed(self) -> None:
        """An id was removed: look through a little of all buckets, in turn, and drop the removed ones. So there are at
        most about as many of those as of the others, also where no bucket is taken, as in a standby."""
        for _ in range(LOOKS_PER_REMOVAL):
            if not self._to_sweep:
                self._to_sweep.extend(self._buckets)
                self._swept = 0
            if not self._to_sweep:
                return
            number = self._to_sweep[0]
            ids = self._buckets.get(number, [])
            if self._swept >= len(ids):
                self._to_sweep.popleft()
                self._swept = 0
            elif self._is_known(ids[self._swept]):
                self._swept += 1
            else:
                ids[self._swept] = ids[-1]
                ids.pop()
                if not ids:
                    del self._buckets[number]

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


class IdExpiry:
    """Removes the ids of a shard that have had no transaction for the expiration time, and those that another partition
    has by now. `is_open`: whether an id has a transaction."""

    def __init__(
        self,
        config: TransactionConfig,
        committed: ByTenant[bytes],
        is_open: Callable[[str], bool],
        keeping_of: Callable[[str], Keeping],
    ) -> None:
        self._config = config
        self._committed = committed
        self._is_open = is_open
        self._keeping_of = keeping_of
        self._leftovers = Leftovers(committed)
        self._buckets = ExpiryBuckets(config.expired_ids_interval_ms, committed.__contains__)

    def added(self, transactional_id: str, updated_ms: int) -> None:
        """There is an id, and its record was written then; 0 for one with a transaction."""
        self._buckets.add(transactional_id, updated_ms)

    def removed(self) -> None:
        """An id was removed."""
        self._buckets.removed()

    def may_have_left(self, tenants: Iterable[str]) -> None:
        """Another partition may have the ids of these tenants."""
        self._leftovers.add(tenants)

    def due(self, now_ms: int) -> tuple[list[CoordinatorRecord], bool]:
        """The next removals, and whether there may be more at once."""
        cutoff_ms = now_ms - self._config.id_expiration_ms
        records = self._leftovers.removals(self._keeping_of, self._config.ids_per_turn_max)
        for transactional_id in self._buckets.take_until(cutoff_ms, self._config.ids_per_turn_max):
            value = self._committed.get(transactional_id)
            if value is None:
                continue
            keeping = self._keeping_of(transactional_id)
            updated_ms = now_ms if self._is_open(transactional_id) else updated_ms_of(value)
            if keeping is Keeping.FOREIGN or (keeping is Keeping.SERVED and updated_ms <= cutoff_ms):
                records.append(transaction_record(transactional_id, None))
            self._buckets.add(transactional_id, max(updated_ms, cutoff_ms))  # the log may reject the record
        return records, bool(self._leftovers) or self._buckets.is_due(cutoff_ms)
