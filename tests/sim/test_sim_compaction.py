"""The tier's state, compacted: a cluster that has been through faults compacts its internal topics, all its brokers
die, and what they load from the compacted log is what was committed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.config import BrokerConfig
from kraft.topic_names import GROUP_TOPIC, TIER_TOPIC
from tests.sim.cluster import COMES_UP_S, TIER_SETTLES_S, Cluster
from tests.sim.plan import Plan, draw_plan
from tests.sim.world import collect_dead, no_collection

pytestmark = pytest.mark.simulation

STATE_SEGMENT_BYTES = 4_096
COMPACTS_S, STOPS_S = 10.0, 10.0
SEEDS, TRIED = 3, 60


def plans() -> list[Plan]:
    """Drawn ones with a tier, whose faults come first."""
    drawn = (draw_plan(seed, transactions=False) for seed in range(TRIED))
    tiered = [plan for plan in drawn if plan.tier is not None and not plan.moves and not plan.flushes_each]
    return [replace(plan, segment_bytes=STATE_SEGMENT_BYTES) for plan in tiered[:SEEDS]]


def cleaning(config: BrokerConfig) -> BrokerConfig:
    duties = replace(config.duties, log_cleaner_enable=True, log_cleaner_backoff_ms=200)
    settings = config.node_settings | {"log.cleaner.min.cleanable.ratio": 0.01}
    return replace(config, duties=duties, node_settings=settings)


def restart(cluster: Cluster, *, clean: bool) -> None:
    """`clean`: all is on the device then, and only that is compacted."""
    world = cluster.world
    for name in cluster.brokers:
        world.stop(name) if clean else world.kill(name)
    assert world.run_until(lambda: all(world.nodes[name].loop is None for name in cluster.brokers), STOPS_S)
    for name in cluster.brokers:
        world.start(name)


def state_bytes(cluster: Cluster) -> list[int]:
    programs = [cluster.world.nodes[name].program for name in cluster.brokers]
    found = [program.partitions.get(TIER_TOPIC, 0) for program in programs if program is not None]
    return [partition.log.size_bytes for partition in found if partition is not None]


def compacted(cluster: Cluster, before: list[int]) -> None:
    """Until every replica has compacted what is closed of the state."""

    def is_small() -> bool:
        found = state_bytes(cluster)
        return len(found) == len(before) and 4 * max(found) < 3 * min(before)

    small = cluster.world.run_until(is_small, COMES_UP_S + COMPACTS_S)
    assert small, f"{before} bytes became {state_bytes(cluster)}"


def views_fit(cluster: Cluster) -> int:
    """How many leaders' views of the tier were compared with what was committed."""
    tiers = cluster.watch.tier
    assert tiers is not None
    compared = 0
    for name in cluster.brokers:
        for led in cluster.world.nodes[name].program.tier.service.led:
            modelled = tiers.tier_of((led.partition.topic, led.partition.index))
            assert modelled is not None
            assert tuple(one.id for one in led.known.segments()) == modelled.span().segments
            assert led.known.tier_end_offset == modelled.tier_end
            compared += 1
    return compared


def scene(cluster: Cluster) -> None:
    cluster.run()
    before = state_bytes(cluster)
    for name in ("members", "archivist"):
        cluster.world.kill(name)
    cluster.watch._lossy = [GROUP_TOPIC, TIER_TOPIC]  # what compaction takes out is not lost
    cluster.change_brokers(cleaning)
    restart(cluster, clean=True)
    compacted(cluster, before)
    restart(cluster, clean=False)
    cluster.within(TIER_SETTLES_S, cluster.settling.unsettled)
    cluster.within(TIER_SETTLES_S, cluster.settling.tier_unsettled)
    cluster.history.passes.clear()
    cluster.within(TIER_SETTLES_S, cluster.settling.history_unread)
    assert views_fit(cluster) >= cluster.plan.partitions


@pytest.mark.parametrize("plan", plans(), ids=lambda plan: str(plan.seed))
def test_what_is_loaded_from_a_compacted_state_is_what_was_committed(plan: Plan) -> None:
    with no_collection():
        cluster = Cluster(plan)
        try:
            with cluster.world.heard_logs():
                scene(cluster)
        finally:
            cluster.world.close()
            del cluster
            collect_dead()
