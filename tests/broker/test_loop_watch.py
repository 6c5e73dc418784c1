"""A broker's own load: what its loop did since the start, with the queues beside it."""

from __future__ import annotations

import pytest

from broker.loop_watch import LoopWatch
from common.metrics import Metrics
from wire.loop_meter import BACK_TO_BACK_S, WAKE_MAX_S, WATCHED_ONE_IN, LoopMeter


class World:
    def __init__(self) -> None:
        self.now = 50.0
        self.cpu_s = 3.0
        self.queued_s = [0.0, 0.0]
        self.meter = LoopMeter(lambda: self.now, lambda: self.cpu_s)
        queues = [lambda: self.queued_s[0], lambda: self.queued_s[1]]
        self.watch = LoopWatch(self.meter, lambda: self.now, lambda: self.cpu_s, queues)

    def turn(self, job_s: float, cpu_s: float = 0.0) -> None:
        self.meter.begin()
        self.now += job_s
        self.cpu_s += cpu_s
        self.meter.job()
        self.meter.end()


def test_the_loop_was_busy_for_its_turns_or_its_thread_whichever_is_more() -> None:
    world = World()
    world.turn(1.0)
    world.now += 4.0
    assert world.watch.look().busy_s == pytest.approx(1.0), "blocked by a device, without a processor"
    world.now += 5.0
    world.cpu_s += 2.0
    assert world.watch.look().busy_s == pytest.approx(3.0), "coroutines and timers are no turns"
    world.now += 5.0
    world.cpu_s += 50.0
    assert world.watch.look().busy_s == pytest.approx(8.0), "at most all of the time"


def test_what_the_loop_takes_between_turns_is_no_load() -> None:
    """Nor are the jobs' own times less for it."""
    world, steps_s = World(), BACK_TO_BACK_S / 2
    for _ in range(10_000):
        world.turn(1e-4)
        world.now += steps_s
    world.cpu_s += 10_000 * (1e-4 + steps_s)
    world.now += 1.0
    assert world.watch.look().busy_s == pytest.approx(1.0, rel=0.01)
    for _ in range(10_000):
        world.turn(1e-4)
        world.now += steps_s
    world.cpu_s += 10_000 * (1e-4 + steps_s) + 0.5
    world.now += 1.0
    assert world.watch.look().busy_s == pytest.approx(2.5, rel=0.01), "other work of the thread is"


@pytest.mark.parametrize("other_s", [0.0, 1e-3])
def test_waking_up_for_a_turn_is_no_load_and_other_work_of_that_time_is(other_s: float) -> None:
    """In three of four pauses the thread does `other_s` of other work."""
    world, turns, wake_s = World(), 100 * WATCHED_ONE_IN, 4e-5

    def look_after(turns: int) -> float:
        before = world.watch.look().busy_s
        for number in range(turns):
            world.now += 0.01
            world.cpu_s += wake_s + (other_s if number // WATCHED_ONE_IN % 4 else 0.0)
            world.turn(1e-4, 1e-4)
        return world.watch.look().busy_s - before

    look_after(turns)  # until the meter has seen some
    assert look_after(turns) == pytest.approx(turns * (1e-4 + 0.75 * other_s), rel=0.01)


def test_work_in_every_pause_is_load_but_for_a_bound() -> None:
    world, turns, other_s = World(), 100 * WATCHED_ONE_IN, 5e-3
    for _ in range(2):
        before = world.watch.look().busy_s
        for _ in range(turns):
            world.now += 0.01
            world.cpu_s += other_s
            world.turn(0.0)
    assert world.watch.look().busy_s - before == pytest.approx(turns * (other_s - WAKE_MAX_S), rel=0.01)


@pytest.mark.parametrize("other_s", [6e-5, 1e-4, 1.5e-4, 3e-4])
def test_a_loop_that_never_sleeps_is_busy_whatever_it_does_between_turns(other_s: float) -> None:
    """A request is read in one turn, served by a task, and answered in another turn."""
    world, step_s = World(), 1e-5

    def work(seconds: float) -> None:
        world.now += seconds
        world.cpu_s += seconds

    for _ in range(2):
        begin, before = world.now, world.watch.look().busy_s
        for _ in range(100 * WATCHED_ONE_IN):
            world.turn(4e-5, 4e-5)
            work(other_s)
            world.turn(2e-5, 2e-5)
            work(step_s)
    least = 1 - 2 * step_s / (6e-5 + other_s + step_s)
    assert (world.watch.look().busy_s - before) / (world.now - begin) > least - 0.02


def test_waits_in_other_queues_are_waits_of_jobs() -> None:
    world = World()
    world.turn(1.0)
    world.queued_s = [2.0, 3.0]
    world.now += 4.0
    counters = world.watch.look()
    assert counters.jobs == 1
    assert counters.wait_s == pytest.approx(5.0)
    assert world.watch.means.wait_s == pytest.approx(5.0)
    assert world.watch.look() == counters, "no time has passed"


def test_the_load_is_shown() -> None:
    world, metrics = World(), Metrics()
    world.watch.register(metrics)
    world.turn(2.0)
    world.now += 3.0
    world.watch.look()
    shown = metrics.text().decode()
    assert "tidelog_broker_load 0.4" in shown
    assert "tidelog_loop_busy_ratio 0.4" in shown
    assert "tidelog_broker_queue_wait_seconds 0" in shown
    assert "tidelog_loop_jobs_total 1" in shown
    assert "tidelog_loop_busy_seconds_total 2" in shown
