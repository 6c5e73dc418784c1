"""A cluster with a tier in which nothing happens does next to nothing, in whatever state it came to rest.

What asks again without a pause loses nothing, so that no invariant sees it; it costs a core. Virtual time makes the
count exact: each callback of a broker's loop within some seconds in which no client writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from common.ports import Ports
from kraft.image.partitions import PartitionImage
from kraft.topic_names import TIER_TOPIC
from tests.sim.client_links import ClusterLinks
from tests.sim.cluster import COMES_UP_S, Cluster
from tests.sim.cluster_settings import INTERNAL_PORT, MIN_INSYNC, broker_name
from tests.sim.loop import SimLoop
from tests.sim.network import SimSocket
from tests.sim.operator import Operator
from tests.sim.plan import TOPIC, Plan, TierPlan
from tests.sim.world import collect_dead, no_collection

pytestmark = pytest.mark.simulation

BROKERS = 4
FILLS_S = 6.0
RESTS_S = 3.0
MEASURED_S = 3.0
CALLBACKS_MAX = 500  # of one broker in a second: four times what an idle one has, with timeouts as short as here
# Of one leader to one follower in a second. Idle fetches wait 0.3 s, those that fail 0.06 s, and each of these ends the
# one that waits for the link's other partitions: two answers.
ANSWERS_MAX = 40


class Quiet:
    """A cluster whose topic lies in the tier for the most part, without clients."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.callbacks: Counter[str] = Counter()
        self.answers: Counter[tuple[str, str]] = Counter()  # of a leader to a follower
        self._sent_ns: dict[tuple[str, str], int] = {}
        assert self.world.fabric.holds is None
        self.world.fabric.holds = self._sent
        self._moves: list[tuple[tuple[str, int], list[int]]] = []
        self.world.add_node("mover", self._mover)
        self.world.watch(self._ran)

    def _ran(self, loop: SimLoop) -> None:
        self.callbacks[loop.name] += 1

    def _sent(self, socket: SimSocket, _: bytearray) -> int:
        """A broker answers what another asks over its internal listener, which are fetches but for a few. What it sends
        in one turn is one answer."""
        asking, (host, port), now_ns = socket.twin.loop.name, socket.twin.peer, socket.loop.now_ns()
        link = host, asking
        if (
            port == INTERNAL_PORT
            and {host, asking} <= self.cluster.brokers.keys()
            and self._sent_ns.get(link) != now_ns
        ):
            self._sent_ns[link] = now_ns
            self.answers[link] += 1
        return 0

    async def _mover(self, ports: Ports) -> None:
        cluster = self.cluster
        links = ClusterLinks(ports, cluster.bootstrap, cluster.history, "mover")
        operator = Operator(links, cluster.plan.topic_partitions, list(cluster.brokers.values()))
        while True:
            while self._moves and await operator._reassign(*self._moves[0]):
                del self._moves[0]
            await links.pause()

    def fill(self) -> None:
        clients = ("producer", "consumer", "members")
        for name in (*self.cluster.controllers, *self.cluster.brokers, *clients):
            self.world.start(name)
        self.cluster.within(COMES_UP_S, lambda: self.cluster._not_serving(0, 0))
        self.world.run_for(FILLS_S)
        self.cluster.history.stop_producing = True
        self.world.run_for(RESTS_S)
        for name in clients:
            self.world.kill(name)

    def image(self, topic: str = TOPIC, index: int = 0) -> PartitionImage:
        return self.cluster.watch.newest.topics.by_name[topic].partitions[index]

    def add_replicas(self, *, in_vain: bool = False) -> None:
        """Each partition gets the broker that has none of it in the place of its last replica; `in_vain`: it cannot
        begin there."""
        for partition in self.cluster.plan.topic_partitions:
            old = self.image(*partition).replicas
            self._moves.append((partition, [*old[:-1], *(b for b in range(BROKERS) if b not in old)]))
        self.world.start("mover")
        assert self.world.run_until(lambda: not self._moves and self.image().is_reassigning is in_vain, 10.0)
        self.world.kill("mover")

    @property
    def started_from_tier(self) -> int:
        programs = [self.world.nodes[name].program for name in self.cluster.brokers]
        return sum(program.tier.service.started_from_tier for program in programs if program is not None)

    @property
    def unclaimed(self) -> int:
        programs = [self.world.nodes[name].program for name in self.cluster.brokers]
        return sum(not led.reconciled for p in programs if p is not None for led in p.tier.service.led)

    def check(self) -> None:
        self.world.run_for(RESTS_S)
        self.callbacks.clear()
        self.answers.clear()
        self.world.run_for(MEASURED_S)
        running = [name for name in self.cluster.brokers if self.world.nodes[name].loop is not None]
        assert running
        for name in running:
            assert 0 < self.callbacks[name] / MEASURED_S < CALLBACKS_MAX, f"{name}: {self.callbacks}"
        assert self.answers
        for link, count in self.answers.items():
            assert count / MEASURED_S < ANSWERS_MAX, f"{link}: {self.answers}"


@contextmanager
def quiet(seed: int) -> Iterator[Quiet]:
    tier = TierPlan(segment_bytes=1_024, local_bytes=1_024, total_bytes=-1, chunk_bytes=700)
    with no_collection():
        plan = Plan(seed, BROKERS, 2, False, 4_096, False, False, 0.06, (), tier=tier)
        world = Quiet(Cluster(plan, keep_trace=True))
        try:
            with world.world.heard_logs():
                world.fill()
                yield world
        finally:
            world.world.close()
            del world
            collect_dead()


@pytest.mark.parametrize("seed", [1, 2])
def test_after_a_replica_began_from_the_tier_and_after_its_leader_died(seed: int) -> None:
    with quiet(seed) as world:
        world.check()
        world.add_replicas()
        assert world.started_from_tier > 0
        world.check()
        assert len(world.image().isr) == len(world.image().replicas)
        world.world.kill(broker_name(world.image().leader))
        world.check()
        assert world.image().leader >= 0


@pytest.mark.parametrize("seed", [1, 2])
def test_while_the_store_is_away_and_somebody_reads_history(seed: int) -> None:
    with quiet(seed) as world:
        world.cluster.bucket.faults.down = True
        world.check()
        world.world.start("historian")
        world.check()
        world.cluster.bucket.faults.down, world.cluster.bucket.slow = False, True
        world.check()
        world.cluster.bucket.slow, world.cluster.bucket.faults.denied = False, True
        world.add_replicas(in_vain=True)
        world.check()


@pytest.mark.parametrize("seed", [2, 4])
def test_while_claims_are_not_answered(seed: int) -> None:
    """The tier's state has too few replicas left to take the claim of a partition's new leader.

    In these seeds the two brokers that are left have a partition in common, so that one fetches from the other.
    """
    with quiet(seed) as world:
        state = world.image(TIER_TOPIC)
        leaders = {world.image(*partition).leader for partition in world.cluster.plan.topic_partitions}
        doomed = sorted(state.replicas, key=leaders.__contains__, reverse=True)[: len(state.replicas) - MIN_INSYNC + 1]
        assert leaders.intersection(doomed)
        for broker in doomed:
            world.world.kill(broker_name(broker))
        world.check()
        assert world.unclaimed > 0
