"""Faults that wait for their moment, for mistakes that a drawn fault meets too seldom."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.partitions.partition import Partition
from kraft.image.metadata import MetadataImage
from tests.sim.history import TopicPartition
from tests.sim.loop import MS, NS, SimLoop
from tests.sim.network import SimSocket
from tests.sim.world import World

ALTER_PARTITION = bytes((0, 56, 0, 3))  # api key and version, after a frame's length
HELD_NS = 2 * NS
DOWN_NS = 100 * MS
DEATHS_MAX = 4
DIES_CHANCE = 0.8
CUT_NS = 2_400 * MS
ALONE_NS = 2_500 * MS


class LateAlterPartition:
    """As a leader asks the controller to let a replica join the ISR, the request is held up in the network and the
    replica's broker loses power. It is back and registered before the request arrives, and cannot reach its leader."""

    def __init__(self, world: World, brokers: dict[str, int]) -> None:
        self._world = world
        self._names = {number: name for name, number in brokers.items()}
        self.sprung = False
        world.fabric.holds = self._hold

    def ran(self, loop: SimLoop) -> None:
        """After each callback of each node."""
        node = self._world.nodes[loop.name]
        if self.sprung or node.program is None or loop.name not in self._names.values():
            return
        for partition in getattr(node.program, "partitions", ()):
            if joining := self._joining(partition):
                self.sprung = True
                self._world.trace(f"AMBUSH {loop.name} lets {joining} join")
                self._world.power_off(joining)
                self._world.scheduler.after(DOWN_NS, self._world.start, joining)
                pairs = [(loop.name, joining), (joining, loop.name)]
                self._world.fabric.change_cut(pairs, 1)
                self._world.scheduler.after(CUT_NS, self._world.fabric.change_cut, pairs, -1)
                return

    def _joining(self, partition: Partition) -> str:
        replicas = partition.replica_set
        if replicas is None or replicas.proposal is None:
            return ""
        return next((self._names[broker] for broker in replicas.proposal.isr if broker not in replicas.isr), "")

    def _hold(self, socket: SimSocket, data: bytearray) -> int:
        """Nanoseconds of delay for what a connection sends."""
        if socket.loop.name in self._names.values() and ALTER_PARTITION in data:
            self._world.trace("an AlterPartition is held up")
            return HELD_NS
        return 0


class DeathsInRegistration:
    """Brokers that come back die when a controller has committed their registration: before they know of it, or a
    moment later. Some die so several times in a row."""

    def __init__(
        self, world: World, brokers: dict[str, int], image: Callable[[], MetadataImage], until_ns: int
    ) -> None:
        """`image` returns the newest committed metadata. No broker dies in this way after `until_ns`."""
        self._world, self._image, self._until_ns = world, image, until_ns
        self._names = {number: name for name, number in brokers.items()}
        self._random = world.stream("deaths in registration")
        self._known = {number: broker.epoch for number, broker in image().brokers.items()}
        self.left = DEATHS_MAX

    def ran(self, loop: SimLoop) -> None:
        """After each callback of each node."""
        if not self.left or self._world.scheduler.now_ns > self._until_ns:
            return
        for number, broker in self._image().brokers.items():
            if self._known.get(number) != broker.epoch:
                self._known[number] = broker.epoch
                self._registered(self._names[number])

    def _registered(self, name: str) -> None:
        if self._random.random() < DIES_CHANCE:
            self.left -= 1
            life = self._world.nodes[name].life_count
            wait_ns = self._random.choice((0, 0, 0, 2 * MS, 10 * MS))
            self._world.scheduler.after(wait_ns, self._die, name, life)

    def _die(self, name: str, life: int) -> None:
        if self._world.nodes[name].life_count == life:
            self._world.trace(f"AMBUSH {name} has registered")
            self._world.kill(name)
            self._world.scheduler.after(DOWN_NS, self._world.start, name)


class DivergingLeader:
    """A leader that only a stubborn client still reaches, and that goes on appending, while another one is elected
    and tiers what it commits. Then all others die, and the first one leads again: with a log that the tier contradicts.

    Only where unclean elections are allowed. `tier_end` is of the partition, as committed.
    """

    def __init__(
        self,
        world: World,
        brokers: Sequence[str],
        others: Sequence[str],
        key: TopicPartition,
        tier_end: Callable[[], int],
    ) -> None:
        """`others` are the controllers."""
        self._world, self._brokers, self._key, self._tier_end = world, list(brokers), key, tier_end
        self._controllers = list(others)
        self.first = ""  # the leader, once it is alone
        self._pairs: list[tuple[str, str]] = []
        self._cut_at = 0
        self.sprung = False

    def ran(self, loop: SimLoop) -> None:
        """After each callback of each node."""
        if loop.name not in self._brokers or self.sprung or self._world.nodes[loop.name].loop is not loop:
            return
        program = self._world.nodes[loop.name].program
        partition = program.partitions.get(*self._key) if program is not None else None
        if partition is None or not partition.is_leader:
            return
        if not self.first:
            if self._tier_end() > 0:
                self._isolate(loop.name, partition)
        elif loop.name == self.first and self._tier_end() > self._cut_at and self._is_behind(partition):
            self._spring()

    def _is_behind(self, partition: Partition) -> bool:
        return self._tier_end() < partition.log.log_end_offset

    def _isolate(self, name: str, partition: Partition) -> None:
        self.first, self._cut_at = name, partition.log.log_end_offset
        others = [node for node in (*self._brokers, *self._controllers) if node != name]
        self._pairs = [(name, node) for node in others] + [(node, name) for node in others]
        self._world.trace(f"AMBUSH {name} is alone, its log ends at {self._cut_at}")
        self._world.fabric.change_cut(self._pairs, 1)

    def _spring(self) -> None:
        self.sprung = True
        world = self._world
        world.trace(f"AMBUSH {self.first} is back and alone, the tier ends at {self._tier_end()}")
        for name in self._brokers:
            if name != self.first:
                world.kill(name)
                world.scheduler.after(ALONE_NS, world.start, name)
        world.fabric.change_cut(self._pairs, -1)
