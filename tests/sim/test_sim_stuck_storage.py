"""A disk that freezes for 15 to 60 s: other brokers lead at once, nothing is lost, and the broker comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.sim.cluster import COMES_UP_S, SERVES_AGAIN_S, Cluster
from tests.sim.cluster_settings import broker_name
from tests.sim.cluster_watch import only_these_may_lead
from tests.sim.plan import Plan
from tests.sim.stuck_storage import INTERVAL_S, STUCK_S, SimWatchdog, freeze
from tests.sim.world import collect_dead, no_collection
from tidelog.nodes.storage_watch import TURN

pytestmark = pytest.mark.simulation

PLAN = Plan(0, 3, 2, True, 1 << 20, False, False, 1.0, ())  # each batch is flushed, few are sent
RETURNS_S = 20.0


class Frozen:
    """A cluster in which each broker has its watchdog."""

    def __init__(self, seed: int) -> None:
        self.cluster = Cluster(replace(PLAN, seed=seed))
        self.world = self.cluster.world
        self.dogs = {name: SimWatchdog(self.world, name) for name in self.cluster.brokers}
        self.thawed = 0
        for name in self.world.nodes:
            self.world.start(name)
        self.cluster.within(COMES_UP_S, self.not_serving)

    def not_serving(self) -> str:
        return self.cluster._not_serving(self._acknowledged, self._commits)

    _acknowledged = _commits = 0

    def expect_service(self, seconds: float) -> None:
        """Each partition acknowledges something new within that time."""
        history = self.cluster.history
        self._acknowledged, self._commits = len(history.acknowledged), len(history.commits)
        self.cluster.within(seconds, self.not_serving)

    def freeze(self, broker: int, seconds: float, *, hangs: bool) -> str:
        freeze(self.world, broker_name(broker), seconds, hangs=hangs, thawed=self._thaw)
        return broker_name(broker)

    def _thaw(self) -> None:
        self.thawed += 1

    def settle(self) -> None:
        self.cluster.history.all_healed = True
        self.expect_service(SERVES_AGAIN_S)
        self.cluster.history.stop_producing = True
        self.cluster.within(RETURNS_S, self.cluster.settling.unsettled)


@contextmanager
def frozen(seed: int) -> Iterator[Frozen]:
    with no_collection():
        world = Frozen(seed)
        try:
            yield world
        finally:
            world.world.close()
            del world
            collect_dead()


@pytest.mark.parametrize(("seed", "seconds", "hangs"), [(1, 15.0, False), (2, 60.0, False), (3, 30.0, True)])
def test_a_frozen_disk_costs_no_record_and_little_time(seed: int, seconds: float, hangs: bool) -> None:
    with frozen(seed) as run:
        began_s = run.world.now_s
        name = run.freeze(seed % 3, seconds, hangs=hangs)
        dog = run.dogs[name]
        assert run.world.run_until(lambda: bool(dog.ended), seconds)
        at_s, stuck = dog.ended[0]
        assert at_s - began_s <= STUCK_S + 6 * INTERVAL_S
        assert (stuck.what == TURN) is hangs
        run.expect_service(SERVES_AGAIN_S)
        assert not run.thawed or seconds < STUCK_S + SERVES_AGAIN_S, "others serve while the disk is frozen"
        assert run.world.run_until(lambda: run.thawed == 1, seconds)
        run.settle()
        assert [len(other.ended) for other in run.dogs.values() if other is not dog] == [0, 0]
        assert len(dog.ended) == 1


def test_of_two_frozen_disks_one_broker_stays() -> None:
    with frozen(1) as run:
        first, second = (run.freeze(broker, 20.0, hangs=False) for broker in (0, 1))
        assert run.world.run_until(lambda: run.thawed == 2, 25.0)
        ended = [name for name in (first, second) if run.dogs[name].ended]
        assert len(ended) == 1, "both left, or none did"
        stayed = run.dogs[second if ended == [first] else first]
        assert stayed.objections[0] == "another broker is down or unhealthy"
        run.settle()


def test_a_disk_that_answers_in_time_is_left_alone() -> None:
    with frozen(4) as run:
        name = broker_name(0)
        run.world.set_stuck(name, True)
        run.world.run_for(STUCK_S / 2)
        run.world.set_stuck(name, False)
        run.world.run_for(STUCK_S)
        assert not any(dog.ended for dog in run.dogs.values())
        run.settle()


def test_only_a_leaderless_partition_whose_elr_is_stuck_waits_for_the_stuck_broker() -> None:
    stuck = frozenset({1})
    assert only_these_may_lead(-1, (1,), stuck)
    assert not only_these_may_lead(-1, (1, 2), stuck)  # broker 2 may lead as well
    assert not only_these_may_lead(-1, (), stuck)  # nothing is known: the last known leader may be elected
    assert not only_these_may_lead(0, (1,), stuck)
