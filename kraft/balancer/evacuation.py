"""New places for the replicas of a broker that is being emptied. No I/O.

Each replica is replaced at its position in the list, so that preferred leaders are replaced by preferred leaders. The
new broker is a live one without a replica of the partition: in a rack without one if possible, and among those the one
with the fewest replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


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

    def __init__(self, leaving: int, rooms: Iterable[Room], racks: dict[int, str | None]) -> None:
        """`racks`: of all brokers; `rooms`: brokers that may take replicas."""
        self._leaving = leaving
        self._rooms = {room.broker_id: room for room in rooms if room.broker_id != leaving}
        self._racks = racks

    def check(self, partitions: Iterable[PlacedPartition], allowed: Collection[int] | None = None) -> None:
        """Raises NoRoom unless every partition finds a place. `allowed`: as for `plan`."""
        for partition in partitions:
            self._choose(partition, allowed)

    def plan(
        self, partitions: Sequence[PlacedPartition], allowed: Collection[int] | None = None
    ) -> list[PlacedPartition]:
        """The partitions with their new replicas. `allowed`: the only brokers for them, of the cell in which they
        belong; None for any. Raises NoRoom."""
        moved = []
        for partition in partitions:
            room = self._choose(partition, allowed)
            room.take_replica()
            replicas = tuple(room.broker_id if r == self._leaving else r for r in partition.replicas)
            moved.append(partition._replace(replicas=replicas))
        return moved

    def _choose(self, partition: PlacedPartition, allowed: Collection[int] | None) -> Room:
        stays = [replica for replica in partition.replicas if replica != self._leaving]
        used = {self._racks.get(replica) for replica in stays}
        rooms = [room for room in self._rooms.values() if room.broker_id not in stays]
        name = f"{partition.topic}-{partition.partition}"
        if not rooms:
            raise NoRoom(f"{name} has {len(partition.replicas)} replicas, and there is no other broker to take one")
        if allowed is not None:
            rooms = [room for room in rooms if room.broker_id in allowed]
            if not rooms:
                raise NoRoom(f"{name} belongs in a cell, and there is no other broker in its cell to take a replica")
        return min(rooms, key=lambda room: (room.rack in used, room.replica_count, room.broker_id))
