"""Single events in a whole cluster whose course is told in advance, other than the drawn faults of the seeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.sim.cluster import TOPIC, Cluster, draw_plan
from tests.sim.nemesis import Fault
from tests.sim.world import collect_dead, no_collection

pytestmark = pytest.mark.simulation


@contextmanager
def scene(seed: int, *faults: Fault) -> Iterator[Cluster]:
    """A cluster that meets these faults alone."""
    with no_collection():
        cluster = Cluster(replace(draw_plan(seed), faults=faults), keep_trace=True)
        try:
            with cluster.world.heard_logs():
                yield cluster
        finally:
            cluster.world.close()
            del cluster
            collect_dead()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_broker_whose_disk_failed_leads_nothing_when_it_ends(seed: int) -> None:
    with scene(seed, Fault(1_000, "failed_disk", "broker-0", "broker-1", 1_500)) as cluster:
        found: list[tuple[bool, list[int]]] = []

        def died(name: str, power_lost: bool) -> None:
            cluster._died(name, power_lost)
            image = cluster.watch.newest
            partitions = image.topics.by_name[TOPIC].partitions.values()
            found.append((image.brokers[0].fenced, [partition.leader for partition in partitions]))

        cluster.world.on_death = died
        cluster.run()
        assert any("NodeStopped: the log directory failed" in line for line in cluster.world.trace_lines or ())
    fenced, leaders = found[0]
    assert fenced
    assert 0 not in leaders
