"""Where replicas and leaderships are while a plan is made, and what that adds up to on each broker. No I/O.

Sums are kept per broker and changed with each move, so that judging a move costs the same however many partitions
there are.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterator, Sequence

from common.pacing import Work
from kraft.balancer.fairness import RackShare, fair_values
from kraft.balancer.model import ANYWHERE, NO_SLOT, ClusterModel, Standing

REPLICAS, DISK, NET_IN, NET_OUT, LOAD, LEADERS, LEADER_BYTES = range(7)
"""What is summed per broker: replicas, local bytes, bytes in and out a second with replication, CPU seconds a second
by the weights, leaders, and clients' bytes to leaders."""
MEASURES = 7
AT_ONCE, PARTITION_COST = 100, 6  # partitions summed between two yields; cost of each in units of `common.pacing`
SPEED_SPREAD = 4.0  # a broker counts as at most so much faster or slower than the median
FULLNESS = (REPLICAS, DISK, NET_IN, NET_OUT, LOAD)
LOAD_SEEN = 1e-6  # CPU seconds a second; of a broker with less nothing is learned about its speed

Amounts = tuple[float, float, float, float, float, float, float]
"""What a move takes from one broker and gives to another, by measure."""


class Layout:
    """A model's replicas as planned so far. Make it with `layout_of`.

    `amounts[measure][slot]`: sums; `sizes[measure][slot]`: what a broker of that measure is divided by to compare it
    with others. `live[cell]`: slots of brokers that give and take. `held[slot]`: numbers of the replicas that were
    there in the beginning; `topic_counts[topic * slots + slot]`: replicas of the topic there. `moved`: by partition.
    """

    def __init__(self, model: ClusterModel) -> None:
        count = len(model.brokers)
        self.model = model
        self.slot_count = count
        self.holder = array("h", model.holder)
        self.leader = array("h", model.leader)
        self.partition_of = array("i", bytes(4 * model.replica_count))
        self.moved = bytearray(model.partition_count)
        self.amounts: list[list[float]] = [[0.0] * count for _ in range(MEASURES)]
        self.sizes: list[list[float]] = [[1.0] * count for _ in range(MEASURES)]
        self.held: list[array[int]] = [array("i") for _ in range(count)]
        self.topic_counts = array("i", bytes(4 * count * len(model.topic_ids)))
        self.standing = [broker.standing for broker in model.brokers]
        self.live: list[list[int]] = [[] for _ in model.cells]
        for slot, cell in enumerate(model.cell_of):
            if self.standing[slot] is Standing.LIVE:
                self.live[cell].append(slot)
        racks = sorted({broker.rack or "" for broker in model.brokers})
        self.rack = [racks.index(broker.rack or "") for broker in model.brokers]
        self.racks = [sorted({self.rack[slot] for slot in live}) for live in self.live]
        self._racks_by_home = {cell: len(racks) for cell, racks in enumerate(self.racks)}
        self._racks_by_home[ANYWHERE] = len({self.rack[slot] for live in self.live for slot in live})
        self._rack_least = [[0.0] * len(model.cells) for _ in range(MEASURES)]
        self._rack_most = [[0.0] * len(model.cells) for _ in range(MEASURES)]
        self._fair: dict[int, list[float]] = {}
        self._fullness: list[float | None] = [None] * count

    # what a move would change --------------------------------------------------------------------------------

    def copy_amounts(self, replica: int) -> Amounts:
        """What moves with a replica, and with its leadership if it leads."""
        model, partition = self.model, self.partition_of[replica]
        in_rate = model.in_rate[partition]
        if self.leader[partition] == self.holder[replica]:
            return (
                1.0,
                model.size[replica],
                in_rate,
                model.out_rate[partition],
                model.leader_cost[partition],
                1.0,
                in_rate,
            )
        return 1.0, model.size[replica], in_rate, 0.0, model.follower_cost[partition], 0.0, 0.0

    def leader_amounts(self, partition: int) -> Amounts:
        """What moves with a leadership alone."""
        model = self.model
        cost = model.leader_cost[partition] - model.follower_cost[partition]
        return 0.0, 0.0, 0.0, model.out_rate[partition], cost, 1.0, model.in_rate[partition]

    def replicas_of(self, partition: int) -> range:
        first = self.model.first
        return range(first[partition], first[partition + 1])

    def holders(self, partition: int) -> Sequence[int]:
        first = self.model.first
        return self.holder[first[partition] : first[partition + 1]]

    # moves -----------------------------------------------------------------------------------------------------

    def move_replica(self, replica: int, target: int, amounts: Amounts) -> None:
        """Put a replica on another broker; `amounts` are those of `copy_amounts`."""
        partition, source = self.partition_of[replica], self.holder[replica]
        leaves_cell = self.model.cell_of[source] != self.model.cell_of[target]
        if leaves_cell:
            self.count_for_racks(partition, -1)
        self.holder[replica] = target
        if leaves_cell:
            self.count_for_racks(partition)
        if self.leader[partition] == source:
            self.leader[partition] = target
        row = self.model.topic[partition] * self.slot_count
        self.topic_counts[row + source] -= 1
        self.topic_counts[row + target] += 1
        self._shift(source, target, amounts)

    def move_leader(self, partition: int, target: int, amounts: Amounts) -> None:
        source = self.leader[partition]
        self.leader[partition] = target
        self._shift(source, target, amounts)

    def _shift(self, source: int, target: int, amounts: Amounts) -> None:
        for sums, amount in zip(self.amounts, amounts, strict=True):
            sums[source] -= amount
            sums[target] += amount
        self._fullness[source] = self._fullness[target] = None
        if self.standing[source] is not Standing.LIVE or self.model.cell_of[source] != self.model.cell_of[target]:
            self._fair.clear()

    # values ----------------------------------------------------------------------------------------------------

    def value(self, measure: int, slot: int) -> float:
        """The broker's sum in relation to its size."""
        return self.amounts[measure][slot] / self.sizes[measure][slot]

    def fair(self, measure: int) -> list[float]:
        """By slot: the value of a live broker if those of its cell were as alike as racks allow; else 0. Moves within
        cells do not change it."""
        known = self._fair.get(measure)
        if known is not None:
            return known
        fair, sums, sizes = [0.0] * self.slot_count, self.amounts[measure], self.sizes[measure]
        for cell, live in enumerate(self.live):
            by_rack: dict[int, float] = dict.fromkeys(self.racks[cell], 0.0)
            for slot in live:
                by_rack[self.rack[slot]] += sizes[slot]
            least, most = (self._rack_least[measure][cell], self._rack_most[measure][cell])
            if len(by_rack) < 2:
                least, most = 0.0, math.inf
            shares = [RackShare(size, least, most) for size in by_rack.values()]
            values = dict(zip(by_rack, fair_values(sum([sums[slot] for slot in live]), shares), strict=True))
            for slot in live:
                fair[slot] = values[self.rack[slot]]
        self._fair[measure] = fair
        return fair

    def count_for_racks(self, partition: int, sign: int = 1) -> None:
        """Add a partition to what each rack of its cells has at least and at most: at most one replica, if there are
        enough racks, and at least one, if there are only just enough. A `sign` of -1 takes it away again."""
        model = self.model
        cells = [model.cell_of[slot] for slot in self.holders(partition)]
        size = model.size[model.first[partition]]
        in_rate, out_rate = model.in_rate[partition], model.out_rate[partition]
        follower, leader = model.follower_cost[partition], model.leader_cost[partition]
        for cell in dict.fromkeys(cells):
            copies, racks = cells.count(cell), len(self.racks[cell])
            times = 1 if copies <= racks else copies
            most = (1.0, size, in_rate, out_rate, leader, 1.0, in_rate)
            for sums, amount in zip(self._rack_most, most, strict=True):
                sums[cell] += sign * times * amount
            if copies >= racks:
                least = (1.0, size, in_rate, 0.0, follower, 0.0, 0.0)
                for sums, amount in zip(self._rack_least, least, strict=True):
                    sums[cell] += sign * amount

    def fullness(self, slot: int) -> float:
        """The largest value of a broker in relation to what is fair; new replicas go to where it is smallest."""
        known = self._fullness[slot]
        if known is not None:
            return known
        largest = 0.0
        for measure in FULLNESS:
            fair = self.fair(measure)[slot]
            if fair > 0:
                largest = max(largest, self.amounts[measure][slot] / self.sizes[measure][slot] / fair)
        self._fullness[slot] = largest
        return largest

    # racks and cells -------------------------------------------------------------------------------------------

    def rack_excess(self, partition: int, source: int = NO_SLOT, target: int = NO_SLOT) -> int:
        """How many replicas more than necessary share a rack, if the one on `source` were on `target`."""
        racks = {self.rack[target if slot == source else slot] for slot in self.holders(partition)}
        count = len(self.replicas_of(partition))
        possible = min(count, self._racks_by_home[self.model.home[partition]])
        return max(possible - len(racks), 0)

    def are_racks_enough(self, partition: int) -> bool:
        """Whether each of its replicas may have a rack of its own."""
        first = self.model.first
        return first[partition + 1] - first[partition] <= self._racks_by_home[self.model.home[partition]]

    def is_home(self, partition: int, slot: int) -> bool:
        home = self.model.home[partition]
        return home in (ANYWHERE, self.model.cell_of[slot])

    def live_for(self, partition: int) -> Iterator[int]:
        """Brokers that may take a replica of the partition, those of its own cell alone if it has one."""
        home = self.model.home[partition]
        if home != ANYWHERE:
            yield from self.live[home]
        else:
            for live in self.live:
                yield from live

    def may_move(self, partition: int) -> bool:
        return not self.model.stays[partition] and not self.moved[partition]


