"""Single events in a whole cluster whose course is told in advance, other than the drawn faults of the seeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from kraft.controller.leader_return import LeaderReturnConfig
from kraft.controller.node import ControllerConfig
from records.batch import HEADER_BYTES
from tests.sim.cluster import COMES_UP_S, Cluster
from tests.sim.cluster_settings import broker_name
from tests.sim.disk import FileNode
from tests.sim.nemesis import Fault
from tests.sim.plan import TOPIC, draw_plan
from tests.sim.world import collect_dead, no_collection

pytestmark = pytest.mark.simulation


@contextmanager
def scene(seed: int, *faults: Fault, **changes: Any) -> Iterator[Cluster]:
    """A cluster that meets these faults alone."""
    with no_collection():
        cluster = Cluster(replace(draw_plan(seed), faults=faults), keep_trace=True, **changes)
        cluster.count_work()
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


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_after_a_restart_of_all_the_preferred_replicas_lead(seed: int, end: str) -> None:
    def seldom(config: ControllerConfig) -> ControllerConfig:
        return replace(config, leader_return=LeaderReturnConfig())

    with scene(seed, controller_change=seldom) as cluster:
        world, watch = cluster.world, cluster.watch
        for name in world.nodes:
            world.start(name)
        cluster.within(COMES_UP_S, lambda: cluster._not_serving(0, 0))
        for names in (list(cluster.brokers), cluster.controllers):
            for name in names:
                world.stop(name) if end == "stop" else world.kill(name)
                world.run_for(0.2)
            world.run_for(3.0)
        assert all(world.nodes[name].loop is None for name in (*cluster.brokers, *cluster.controllers))
        for name in world.nodes:
            world.start(name)

        def led_elsewhere() -> int:
            return sum(p.leader != p.preferred_leader for p in watch.newest.topics.partitions())

        assert world.run_until(lambda: led_elsewhere() > 0, 10.0)
        assert world.run_until(lambda: led_elsewhere() == 0, 15.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_broker_whose_log_lost_records_while_it_was_away_registers_once_more_as_unclean(seed: int) -> None:
    """It was killed, and the note of its run vouches for all that the page cache holds: the scan knows better."""
    with scene(seed) as cluster:
        world, watch = cluster.world, cluster.watch
        for name in world.nodes:
            world.start(name)
        cluster.within(COMES_UP_S, lambda: cluster._not_serving(0, 0))
        topic, index = cluster.plan.topic_partitions[0]
        victim = watch.newest.topics.by_name[topic].partitions[index].replicas[0]
        world.kill(broker_name(victim))
        assert world.run_until(lambda: not watch.newest.is_active(victim), 5.0)
        device = world.nodes[broker_name(victim)].device
        path = f"{topic}-{index}/{0:020}.log"
        log = device.find(path)
        assert isinstance(log, FileNode)
        watch.may_lack_records(victim)
        device.alter(path, len(log.cached) // 2, bytes(HEADER_BYTES))
        world.start(broker_name(victim))
        lives: dict[int, bool] = {}

        def is_back() -> bool:
            registered = watch.newest.brokers[victim]
            lives.setdefault(registered.epoch, registered.is_unclean)
            return registered.is_active

        assert world.run_until(is_back, 10.0)
        before, claimed, corrected = lives.values()
        assert (before, claimed, corrected) == (False, False, True)
