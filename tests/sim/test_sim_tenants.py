"""A live tenant moves to another cell, and is deleted, while nodes of both cells and controllers die: nothing that was
acknowledged is lost on the way, whoever the controller is, and nothing is left in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from broker.config import BrokerConfig
from common.errors import ErrorCode
from common.ports import Ports
from kraft.controller.features import INITIAL_LEVELS
from kraft.controller.node import ControllerConfig
from kraft.controller.policy import AccessLimits
from kraft.controller.topic_names import GROUP_TOPIC
from kraft.image.delta import replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import ClusterRecord, FeatureLevelRecord, TenantRecord, TenantState
from tests.sim import nemesis
from tests.sim.client_links import ClusterLinks, Unreachable
from tests.sim.cluster import Cluster
from tests.sim.cluster_settings import broker_settings, controller_settings
from tests.sim.nemesis import Targets
from tests.sim.plan import FAULTS_MS, draw_plan
from tests.sim.world import World, collect_dead, no_collection
from wire.messages import DeleteTenantRequest, MoveTenantRequest

pytestmark = pytest.mark.simulation

TENANT = "lkc-aaaaaa"
TOPIC, GROUP = f"{TENANT}_t", f"{TENANT}_g"
EAST, WEST = (0, 1, 2), (3, 4, 5)
SEEDS = 6
MOVED_WITHIN_S = 20.0
DELETED_WITHIN_S = 15.0
AWAY_S = 1.5


def begun() -> MetadataImage:
    """What the controllers begin with: a tenant whose id the test knows."""
    levels = [FeatureLevelRecord(name, level) for name, level in INITIAL_LEVELS.items()]
    tenant = TenantRecord(TENANT, "a", "east", 1)
    return replayed(EMPTY_IMAGE, [ClusterRecord("AAAAAAAAAAAAAAAAAAAAAA"), *levels, tenant])


@contextmanager
def two_cells(seed: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Faults of the seed's own chance, on brokers of both cells and on controllers."""
    image = begun()

    def brokers(broker: int, *given: Any, **named: Any) -> BrokerConfig:
        return replace(broker_settings(broker, *given, **named), cell="east" if broker in EAST else "west")

    def controllers(number: int, *, snapshots: bool) -> ControllerConfig:
        config = controller_settings(number, snapshots=snapshots)
        access = AccessLimits(move_partitions_max=1, move_bytes_per_second=200_000)
        policy = replace(config.policy, access=access)
        return replace(config, policy=policy, driver=replace(config.driver, rebuilt=image))

    for module in ("cluster", "plan"):
        monkeypatch.setattr(f"tests.sim.{module}.TOPIC", TOPIC)
    monkeypatch.setattr("tests.sim.cluster.GROUP", GROUP)
    monkeypatch.setattr("tests.sim.cluster.broker_settings", brokers)
    monkeypatch.setattr("tests.sim.cluster.controller_settings", controllers)
    plan = replace(draw_plan(seed), brokers=len(EAST + WEST), tier=None, moves=False, partitions=3)
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


def asks(cluster: Cluster, node: str, request: Any, ready: str) -> None:
    """A node that asks for it from the time that the topic is there, until some broker's answer is a yes."""

    async def ask(ports: Ports) -> None:
        links = ClusterLinks(ports, cluster.bootstrap, cluster.history, node)
        while ready not in links.topic_ids:
            await links.pause()
            await links.refresh([ready])
        while True:
            try:
                response = await links.call(ports.random.choice(list(cluster.bootstrap)), request, 0)
            except Unreachable:
                await links.pause()
                continue
            if response.error_code in (ErrorCode.NONE, ErrorCode.RESOURCE_NOT_FOUND):
                return
            await links.pause()

    cluster.world.add_node(node, ask)


def replicas(image: MetadataImage) -> set[int]:
    topic = image.topics.by_name[TOPIC]
    return {replica for partition in topic.partitions.values() for replica in partition.replicas}


def not_moved(cluster: Cluster) -> str:
    tenant = cluster.watch.newest.tenants[TENANT]
    if tenant.state is TenantState.ACTIVE and tenant.cell == tenant.keys_cell == "west":
        return ""
    return (
        f"the tenant is {tenant.state.name} in {tenant.cell}, its groups {tenant.keys_phase.name} in {tenant.keys_cell}"
    )


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
    for name in cluster.brokers:
        program = cluster.world.nodes[name].program
        slots = program.coordinators.runtime._slots if program is not None else {}
        for (topic, _), slot in slots.items():
            if topic == GROUP_TOPIC and slot.hosted is not None:
                shard = slot.hosted.shard
                found += [*shard.offsets.groups(), *shard.committed, *shard.groups]
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_tenant_moves_under_faults_and_goes_without_a_trace(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with two_cells(seed, monkeypatch) as cluster:
        world = cluster.world
        asks(cluster, "mover", MoveTenantRequest(tenant="a", cell="west"), TOPIC)
        cluster.run()
        cluster._within(MOVED_WITHIN_S, lambda: not_moved(cluster))
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
        asks(cluster, "deleter", DeleteTenantRequest(tenant=TENANT), TOPIC)
        world.start("deleter")
        world.run_for(0.1 * (seed + 1))
        leader = cluster.watch.newest.leader_id
        victims = [name for name in cluster.controllers if name.endswith(str(leader - 1_000))]
        for name in victims:
            world.kill(name)
        world.run_for(AWAY_S)
        for name in victims:
            world.start(name)
        cluster._within(DELETED_WITHIN_S, lambda: left_of_it(cluster))
        assert GROUP not in groups(cluster)
