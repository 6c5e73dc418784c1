"""Placement of new partitions' replicas: striped over racks and, within a rack, over brokers. No I/O.

Each partition begins one rack after the previous one, so leaders spread over racks and brokers; the brokers of a rack
are used in turn. After each full round the order is shuffled, because otherwise the load of a failed broker would
always go to the same ones. Fenced brokers, and those that are being emptied, are used only if there are too few others,
and never first.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from msgspec import Struct

from common.errors import ErrorCode, ProtocolError


class UsableBroker(Struct, frozen=True):
    broker_id: int
    rack: str | None
    fenced: bool


class ReplicaPlacer:
    """Places the partitions of any number of topics on the same brokers, each continuing after the one before."""

    def __init__(self, brokers: Iterable[UsableBroker], rng: random.Random) -> None:
        by_id = sorted(brokers, key=lambda broker: broker.broker_id)
        self._count = len(by_id)
        self._live = _Stripes([b for b in by_id if not b.fenced], rng)
        self._spare = _Stripes([b for b in by_id if b.fenced], rng)

    def place(self, partition_count: int, replication_factor: int) -> list[tuple[int, ...]]:
        """The replicas of each new partition, the preferred leader first.

        Raises INVALID_REPLICATION_FACTOR if there are not enough brokers, or all are fenced.
        """
        live, spare = self._live, self._spare
        if replication_factor > self._count:
            raise ProtocolError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Replication factor {replication_factor} is larger than the {self._count} registered brokers.",
            )
        if not live.broker_count:
            raise ProtocolError(ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced.")
        placed = []
        for _ in range(partition_count):
            replicas = live.take(min(replication_factor, live.broker_count), ())
            if len(replicas) < replication_factor:
                racks = tuple(broker.rack for broker in replicas)
                replicas += spare.take(replication_factor - len(replicas), racks)
            placed.append(tuple(broker.broker_id for broker in replicas))
        return placed


class _Stripes:
    """Racks and their brokers in random order; `take` begins one rack further each time."""

    def __init__(self, brokers: list[UsableBroker], rng: random.Random) -> None:
        by_rack: dict[str | None, list[UsableBroker]] = {}
        for broker in brokers:
            by_rack.setdefault(broker.rack, []).append(broker)
        self._racks = list(by_rack.values())
        self._random = rng
        self._round = len(self._racks) * max(map(len, self._racks), default=0)
        self._taken = 0
        self.broker_count = len(brokers)
        self._shuffle()

    def take(self, count: int, racks_used: tuple[str | None, ...]) -> list[UsableBroker]:
        """`count` different brokers, from different racks if possible; `racks_used` come last."""
        racks = self._racks
        first, lap = self._taken % len(racks), self._taken // len(racks)
        order = [racks[(first + i) % len(racks)] for i in range(len(racks))]
        if racks_used:
            order.sort(key=lambda rack: rack[0].rack in racks_used)
        self._taken += 1
        if self._taken >= self._round:
            self._taken = 0
            self._shuffle()
        found: list[UsableBroker] = []
        for depth in range(max(map(len, order))):
            for rack in order:
                if depth < len(rack) and len(found) < count:
                    found.append(rack[(lap + depth) % len(rack)])
        return found

    def _shuffle(self) -> None:
        # New lists: `take` may still walk over the old ones.
        self._racks = [self._random.sample(rack, len(rack)) for rack in self._racks]
        self._random.shuffle(self._racks)