def layout_of(model: ClusterModel, unheard: Collection[int] = ()) -> Work[Layout]:
    """The layout in the beginning. What the brokers `unheard` report of their loads does not count."""
    layout = Layout(model)
    counts, slot_count = layout.topic_counts, layout.slot_count
    has_racks = any(len(racks) > 1 for racks in layout.racks)
    replicas, disk, net_in, net_out, load, leaders, leader_bytes = layout.amounts
    for partition in range(model.partition_count):
        leader, in_rate = model.leader[partition], model.in_rate[partition]
        row, follower_cost = model.topic[partition] * slot_count, model.follower_cost[partition]
        for replica in range(model.first[partition], model.first[partition + 1]):
            slot = model.holder[replica]
            layout.partition_of[replica] = partition
            layout.held[slot].append(replica)
            counts[row + slot] += 1
            replicas[slot] += 1
            disk[slot] += model.size[replica]
            net_in[slot] += in_rate
            load[slot] += follower_cost
        if leader != NO_SLOT:
            net_out[leader] += model.out_rate[partition]
            load[leader] += model.leader_cost[partition] - follower_cost
            leaders[leader] += 1
            leader_bytes[leader] += in_rate
        if has_racks:
            layout.count_for_racks(partition)
        if partition % AT_ONCE == 0:
            yield AT_ONCE * PARTITION_COST
    _take_reports(layout, [None if one.broker_id in unheard else one.load for one in model.brokers])
    return layout


