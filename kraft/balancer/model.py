"""The cluster as the balancer sees it: brokers, partitions, what each replica costs its broker. Immutable. No I/O.

Partitions are numbered in the order of their keys, replicas in the order of partitions, brokers ("slots") in the order
of their ids, so that the order in which anything was learned does not matter. All that there is once per partition or
replica is in arrays, because there may be hundreds of thousands.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct

from common.invariants import check
from kraft.balancer.load_shares import WEIGHTS
from kraft.image.partition_index import PartitionKey

ANYWHERE = -1
"""In `home`: a partition that belongs to no cell."""
NO_SLOT = -1


class Standing(IntEnum):
    """What the balancer may do with a broker."""

    LIVE = 0  # gives and takes
    CLOSED = 1  # gives only, for hard goals: it is cordoned, or its disk is full
    APART = 2  # neither: it is fenced, shuts down, is unhealthy or excluded
    LEAVING = 3  # gives everything: it is being emptied


class ModelBroker(Struct, frozen=True):
    """`disk_used` includes files that are no replicas. `in_capacity`, `out_capacity`: bytes a second. Zero capacities
    and sizes are unknown, and bound nothing. `load`: from 0 to 1; None while unknown."""

    broker_id: int
    cell: str
    rack: str | None = None
    standing: Standing = Standing.LIVE
    disk_size: int = 0
    disk_used: int = 0
    in_capacity: float = 0.0
    out_capacity: float = 0.0
    replicas_max: int = 0
    load: float | None = None


class LoadWeights(Struct, frozen=True):
    """CPU seconds of a broker for a byte: that a leader takes from clients, that a follower copies, that a leader sends
    to clients. They only divide a broker's measured load among its replicas, so their ratios count.

    A leader's are the measured ones of `kraft.balancer.load_shares`. A follower's is assumed, not measured: half of
    what a leader takes for a byte, since it has neither clients nor requests to check.
    """

    leader_in: float = WEIGHTS.byte_in
    follower_in: float = WEIGHTS.byte_in / 2
    out: float = WEIGHTS.byte_out


class ModelPartition(Struct, frozen=True):
    """One partition, for `ModelBuilder.add`. `replicas`: broker ids, the preferred leader first; `local_bytes`: of each
    of them, which is what a copy costs: bytes in the object store are not copied.

    `leader`: -1 for none. Rates are clients' bytes a second. `cell`: where its replicas belong; None for anywhere.
    `stays`: it must not be moved, such as one that is being reassigned.
    """

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    leader: int
    in_sync: tuple[int, ...]
    in_rate: float = 0.0
    out_rate: float = 0.0
    local_bytes: tuple[float, ...] = ()
    cell: str | None = None
    stays: bool = False


class ClusterModel:
    """Arrays by partition: `topic` (number), `index`, `in_rate`, `out_rate` (all that its leader sends, replication
    included), `leader_cost` and `follower_cost` (CPU seconds a second), `home` (number of its cell), `stays`, `leader`
    (slot). By replica: `holder` (slot), `size` (local bytes), `in_sync`. The replicas of partition p are numbers
    `first[p]` to `first[p + 1]`.

    By slot: `brokers`, `cell_of` (number). `cells`: names by number.
    """

    __slots__ = (
        "brokers",
        "cell_of",
        "cells",
        "first",
        "follower_cost",
        "holder",
        "home",
        "in_rate",
        "in_sync",
        "index",
        "leader",
        "leader_cost",
        "out_rate",
        "size",
        "slots",
        "stays",
        "topic",
        "topic_ids",
    )

    def __init__(self, brokers: Sequence[ModelBroker]) -> None:
        self.brokers = sorted(brokers, key=lambda broker: broker.broker_id)
        self.slots = {broker.broker_id: slot for slot, broker in enumerate(self.brokers)}
        self.cells = sorted({broker.cell for broker in brokers})
        self.cell_of = [self.cells.index(broker.cell) for broker in self.brokers]
        self.topic_ids: list[bytes] = []
        self.topic = array("i")
        self.index = array("i")
        self.in_rate = array("d")
        self.out_rate = array("d")
        self.leader_cost = array("d")
        self.follower_cost = array("d")
        self.home = array("h")
        self.stays = bytearray()
        self.leader = array("h")
        self.first = array("i", [0])
        self.holder = array("h")
        self.size = array("d")
        self.in_sync = bytearray()

    @property
    def partition_count(self) -> int:
        return len(self.index)

    @property
    def replica_count(self) -> int:
        return len(self.holder)

    def key(self, partition: int) -> PartitionKey:
        """(topic id, index) of the partition with that number."""
        return self.topic_ids[self.topic[partition]], self.index[partition]


class ModelBuilder:
    """Makes one model. Add partitions in the order of their keys. Replicas on unknown brokers are left out, and their
    partition stays where it is."""

    def __init__(self, brokers: Sequence[ModelBroker], weights: LoadWeights | None = None) -> None:
        self.model = ClusterModel(brokers)
        self._weights = LoadWeights() if weights is None else weights
        self._cells = {name: number for number, name in enumerate(self.model.cells)}

    def add(self, partition: ModelPartition) -> int:
        """Add a partition and return its number. Rates may be set later, with `set_rates`."""
        model = self.model
        ids, slots = model.topic_ids, model.slots
        if not ids or ids[-1] != partition.topic_id:
            check(not ids or ids[-1] < partition.topic_id, "topics are added in the order of their ids")
            ids.append(partition.topic_id)
        number = len(model.index)
        stays = partition.stays or partition.leader not in slots
        sizes = partition.local_bytes or (0.0,) * len(partition.replicas)
        in_sync = partition.in_sync
        for broker_id, size in zip(partition.replicas, sizes, strict=True):
            slot = slots.get(broker_id, NO_SLOT)
            if slot == NO_SLOT:
                stays = True
                continue
            model.holder.append(slot)
            model.size.append(size)
            model.in_sync.append(broker_id in in_sync)
        home = ANYWHERE if partition.cell is None else self._cells.get(partition.cell, NO_SLOT)
        model.topic.append(len(ids) - 1)
        model.index.append(partition.partition)
        model.home.append(home)
        model.stays.append(stays or (partition.cell is not None and partition.cell not in self._cells))
        model.leader.append(slots.get(partition.leader, NO_SLOT))
        model.first.append(len(model.holder))
        model.in_rate.append(0.0)
        model.out_rate.append(0.0)
        model.leader_cost.append(0.0)
        model.follower_cost.append(0.0)
        self.set_rates(number, partition.in_rate, partition.out_rate)
        return number

    def set_rates(self, number: int, in_rate: float, out_rate: float) -> None:
        """Clients' bytes a second of a partition that was added."""
        model, weights = self.model, self._weights
        copies = model.first[number + 1] - model.first[number] - 1
        model.in_rate[number] = in_rate
        model.out_rate[number] = out_rate + max(copies, 0) * in_rate
        model.follower_cost[number] = follower = weights.follower_in * in_rate
        model.leader_cost[number] = max(weights.leader_in * in_rate + weights.out * out_rate, follower)


def model_of(
    brokers: Sequence[ModelBroker], partitions: Sequence[ModelPartition], weights: LoadWeights | None = None
) -> ClusterModel:
    """The model of brokers and partitions in any order: what-if questions and tests ask with it."""
    builder = ModelBuilder(brokers, weights)
    for partition in sorted(partitions, key=lambda one: (one.topic_id, one.partition)):
        builder.add(partition)
    return builder.model
