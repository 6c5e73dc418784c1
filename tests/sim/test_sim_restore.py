"""A topic restored under a new name in a cluster that has been through faults: its first leaders take over what the
copies' manifests say, one of them dies over it, and readers get every record that was committed, at its old offset."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from common.errors import ErrorCode
from common.ports import Ports
from tests.sim.client_links import ClusterLinks, Unreachable
from tests.sim.cluster import TIER_SETTLES_S, Cluster
from tests.sim.cluster_settings import broker_name
from tests.sim.plan import TOPIC, Plan, draw_plan
from tests.sim.rereading import Rereader
from tests.sim.world import WALL_START_MS, collect_dead, no_collection
from tiering.bucket.keys import TierRoot
from tiering.upkeep.inventory import FoundTopic, find_topics
from tiering.upkeep.restoring import NewTopic, check_restorable, copy_topic, first_epochs, write_manifests
from wire.messages import RestoreTopicRequest, schema_uuid

pytestmark = pytest.mark.simulation

RESTORED, TOPIC_ID = "restored", bytes(range(16))
SEEDS, TRIED = 3, 60
DIES_AFTER_S, STAYS_AWAY_S = (0.05, 0.2, 0.8), 1.5


def plans() -> list[Plan]:
    """Drawn ones with a tier that keeps all, whose faults come first."""
    drawn = (draw_plan(seed, transactions=False) for seed in range(TRIED))
    tiered = [(plan, plan.tier) for plan in drawn if plan.tier is not None and not plan.moves]
    return [
        replace(plan, tier=replace(tier, total_bytes=-1, doomed_topic=False, rewrites=False))
        for plan, tier in tiered[:SEEDS]
    ]


class Restoring:
    """What `tidelog tier restore` does, with a reader of its own history behind it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.found = self._copied()
        self.reader = Rereader(RESTORED, self.found)
        self.world.add_node("restorer", self._restore)

    def _copied(self) -> FoundTopic:
        """The objects' copies and their manifests, written while no broker looks."""
        store, root = self.cluster.bucket.store, TierRoot(self.cluster.watch.newest.cluster_id or "")
        (found,) = asyncio.run(find_topics(store, root, TOPIC))
        check_restorable(found)
        new = NewTopic(RESTORED, TOPIC_ID, "", 1)
        asyncio.run(copy_topic(store, root, found, new, lambda done, total: None))
        uuids = iter(f"{number:032x}" for number in range(1_000))
        asyncio.run(write_manifests(store, root, found, new, WALL_START_MS, lambda: next(uuids)))
        return found

    async def _restore(self, ports: Ports) -> None:
        links = ClusterLinks(ports, self.cluster.bootstrap, self.reader.history, "restorer")
        request = RestoreTopicRequest(
            topic_name=RESTORED, topic_id=schema_uuid(TOPIC_ID), replication_factor=3,
            leader_epochs=first_epochs(self.found), configs=[],
        )  # fmt: skip
        await self._until_there(links, request)
        await self.reader.run(links)

    @staticmethod
    async def _until_there(links: ClusterLinks, request: RestoreTopicRequest) -> None:
        brokers = list(links._bootstrap)
        while True:
            try:
                response = await links.call(links.ports.random.choice(brokers), request, 0)
            except Unreachable:
                await links.pause()
                continue
            if response.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            links.history.counts[f"restore: {ErrorCode(response.error_code).name}"] += 1
            await links.pause()


def restored(cluster: Cluster, dies_after_s: float) -> None:
    cluster.run()
    world, watch = cluster.world, cluster.watch
    for name in ("producer", "members", "archivist"):
        world.kill(name)
    for name in cluster.brokers:
        world.kill(name)
    restoring = Restoring(cluster)
    cluster.bucket.watch = None  # it knows of no objects but those that brokers copied
    watch._lossy = [name for name in watch.newest.topics.by_name if name != TOPIC] + [RESTORED]
    for name in cluster.brokers:
        world.start(name)
    world.start("restorer")
    assert world.run_until(lambda: RESTORED in watch.newest.topics.by_name, 20.0)
    world.run_for(dies_after_s)
    victim = broker_name(max(watch.newest.topics.by_name[RESTORED].partitions[0].leader, 0))
    world.kill(victim)
    world.run_for(STAYS_AWAY_S)
    world.start(victim)
    cluster.within(TIER_SETTLES_S, restoring.reader.unread)
    assert restoring.reader.check(watch.committed) > 20


@pytest.mark.parametrize("number", range(SEEDS))
def test_every_record_comes_back_at_its_offset(number: int) -> None:
    with no_collection():
        cluster = Cluster(plans()[number])
        try:
            with cluster.world.heard_logs():
                restored(cluster, DIES_AFTER_S[number])
        finally:
            cluster.world.close()
            del cluster
            collect_dead()
