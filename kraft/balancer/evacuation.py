"""New places for the replicas of a broker that is being emptied. No I/O.

Each replica is replaced at its position in the list, so that preferred leaders are replaced by preferred leaders. The
new broker is a live one without a replica of the partition: in a rack without one if possible, and among those the one
with the fewest replicas. A tenant's replicas stay in the tenant's cell, and those of a cell's range of an internal
topic in that cell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kraft.image.tenants import tenant_of


class PlacedPartition(NamedTuple):
    """A partition and its replicas, the preferred leader first."""

    topic: str
    partition: int
    replicas: tuple[int, ...]


@dataclass(slots=True)
class Room:
    """A broker that may take replicas; `replica_count`: its current number."""

    broker_id: int
    rack: str | None
    replica_count: int

    def take_replica(self) -> None:
        self.replica_count += 1


class NoRoom(Exception):
    """A partition has a replica on every eligible broker; the text names it."""


class Evacuation:
    """Plans the moves off `leaving`; each planned move counts for the next ones."""

    def __init__(
        self,
        leaving: int,
        rooms: Iterable[Room],
        racks: dict[int, str | None],
        homes: Mapping[str, Collection[int]] | None = None,
        ranges: Mapping[tuple[str, int], Collection[int]] | None = None,
    ) -> None:
        """`racks`: of all brokers; `rooms`: brokers that may take replicas; `homes`: by tenant id, the only brokers for
        its topics; `ranges`: the brokers for a partition in a cell's range."""
        self._homes = homes or {}
        self._ranges = ranges or {}
        self._leaving = leaving
        self._rooms = {room.broker_id: room for room in rooms if room.broker_id != leaving}
        self._racks = racks

    def check(self, partitions: Iterable[PlacedPartition]) -> None:
        """Raises NoRoom unless every partition finds a place."""
        for partition in partitions:
            self._choose(partition)

    def plan(self, partitions: Sequence[PlacedPartition]) -> list[PlacedPartition]:
        """The partitions with their new replicas. Raises NoRoom."""
        moved = []
        for partition in partitions:
            room = self._choose(partition)
            room.take_replica()
            replicas = tuple(room.broker_id if r == self._leaving else r for r in partition.replicas)
            moved.append(partition._replace(replicas=replicas))
        return moved

    def _choose(self, partition: PlacedPartition) -> Room:
        stays = [replica for replica in partition.replicas if replica != self._leaving]
        used = {self._racks.get(replica) for replica in stays}
        rooms = [room for room in self._rooms.values() if room.broker_id not in stays]
        home = self._homes.get(tenant_of(partition.topic) or "")
        owned = self._ranges.get((partition.topic, partition.partition))
        name = f"{partition.topic}-{partition.partition}"
        if rooms and home is not None:
            rooms = [room for room in rooms if room.broker_id in home]
            if not rooms:
                raise NoRoom(f"{name} is a tenant's, and there is no other broker in its cell to take a replica")
        if rooms and owned is not None:
            rooms = [room for room in rooms if room.broker_id in owned]
            if not rooms:
                raise NoRoom(f"{name} is a cell's, and there is no other broker in its cell to take a replica")
        if not rooms:
            raise NoRoom(f"{name} has {len(partition.replicas)} replicas, and there is no other broker to take one")
        return min(rooms, key=lambda room: (room.rack in used, room.replica_count, room.broker_id))
