"""The removal of deleted tenants' transactional ids from a shard, some at a time: what is ongoing is aborted first.

An id whose markers are under way waits, and a stuck partition may leave many of them. So a step looks at a bounded
number of ids, and the next one goes on where it has stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from broker.coordination.groups.tenant_index import ByTenant
from broker.coordination.shard import CoordinatorRecord, Now
from broker.coordination.transactions.config import TransactionConfig
from broker.coordination.transactions.values import Transaction
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from kraft.image.tenants import tenant_of

LOOKS_AT_ONCE = 1_000  # 5 ms


class Removals:
    """`removal_of(transactional_id, now)`: the next record towards the removal of an id; None while it must wait."""

    def __init__(
        self,
        config: TransactionConfig,
        committed: ByTenant[bytes],
        open_: ByTenant[Transaction | None],
        removal_of: Callable[[str, Now], CoordinatorRecord | None],
    ) -> None:
        self._config = config
        self._committed = committed
        self._open = open_
        self._removal_of = removal_of
        self._left: dict[str, deque[str]] = {}  # by prefix: ids that are yet to be looked at

    def step(self, prefixes: tuple[str, ...], most: int, now: Now) -> Decision[CoordinatorRecord, int]:
        """See `TransactionShard.remove_ids`."""
        records: list[CoordinatorRecord] = []
        partitions = 0
        for looks, name in enumerate(self._names(prefixes, records), 1):
            record = self._removal_of(name, now) if name in self._committed else None
            if record is not None:
                records.append(record)
                held = self._open.get(name)
                partitions += 0 if held is None else held.partition_count
            if len(records) >= most or partitions >= self._config.partitions_per_turn_max or looks >= LOOKS_AT_ONCE:
                break
        if not records and any(self._committed.count(tenant_of(prefix)) for prefix in prefixes):
            raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS, "transactions of a deleted tenant end first")
        return Decision(len(records), records)

    def _names(self, prefixes: tuple[str, ...], records: list[CoordinatorRecord]) -> Iterator[str]:
        """The ids that are left, and then all, unless there are records by then: no id may get two."""
        for prefix in prefixes:
            yield from self._take(prefix)
            if not records and self._committed.count(tenant_of(prefix)):
                self._left[prefix] = deque(self._committed.with_prefix(prefix))
                yield from self._take(prefix)

    def _take(self, prefix: str) -> Iterator[str]:
        left = self._left.get(prefix)
        while left:
            name = left.popleft()
            if not left:
                del self._left[prefix]
            yield name
