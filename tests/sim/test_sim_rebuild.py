"""A cluster rebuilt from its bucket alone after faults: new disks, another incarnation, and every record that the tier
held is read at its old offset, also when brokers die while they begin."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from msgspec import structs

from common.ports import Ports
from kraft.audit.metadata_export import metadata_events
from kraft.controller.node import ControllerConfig
from kraft.image.metadata import MetadataImage
from kraft.rebuilding.rebuild import Rebuilder
from kraft.topic_names import INTERNAL_TOPICS
from tests.sim.client_links import ClusterLinks
from tests.sim.cluster import COMES_UP_S, TIER_SETTLES_S, Cluster
from tests.sim.plan import TOPIC
from tests.sim.rereading import Rereader
from tests.sim.test_sim_restore import SEEDS, plans
from tests.sim.world import WALL_START_MS, collect_dead, no_collection
from tidelog.tier.rebuild import _tiered
from tiering.bucket.cluster_file import begin_incarnation
from tiering.bucket.keys import TierRoot
from tiering.upkeep.inventory import FoundTopic, find_topics

pytestmark = pytest.mark.simulation

DIES_AFTER_S, STAYS_AWAY_S = (0.3, 1.0, 2.5), 1.0


def rebuilt_from(cluster: Cluster) -> tuple[MetadataImage, FoundTopic]:
    """What new controllers begin with, and what the tier holds of the topic."""
    image, store = cluster.watch.newest, cluster.bucket.store
    root = TierRoot(image.cluster_id or "")
    incarnation = asyncio.run(begin_incarnation(store, root, WALL_START_MS)).incarnation
    assert incarnation > 1
    topics = asyncio.run(find_topics(store, root))
    rebuilder = Rebuilder(image.cluster_id or "", incarnation)
    rebuilder.take_events(list(metadata_events(image)))
    rebuilder.take_tier([_tiered(topic) for topic in topics if not topic.is_dropped])
    rebuild = rebuilder.build(rebuilder.brokers, 3, random.Random(1))
    return rebuild.image, next(topic for topic in topics if topic.name == TOPIC)


def begin_anew(old: Cluster, image: MetadataImage, found: FoundTopic, dies_after_s: float) -> None:
    """Other nodes under the old names, with nothing but the bucket."""

    def rebuilt(config: ControllerConfig) -> ControllerConfig:
        return replace(config, driver=structs.replace(config.driver, rebuilt=image))

    cluster = Cluster(replace(old.plan, faults=()), controller_change=rebuilt)
    world, watch = cluster.world, cluster.watch
    try:
        with world.heard_logs():
            cluster.bucket.store.objects.update(old.bucket.store.objects)
            cluster.bucket.watch = None  # it knows of no objects but those that these brokers copied
            watch._lossy = [*image.topics.by_name, *INTERNAL_TOPICS]
            reader = Rereader(TOPIC, found)

            async def reread(ports: Ports) -> None:
                await reader.run(ClusterLinks(ports, cluster.bootstrap, reader.history, "rereader"))

            world.add_node("rereader", reread)
            for name in (*cluster.controllers, *cluster.brokers, "rereader"):
                world.start(name)
            world.run_for(dies_after_s)
            victim = list(cluster.brokers)[1]
            world.kill(victim)
            world.run_for(STAYS_AWAY_S)
            world.start(victim)
            cluster.within(COMES_UP_S + TIER_SETTLES_S, reader.unread)
            assert watch.newest.cluster_id == image.cluster_id
            assert watch.newest.topics.by_name[TOPIC].topic_id == found.topic_id
            assert reader.check(old.watch.committed) > 20
    finally:
        world.close()
        collect_dead()


@pytest.mark.parametrize("number", range(SEEDS))
def test_a_rebuilt_cluster_serves_what_the_tier_held(number: int) -> None:
    with no_collection():
        cluster = Cluster(plans()[number])
        try:
            with cluster.world.heard_logs():
                cluster.run()
            image, found = rebuilt_from(cluster)
            begin_anew(cluster, image, found, DIES_AFTER_S[number])
        finally:
            cluster.world.close()
            del cluster
            collect_dead()