def _take_reports(layout: Layout, loads: Sequence[float | None]) -> None:
    """Add what brokers report of themselves: other files on their disks, and the load that their replicas make.

    A broker's speed is the load that it reports for the CPU seconds that its replicas should take. So one that is
    slower than others gets less.
    """
    brokers = layout.model.brokers
    disk, load = layout.amounts[DISK], layout.amounts[LOAD]
    all_sizes_known = all(b.disk_size > 0 for b in brokers if b.standing is Standing.LIVE)
    ratios = sorted(
        reported / load[slot] for slot, reported in enumerate(loads) if reported is not None and load[slot] > LOAD_SEEN
    )
    median = ratios[len(ratios) // 2] if ratios else 1.0
    median = median if median > 0 else 1.0
    for slot, (broker, reported) in enumerate(zip(brokers, loads, strict=True)):
        if all_sizes_known and broker.disk_size > 0:  # else replicas alone are compared, which all brokers have
            disk[slot] = max(disk[slot], float(broker.disk_used))
            layout.sizes[DISK][slot] = float(broker.disk_size)
        ratio = median
        if reported is not None:
            if load[slot] > LOAD_SEEN:
                ratio = min(max(reported / load[slot], median / SPEED_SPREAD), median * SPEED_SPREAD)
            load[slot] = max(reported / ratio, 0.0)
        layout.sizes[LOAD][slot] = 1.0 / ratio
