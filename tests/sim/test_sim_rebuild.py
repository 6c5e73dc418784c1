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
from tests.sim.bugs import planted
from tests.sim.client_links import ClusterLinks
from tests.sim.cluster import COMES_UP_S, TIER_SETTLES_S, Cluster, NotServing
from tests.sim.committed_reader import CommittedReader
from tests.sim.historian import Historian
from tests.sim.history import History, TopicPartition
from tests.sim.plan import SMALL_CHUNK_BYTES, TOPIC, Plan, TierPlan, TransactionsPlan, draw_plan
from tests.sim.rereading import Rereader
from tests.sim.test_sim_restore import SEEDS, plans
from tests.sim.transaction_history import StableRead, TransactionHistory
from tests.sim.world import WALL_START_MS, collect_dead, no_collection
from tidelog.tier.rebuild import _tiered
from tiering.bucket.cluster_file import begin_incarnation
from tiering.bucket.keys import TierRoot
from tiering.upkeep.inventory import FoundTopic, find_topics

pytestmark = pytest.mark.simulation

UNDECIDED_SEED = 3  # the tier ends within transactions after most runs
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


def transactional_plan(seed: int) -> Plan:
    plan = replace(draw_plan(seed, transactions=True), moves=False, health=False, tenant=False, faults=())
    return replace(plan, brokers=3, tier=TierPlan(1_024, 1_024, -1, SMALL_CHUNK_BYTES), transactions=TransactionsPlan())


class Outcomes:
    """Which batches of a partition are committed, by what the tier held: an open transaction there is to be aborted."""

    def __init__(self, cluster: Cluster, found: FoundTopic) -> None:
        self._cluster = cluster
        self.ends = {(TOPIC, index): held.end_offset for index, held in found.partitions.items()}
        self.shown: dict[TopicPartition, set[int]] = {}
        self.undecided = 0
        for key, end in self.ends.items():
            self._look(key, end)

    def _look(self, key: TopicPartition, end: int) -> None:
        shown, held = self.shown.setdefault(key, set()), dict[int, list[int]]()
        watch = self._cluster.watch.transactions
        assert watch is not None
        for batch in self._cluster.watch.committed.between(key, 0, end):
            if batch.is_control:
                offsets = held.pop(batch.producer_id, [])
                shown.update(one for one in offsets if watch.markers.outcomes[key, one])
            elif batch.is_transactional:
                held.setdefault(batch.producer_id, []).append(batch.base_offset)
            else:
                shown.add(batch.base_offset)
        self.undecided += sum(map(len, held.values()))

    def check(self, reads: list[StableRead]) -> None:
        for read in reads:
            end = min(read.end, self.ends[read.partition])
            expected = {offset for offset in self.shown[read.partition] if read.begin <= offset < end}
            assert {offset for offset in read.shown if offset < end} == expected, read


def reread_committed(old: Cluster, image: MetadataImage, found: FoundTopic, outcomes: Outcomes) -> None:
    """In a rebuilt cluster, until readers of committed records have come to each partition's end."""

    def rebuilt(config: ControllerConfig) -> ControllerConfig:
        return replace(config, driver=structs.replace(config.driver, rebuilt=image))

    cluster = Cluster(replace(old.plan, transactions=None), controller_change=rebuilt)
    world, told, keys = cluster.world, TransactionHistory(), [*outcomes.ends]
    cluster.bucket.store.objects.update(old.bucket.store.objects)
    cluster.bucket.watch = None
    cluster.watch._lossy = [*image.topics.by_name, *INTERNAL_TOPICS]
    history = History()

    async def read(ports: Ports) -> None:
        links = ClusterLinks(ports, cluster.bootstrap, history, "reader")
        await Historian(links, keys, CommittedReader(links, told, keys, "reader")).run()

    def unread() -> str:
        for key, end in outcomes.ends.items():
            done = history.passes.get(key)
            if done is None or done.end < end:
                return f"{key} is not read up to {end}: {done}"
        return ""

    world.add_node("reader", read)
    try:
        with world.heard_logs():
            for name in (*cluster.controllers, *cluster.brokers, "reader"):
                world.start(name)
            cluster.within(COMES_UP_S, unread)
    finally:
        world.close()
    outcomes.check(told.reads)


def test_what_is_undecided_in_the_tier_is_aborted_before_a_rebuilt_cluster_serves() -> None:
    with no_collection():
        cluster = Cluster(transactional_plan(UNDECIDED_SEED))
        try:
            with cluster.world.heard_logs():
                cluster.run()
            image, found = rebuilt_from(cluster)
            outcomes = Outcomes(cluster, found)
            assert outcomes.undecided, "the tier ends within a transaction"
            reread_committed(cluster, image, found, outcomes)
            with planted("rebuild_without_abort_markers"), pytest.raises((NotServing, AssertionError)):
                reread_committed(cluster, image, found, outcomes)
        finally:
            cluster.world.close()
            del cluster
            collect_dead()
