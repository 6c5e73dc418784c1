"""A loop's meter, and the load that follows from it, against a queue that is simulated job by job."""

from __future__ import annotations

import asyncio
import random

import pytest

from common.loop_load import LoopCounters
from tests.common.call_count import counted_calls
from tests.wire.fakes import Bench, turns
from tests.wire.loop_queue import POLL_S, Drawn, served
from wire.connection import TURN_S, Connection
from wire.loop_meter import BACK_TO_BACK_S, FIXED_MAX_S, LINE_TURNS, LoopMeter
from wire.tick import Tick


def even(_: random.Random) -> float:
    return 1e-3


def exponential(rng: random.Random) -> float:
    return rng.expovariate(1_000.0)


def mixed(rng: random.Random) -> float:
    """One job in ten is nine times as long as the others."""
    return 5e-3 if rng.random() < 0.1 else 5e-3 / 9


@pytest.mark.parametrize("service", [even, exponential, mixed])
@pytest.mark.parametrize("rho", [0.2, 0.55, 0.8, 0.9])
def test_the_mean_wait_is_what_probes_at_random_times_wait(service: Drawn, rho: float) -> None:
    """Poisson arrivals see time averages, and the meter knows neither when jobs came nor of the probes."""
    outcome = served(rho, service)
    assert outcome.means.wait_s == pytest.approx(outcome.probes_s, rel=0.15)
    assert outcome.means.wait_s == pytest.approx(outcome.waited_s, rel=0.15)


@pytest.mark.parametrize("service", [even, exponential, mixed])
@pytest.mark.parametrize("rho", [0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.95])
def test_the_load_is_the_share_that_jobs_need_while_waits_explode(service: Drawn, rho: float) -> None:
    outcome = served(rho, service)
    assert outcome.means.load_where(0.0) == pytest.approx(outcome.rho, abs=0.03)
    assert outcome.means.busy == pytest.approx(outcome.rho, abs=0.03)


def evenly_about(mean_s: float) -> Drawn:
    return lambda rng: rng.uniform(0.75, 1.25) * mean_s


@pytest.mark.parametrize("rho", [0.3, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("mean_s", [60e-6, 80e-6, 160e-6, 320e-6])
def test_what_the_jobs_of_a_turn_share_is_no_load(mean_s: float, rho: float) -> None:
    """A turn costs 20 µs beside its jobs; the more jobs come, the more of them share that."""
    turn_s = 20e-6
    outcome = served(rho, evenly_about(mean_s), mean_s=mean_s, turn_s=turn_s, seconds=mean_s * 125_000)
    assert outcome.means.load_where(1.25 * (turn_s + POLL_S)) == pytest.approx(outcome.needed, abs=0.02)
    assert outcome.means.busy == pytest.approx(outcome.needed, abs=0.02)


@pytest.mark.parametrize("rho", [0.3, 0.5, 0.7, 0.9])
def test_brokers_load_leaves_out_what_the_jobs_of_a_turn_share(rho: float) -> None:
    """A turn costs a fourth of a job beside its jobs; the more jobs come, the more of them share that."""
    outcome = served(rho, evenly_about(80e-6), mean_s=80e-6, seconds=10.0)
    assert outcome.rho > outcome.needed * 1.05
    assert outcome.means.load == pytest.approx(outcome.needed, abs=0.03)
    assert outcome.means.busy == pytest.approx(outcome.needed, abs=0.03)


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("mean_s", [80e-6, 160e-6, 1e-3])
def test_one_constant_does_for_jobs_of_all_lengths(mean_s: float, rho: float) -> None:
    """Turns cost what the constant stands for."""
    outcome = served(rho, evenly_about(mean_s), mean_s=mean_s, turn_s=30e-6, seconds=mean_s * 125_000)
    assert outcome.means.load == pytest.approx(outcome.needed, abs=0.03)


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.9])
@pytest.mark.parametrize(("long_s", "one_in"), [(1e-4, 2), (2e-3, 33), (2e-2, 500)])
def test_a_few_long_jobs_are_not_taken_for_what_turns_cost(long_s: float, one_in: int, rho: float) -> None:
    def service(rng: random.Random) -> float:
        return long_s if rng.random() * one_in < 1 else 60e-6

    mean_s = 60e-6 + (long_s - 60e-6) / one_in
    outcome = served(rho, service, mean_s=mean_s, turn_s=0.0, seconds=20.0)
    assert outcome.means.busy == pytest.approx(outcome.rho, rel=0.07)


