"""Whole brokers whose object store is away, slow, full or denied for a while under load: producers notice nothing, what
is not copied stays on the disks, and once the store is back all of it is copied by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest

from tests.sim.cluster import COMES_UP_S, TIER_SETTLES_S, Cluster
from tests.sim.plan import TOPIC, Plan, TierPlan
from tests.sim.world import collect_dead, no_collection

pytestmark = pytest.mark.simulation

WARMS_UP_S = 3.0
OUTAGE_S = 4.0
SLOWER_MAX = 1.1
RATE_SEEDS = 3
FAULTS = ("down", "denied", "full", "slow", "unavailable", "lost_answer")


class UnderLoad:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world = cluster, cluster.world

    def rate(self, seconds: float) -> float:
        """Acknowledged batches in a second from now on."""
        before = len(self.cluster.history.acknowledged)
        self.world.run_for(seconds)
        return (len(self.cluster.history.acknowledged) - before) / seconds

    @property
    def copied(self) -> int:
        tiers = self.cluster.watch.tier
        assert tiers is not None
        return sum(tier.tier_end for tier in tiers.records.tiers.values())

    def local_starts(self) -> list[int]:
        """Where the logs of all replicas begin."""
        programs = [self.world.nodes[name].program for name in self.cluster.brokers]
        return [p.log.local_log_start_offset for program in programs for p in program.partitions if p.topic == TOPIC]

    def trouble(self) -> list[str]:
        """What the brokers that lead partitions of the topic say of the store."""
        programs = [self.world.nodes[name].program for name in self.cluster.brokers]
        return [program.tier.store.health.reason for program in programs if program.tier.service.led]


@contextmanager
def under_load(seed: int) -> Iterator[UnderLoad]:
    tier = TierPlan(segment_bytes=1_024, local_bytes=2_048, total_bytes=-1, chunk_bytes=700)
    with no_collection():
        cluster = Cluster(Plan(seed, 3, 2, False, 16_384, False, False, 0.06, (), tier=tier))
        world = UnderLoad(cluster)
        try:
            with cluster.world.heard_logs():
                for name in cluster.world.nodes:
                    cluster.world.start(name)
                cluster.within(COMES_UP_S, lambda: cluster._not_serving(0, 0))
                cluster.world.run_for(WARMS_UP_S)
                yield world
        finally:
            cluster.world.close()
            del world
            collect_dead()


def begin(fault: str, cluster: Cluster) -> None:
    if fault == "slow":
        cluster.bucket.slow = True
    else:
        setattr(cluster.bucket.faults, fault, 0.9 if fault in ("unavailable", "lost_answer") else True)


@cache
def undisturbed(seed: int) -> float:
    with under_load(seed) as world:
        return world.rate(OUTAGE_S)


@pytest.mark.parametrize("fault", FAULTS)
def test_producers_notice_nothing(fault: str) -> None:
    """Each cluster beside itself without the fault, which takes the same course until then."""
    disturbed = 0.0
    for seed in range(RATE_SEEDS):
        with under_load(seed) as world:
            begin(fault, world.cluster)
            disturbed += world.rate(OUTAGE_S)
    expected = sum(map(undisturbed, range(RATE_SEEDS)))
    assert expected / RATE_SEEDS > 10
    assert expected / disturbed < SLOWER_MAX


@pytest.mark.parametrize("fault", FAULTS)
def test_copying_catches_up(fault: str) -> None:
    with under_load(1) as world:
        cluster, faults = world.cluster, world.cluster.bucket.faults
        began_at, elections = world.copied, cluster.watch.coverage.counts["elections"]
        begin(fault, cluster)
        world.world.run_for(OUTAGE_S)
        if fault in ("down", "denied", "full"):
            assert world.copied - began_at < 100, "what was on its way, at most"
            assert all(world.trouble()), "the brokers say so all the while"
            ends = cluster.watch.tier_end((TOPIC, 0)), cluster.watch.tier_end((TOPIC, 1))
            assert max(world.local_starts()) <= max(ends), "what is not copied is kept"
        assert cluster.watch.coverage.counts["elections"] == elections
        cluster.bucket.slow = False
        for name in ("down", "denied", "full"):
            setattr(faults, name, False)
        faults.unavailable = faults.lost_answer = 0.0
        cluster.history.all_healed = cluster.history.stop_producing = True
        cluster.within(TIER_SETTLES_S, cluster.settling.unsettled)
        cluster.within(TIER_SETTLES_S, cluster.settling.tier_unsettled)
        cluster.history.settled = True
        cluster.within(TIER_SETTLES_S, cluster.settling.history_unread)
        assert not any(world.trouble())
        assert world.copied > began_at + 100
