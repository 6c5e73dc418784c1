"""A live tenant moves to another cell, and is deleted, while nodes of both cells and controllers die: nothing that was
acknowledged is lost on the way, whoever the controller is, and nothing is left in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.shard import CoordinatorRecord, Now
from kraft.image.metadata import MetadataImage
from kraft.topic_names import GROUP_TOPIC
from tests.sim import nemesis
from tests.sim.cluster import Cluster
from tests.sim.nemesis import Targets
from tests.sim.plan import FAULTS_MS, draw_plan
from tests.sim.tenants import BROKERS, EAST, GROUP, TENANT, TOPIC, WEST
from tests.sim.world import World, collect_dead, no_collection
from wire.messages import DeleteTenantRequest

pytestmark = pytest.mark.simulation

SEEDS = 6
DELETED_WITHIN_S = 15.0
AWAY_S = 1.5


@contextmanager
def two_cells(seed: int) -> Iterator[Cluster]:
    """Faults of the seed's own chance, on brokers of both cells and on controllers."""
    plan = replace(draw_plan(seed), brokers=BROKERS, tier=None, moves=False, partitions=3, tenant=True)
    names = plan.broker_names
    controller_names = [f"controller-{number}" for number in range(3)]
    targets = Targets(crashable=[*names, *controller_names], linked=[*names, *controller_names])
    plan = replace(plan, faults=tuple(nemesis.draw(World(seed).stream("plan"), targets, 0, FAULTS_MS)))
    with no_collection():
        cluster = Cluster(plan, keep_trace=True)
        try:
            with cluster.world.heard_logs():
                yield cluster
        finally:
            cluster.world.close()
            del cluster
            collect_dead()


def replicas(image: MetadataImage) -> set[int]:
    topic = image.topics.by_name[TOPIC]
    return {replica for partition in topic.partitions.values() for replica in partition.replicas}


def left_of_it(cluster: Cluster) -> str:
    image = cluster.watch.newest
    if TENANT in image.tenants:
        return "the tenant is still there"
    if TOPIC in image.topics.by_name:
        return "its topic is still there"
    return ""


def groups(cluster: Cluster) -> list[str]:
    """Those that the live coordinators know."""
    found: list[str] = []

    def look(shard: GroupShard, _now: Now) -> list[CoordinatorRecord]:
        found.extend([*shard.offsets.groups(), *shard.committed, *shard.groups])
        return []

    for name in cluster.brokers:
        program = cluster.world.nodes[name].program
        if program is not None:
            program.coordinators.runtime.notify(GROUP_TOPIC, look)
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_tenant_moves_under_faults_and_goes_without_a_trace(seed: int) -> None:
    with two_cells(seed) as cluster:
        world = cluster.world
        cluster.run()
        assert replicas(cluster.watch.newest) <= set(WEST)
        assert len(cluster.history.acknowledged) > 20
        assert not cluster.watch.newest.configs.topic(TOPIC).keys() & {"leader.replication.throttled.replicas"}
        assert GROUP in groups(cluster)
        topic = cluster.watch.newest.topics.by_name[GROUP_TOPIC]
        for held, cell in zip(topic.ranges, (EAST, WEST), strict=True):
            assert all(set(topic.partitions[index].replicas) <= set(cell) for index in range(held.first, held.end))
        for client in ("producer", "consumer", "members"):
            world.kill(client)
        cluster.watch._lossy = [TOPIC]
        cluster.asks("deleter", DeleteTenantRequest(tenant=TENANT))
        world.start("deleter")
        world.run_for(0.1 * (seed + 1))
        leader = cluster.watch.newest.leader_id
        victims = [name for name in cluster.controllers if name.endswith(str(leader - 1_000))]
        for name in victims:
            world.kill(name)
        world.run_for(AWAY_S)
        for name in victims:
            world.start(name)
        cluster.within(DELETED_WITHIN_S, lambda: left_of_it(cluster))
        assert GROUP not in groups(cluster)