def test_jobs_that_come_at_once_wait_longer_and_the_meter_sees_it() -> None:
    alone, together = served(0.8, exponential), served(0.8, exponential, burst=4)
    assert together.means.wait_s == pytest.approx(together.waited_s, rel=0.15)
    assert together.means.wait_s > 2 * alone.means.wait_s
    assert together.means.load > alone.means.load


class Loop:
    """A meter and a time that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.meter = LoopMeter(lambda: self.now)

    def turn(self, *jobs: float, end: float = 0.0) -> None:
        """One turn, whose jobs take so long, and whose end does."""
        self.meter.begin()
        for seconds in jobs:
            self.now += seconds
            self.meter.job()
        self.now += end
        self.meter.end()


def near(counters: LoopCounters) -> object:
    return pytest.approx(tuple(counters))


def test_the_jobs_of_a_turn_wait_for_each_other_and_share_its_end() -> None:
    loop = Loop()
    loop.turn(2.0, 3.0, end=1.0)
    assert tuple(loop.meter.counters) == near(LoopCounters(2, 2.0, 6.0, 2.5**2 + 3.5**2, 6.0))


def test_half_of_the_turn_before_counts_only_when_it_ended_just_now() -> None:
    loop = Loop()
    loop.turn(4.0)
    loop.now += BACK_TO_BACK_S / 2
    loop.turn(1.0, 1.0)
    assert loop.meter.counters.wait_s == pytest.approx(2.0 + 3.0)
    loop.now += 2 * BACK_TO_BACK_S
    loop.turn(1.0)
    assert loop.meter.counters.wait_s == pytest.approx(5.0)


def test_receiving_a_long_frame_in_many_turns_is_service_of_its_job() -> None:
    loop = Loop()
    for _ in range(3):
        loop.turn(end=1.0)
        loop.now += 1.0
    loop.turn(2.0)
    assert tuple(loop.meter.counters) == near(LoopCounters(1, 0.0, 5.0, 25.0, 5.0))


def test_the_loops_own_steps_are_as_long_as_those_between_turns_that_follow_at_once() -> None:
    loop = Loop()
    loop.turn(1.0)
    assert loop.meter.loop_s == 0.0, "no step was seen yet"
    for _ in range(2_000):
        loop.now += BACK_TO_BACK_S / 2
        loop.turn(1.0)
    before = loop.meter.loop_s
    assert before == pytest.approx(2_000 * BACK_TO_BACK_S / 2, rel=0.05)
    loop.now += 9.0
    loop.turn(1.0)
    assert loop.meter.loop_s - before == pytest.approx(BACK_TO_BACK_S / 2), "a pause is no longer step"


def test_turns_of_one_job_each_show_nothing_of_what_they_share() -> None:
    loop = Loop()
    for _ in range(2 * LINE_TURNS):
        loop.turn(1e-4)
    assert loop.meter.counters.busy_s == pytest.approx(2 * LINE_TURNS * 1e-4)


def test_some_turns_with_another_job_do_not_show_what_all_turns_share() -> None:
    """A loop that is always busy with one client, and now and then a heartbeat."""
    loop = Loop()
    for turn in range(10 * LINE_TURNS):
        loop.turn(8e-5, *[1e-5] * (turn % 50 == 0))
    assert loop.meter.counters.busy_s == pytest.approx(loop.now - 100.0)


@pytest.mark.parametrize("job_s", [1e-6, 3e-5, 2e-3])
def test_counters_never_fall_also_within_a_turn(job_s: float) -> None:
    loop = Loop()
    for turn in range(LINE_TURNS):
        loop.turn(*[1e-4] * (1 + turn % 3), end=1e-3)
    before = loop.meter.counters
    for _ in range(3):
        loop.meter.begin()
        for _ in range(3):
            loop.now += job_s
            loop.meter.job()
            within = loop.meter.counters
            assert within.since(before) is not None
            before = within
        loop.meter.end()
        assert loop.meter.counters.since(before) is not None


@pytest.mark.parametrize(("turn_s", "found_s"), [(2e-5, 2e-5), (1e-3, FIXED_MAX_S)])
def test_what_a_turn_costs_beside_its_jobs_is_step_up_to_a_bound(turn_s: float, found_s: float) -> None:
    loop = Loop()
    for turn in range(LINE_TURNS):
        loop.turn(*[1e-4] * (1 + turn % 3), end=turn_s)
    before, counted = loop.meter.loop_s, loop.meter.counters
    loop.turn(1e-4, 1e-4, end=turn_s)
    assert loop.meter.loop_s - before == pytest.approx(found_s)
    added = loop.meter.counters.since(counted)
    assert added is not None
    work_s = 2e-4 + turn_s - found_s
    assert tuple(added)[2:] == pytest.approx((work_s, work_s**2 / 2, work_s))


def test_a_turn_ends_once() -> None:
    loop = Loop()
    loop.turn(1.0)
    loop.now += 1.0
    loop.meter.end()
    assert tuple(loop.meter.counters) == near(LoopCounters(1, 0.0, 1.0, 1.0, 1.0))


@pytest.mark.virtual_time
async def test_every_frame_of_a_connection_is_a_job_of_a_turn_that_ends() -> None:
    bench = Bench()
    _, peer = bench.connect()
    peer.send(b"\0\0\0\4abcd" * 3 + b"\0\0\0\4ab")
    await turns()
    assert bench.tick.meter.counters.jobs == 3
    peer.send(b"cd")
    await turns()
    assert bench.tick.meter.counters.jobs == 4
    assert not bench.tick.meter.is_open


class Stepping:
    """A clock that each reading moves by a step."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        return self.readings * self._step_s


