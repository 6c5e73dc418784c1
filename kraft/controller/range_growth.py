"""Adds replicas to partitions that were created when there were too few brokers. No I/O."""

from __future__ import annotations

from collections import Counter

from kraft.controller.placement import UsableBroker
from kraft.image.partitions import PartitionImage
from kraft.image.topics import TopicImage


class RangeGrowth:
    """For one range's partitions, on its cell's `brokers`: up to `factor` replicas, or the number of live brokers."""

    def __init__(self, topic: TopicImage, brokers: list[UsableBroker], factor: int) -> None:
        self._live = {broker.broker_id: broker for broker in brokers if not broker.fenced}
        self._racks = {broker.broker_id: broker.rack for broker in brokers}
        self._count = min(factor, len(self._live))
        self._held = Counter(r for partition in topic.partitions.values() for r in partition.replicas)
        self._led = Counter(partition.replicas[0] for partition in topic.partitions.values() if partition.replicas)

    def is_short(self, partition: PartitionImage) -> bool:
        return partition.settled_replica_count < self._count

    def replicas(self, partition: PartitionImage) -> tuple[int, ...]:
        """The current replicas plus new ones, in new racks first, then where the fewest are. The preferred leader
        becomes the live replica that leads the fewest partitions."""
        replicas = list(partition.replicas)
        racks = Counter(self._racks.get(replica) for replica in replicas)
        while len(replicas) < self._count and (others := [b for b in self._live if b not in replicas]):
            found = min(others, key=lambda b: (racks[self._racks[b]], self._held[b], b))
            replicas.append(found)
            racks[self._racks[found]] += 1
            self._held[found] += 1
        leading = min(replicas, key=lambda b: (b not in self._live, self._led[b], replicas.index(b)))
        self._led[partition.replicas[0]] -= 1
        self._led[leading] += 1
        return (leading, *(replica for replica in replicas if replica != leading))
