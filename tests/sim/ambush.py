"""Faults that wait for their moment, for mistakes that a drawn fault meets too seldom."""

from __future__ import annotations

from broker.partitions.partition import Partition
from tests.sim.loop import MS, NS, SimLoop
from tests.sim.network import SimSocket
from tests.sim.world import World

ALTER_PARTITION = bytes((0, 56, 0, 3))  # api key and version, after a frame's length
HELD_NS = 2 * NS
DOWN_NS = 100 * MS
CUT_NS = 2_400 * MS


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