@pytest.mark.virtual_time
async def test_connections_of_one_turn_share_its_begin_and_hear_what_each_frame_took() -> None:
    step_s = 2**-10
    clock, heard = Stepping(step_s), list[tuple[str, float]]()
    bench = Bench(now=clock)
    (first, one), (second, two) = bench.connect(), bench.connect()
    first.tell_of_frames(lambda seconds: heard.append(("first", seconds)))
    second.tell_of_frames(lambda seconds: heard.append(("second", seconds)))
    one.send(b"\0\0\0\4abcd" * 2)
    two.send(b"\0\0\0\4abcd")
    await turns()
    assert heard == [("first", step_s), ("first", step_s), ("second", step_s)]
    assert clock.readings == 1 + 3 + 1, "the turn's begin, each frame, and its end"


@pytest.mark.virtual_time
@pytest.mark.parametrize("frame_s", [TURN_S / 3, TURN_S * 0.6, TURN_S * 2])
async def test_a_burst_of_frames_holds_up_nobody_else(frame_s: float) -> None:
    """Frames of one connection that came together take several turns, in order, and others come between them."""
    heard = list[str]()
    bench = Bench(now=Stepping(frame_s))
    (first, one), (second, two) = bench.connect(), bench.connect()
    first.tell_of_frames(lambda _: heard.append("first"))
    second.tell_of_frames(lambda _: heard.append("second"))
    one.send(b"\0\0\0\4abcd" * 100 + b"\0\0\0\4ab")
    two.send(b"\0\0\0\4abcd")
    await turns()
    assert heard.index("second") * frame_s <= TURN_S + frame_s
    await turns(1_000)
    assert heard.count("first") == 100
    one.send(b"cd")
    await turns()
    assert heard.count("first") == 101, "also the frame that had come in part"
    assert bench.pool.held == bench.pool.lent == 0


@pytest.mark.virtual_time
async def test_what_ran_while_a_connection_paused_is_not_time_of_its_frames() -> None:
    now, heard = [5.0], list[float]()

    def mute_once(connection: Connection, *_: object) -> None:
        if not heard:
            connection.mute()

    bench = Bench(now=lambda: now[0])
    connection, peer = bench.connect(mute_once)
    connection.tell_of_frames(heard.append)
    peer.send(b"\0\0\0\4abcd" * 2)
    await turns()
    connection.unmute()
    bench.tick.meter.begin()  # another connection's turn, which goes on for long
    now[0] += 9.0
    await turns()
    assert heard == [0.0, 0.0]


def test_a_frame_costs_two_calls_of_functions() -> None:
    loop = Loop()
    loop.turn(1.0)
    loop.meter.begin()
    with counted_calls() as count:
        for _ in range(100):
            loop.meter.job()
    assert count.calls < 210, "the meter's and the clock's"


@pytest.mark.virtual_time
async def test_work_at_a_turns_end_is_busy_time_whoever_asked_for_it() -> None:
    now = [5.0]
    tick = Tick(lambda: now[0])

    def work() -> None:
        now[0] += 0.25

    tick.wake(work)
    await asyncio.sleep(0)
    assert tick.meter.counters.busy_s == 0.25
