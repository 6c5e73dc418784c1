"""Brokers probe each other where clients connect, so that an idle broker is not taken for one that nobody reaches."""

from __future__ import annotations

from dataclasses import replace

from broker.config import BrokerConfig
from broker.network_watch import NetworkWatch
from tests.sim.cluster import Cluster
from tests.sim.cluster_settings import broker_name
from tests.sim.plan import draw_plan

SILENCE_MS = 1_500


def watching(config: BrokerConfig) -> BrokerConfig:
    return replace(config, health=replace(config.health, network_silence_ms=SILENCE_MS))


def test_idle_brokers_are_probed_and_one_without_probes_says_so() -> None:
    plan = replace(draw_plan(1), brokers=3, faults=(), moves=False, tenant=False, tier=None, ambush=False)
    cluster = Cluster(plan, broker_change=watching)
    world, names = cluster.world, [broker_name(broker) for broker in range(3)]
    try:
        for name in (*cluster.controllers, *names):
            world.start(name)
        assert world.run_until(lambda: all(world.nodes[name].program is not None for name in names), 5)
        assert world.run_until(lambda: all(watch.is_probed for watch in watches(cluster)), 20)
        world.run_for(4 * SILENCE_MS / 1000)
        assert [watch.is_silent for watch in watches(cluster)] == [False] * 3, "probes come while no client does"
        for name in names[1:]:  # the probers end: nobody is left who connects to the first
            world.kill(name)
        assert world.run_until(lambda: watches(cluster)[0].is_silent, 20)
    finally:
        world.close()


def watches(cluster: Cluster) -> list[NetworkWatch]:
    """Of the brokers that run."""
    programs = [cluster.world.nodes[broker_name(broker)].program for broker in range(3)]
    return [program.membership.network for program in programs if program is not None]
