"""Slices of long work: their size, their order, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.pacing import (
    INLINE_COST,
    KEPT_S,
    OFFERED_MAX_S,
    REST_FROM_S,
    REST_MAX_S,
    REST_MIN_S,
    REST_SHARE,
    SLICE_COST,
    STRAINED_S,
    Lane,
    Pacer,
    Strain,
    Work,
    at_once,
)


def counting(steps: int, cost: int, trace: list[str], name: str) -> Work[str]:
    for _ in range(steps):
        trace.append(name)
        yield cost
    return name


def test_work_at_once_returns_its_result() -> None:
    assert at_once(counting(3, 1, [], "a")) == "a"


async def test_short_work_is_done_inline() -> None:
    pacer = Pacer()
    assert pacer.start(counting(3, 10, [], "a")) == "a"


async def test_inline_work_is_bounded_per_turn() -> None:
    pacer, trace = Pacer(), list[str]()
    outcomes = [pacer.start(counting(1, SLICE_COST - 1, trace, str(number)), number) for number in range(20)]
    begun_at_once = len(trace)
    assert begun_at_once * (SLICE_COST - 1) <= INLINE_COST + SLICE_COST
    waiting = [outcome for outcome in outcomes if isinstance(outcome, asyncio.Future)]
    assert len(await asyncio.gather(*waiting)) == 20 - begun_at_once
    await asyncio.sleep(0)
    assert pacer.start(counting(1, 1, trace, "later")) == "later"  # a new turn has a new budget


async def test_lanes_take_turns_and_one_slice_runs_per_turn() -> None:
    pacer, trace = Pacer(slice_cost=100), list[str]()
    works = [asyncio.ensure_future(pacer.run(counting(5, 100, trace, name), name)) for name in "abc"]
    turns = 0
    while not all(work.done() for work in works):
        before = len(trace)
        await asyncio.sleep(0)
        turns += 1
        assert len(trace) - before <= 1 or turns == 1
    assert trace[3:9] in (list("abcabc"), list("bcabca"), list("cabcab"))


async def test_a_crowd_of_clients_leaves_the_node_every_other_slice() -> None:
    pacer, trace = Pacer(slice_cost=100), list[str]()
    crowd = [asyncio.ensure_future(pacer.run(counting(50, 100, trace, "client"), lane)) for lane in range(100)]
    own = asyncio.ensure_future(pacer.run(counting(20, 100, trace, "node"), "fence", own=True))
    assert await own == "node"
    began = trace.index("node")
    assert len(trace) - began <= 2 * 20 + 1
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)


async def test_a_group_of_lanes_has_the_turns_of_one() -> None:
    """A client with a thousand connections must not have a thousand times the turns of one with a single one."""
    pacer, trace = Pacer(slice_cost=100), list[str]()
    crowd = [asyncio.ensure_future(pacer.run(counting(5, 100, trace, "crowd"), Lane("a", n))) for n in range(100)]
    single = asyncio.ensure_future(pacer.run(counting(5, 100, trace, "single"), Lane("b", 0)))
    await single
    assert trace.count("crowd") <= 10
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)


async def test_work_that_starts_more_work_in_its_lane_loses_none_of_it() -> None:
    pacer, started = Pacer(slice_cost=1), list[asyncio.Future[str]]()

    def starting() -> Work[str]:
        yield 1
        started.append(asyncio.ensure_future(pacer.run(counting(1, 1, [], "inner"), "lane")))
        outcome = pacer.start(counting(1, 1, [], "next"), "lane")
        assert isinstance(outcome, asyncio.Future)
        started.append(outcome)
        yield 1
        return "outer"

    assert await pacer.run(starting(), "lane") == "outer"
    assert await asyncio.gather(*started) == ["inner", "next"]


async def test_an_exception_reaches_who_waits_and_the_lane_goes_on() -> None:
    def failing() -> Work[None]:
        yield SLICE_COST
        raise ValueError("bad")

    pacer = Pacer()
    first = asyncio.ensure_future(pacer.run(failing(), "lane"))
    second = asyncio.ensure_future(pacer.run(counting(3, SLICE_COST, [], "b"), "lane"))
    with pytest.raises(ValueError, match="bad"):
        await first
    assert await second == "b"


async def test_cancelled_work_is_closed() -> None:
    closed: list[bool] = []

    def endless() -> Work[None]:
        try:
            while True:
                yield SLICE_COST
        finally:
            closed.append(True)

    pacer = Pacer()
    task = asyncio.ensure_future(pacer.run(endless()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert closed == [True]
    assert pacer.start(counting(1, 1, [], "free")) == "free"


async def test_rest_returns_in_a_later_turn_and_after_who_waits() -> None:
    pacer, trace = Pacer(slice_cost=100), list[str]()
    work = asyncio.ensure_future(pacer.run(counting(4, 100, trace, "work"), "a", own=True))
    await asyncio.sleep(0)
    await pacer.rest("b")
    assert len(trace) >= 2
    await work


@given(st.lists(st.lists(st.integers(1, 3_000), max_size=20), max_size=8))
def test_no_slice_exceeds_its_limit_by_more_than_one_step(works: list[list[int]]) -> None:
    async def run() -> None:
        def steps(costs: list[int]) -> Work[int]:
            yield from costs
            return sum(costs)

        pacer = Pacer()
        results = await asyncio.gather(*(pacer.run(steps(costs), lane) for lane, costs in enumerate(works)))
        assert results == [sum(costs) for costs in works]
        assert pacer.costliest < SLICE_COST + 3_000

    asyncio.run(run())


class World:
    """A clock and the kernel's count, both of which the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.displaced = self.offers = 0
        self.kept_s = 0.0  # how long others keep the processor when it is offered to them

    def strain(self) -> Strain:
        return Strain(lambda: self.now, lambda: self.displaced, self.offer)

    def offer(self) -> None:
        self.offers += 1
        if self.kept_s:
            self.displaced += 1
            self.now += self.kept_s

    def worked(self, strain: Strain, work_s: float, *, displaced: bool) -> float:
        """Work of a client, and the rest after it."""
        strain.begin()
        self.now += work_s
        self.displaced += displaced
        strain.end()
        return strain.rest_s()


def test_nobody_rests_while_nobody_else_wants_the_processor() -> None:
    world = World()
    assert world.worked(world.strain(), 0.005, displaced=False) == 0


@given(st.floats(REST_FROM_S, 1))
def test_a_rest_outlasts_the_slice_within_bounds_until_the_strain_is_over(slice_s: float) -> None:
    world = World()
    strain = world.strain()
    rest_s = world.worked(strain, slice_s, displaced=True)
    assert rest_s == pytest.approx(min(max(REST_SHARE * slice_s, REST_MIN_S), REST_MAX_S))
    world.now += STRAINED_S
    assert world.worked(strain, slice_s, displaced=False) == 0


@given(st.lists(st.floats(0.000_001, 0.002), min_size=1, max_size=50))
def test_strained_work_keeps_between_a_tenth_and_a_quarter_of_the_time(slices_s: list[float]) -> None:
    """However short its slices are: what is owed adds up, and no rest of a millisecond is taken for nothing."""
    world = World()
    strain, worked_s, rested_s = world.strain(), 0.0, 0.0
    while worked_s < 0.5:
        for slice_s in slices_s:
            rest_s = world.worked(strain, slice_s, displaced=True)
            world.now += rest_s
            worked_s, rested_s = worked_s + slice_s, rested_s + rest_s
    assert 0.1 <= worked_s / (worked_s + rested_s) <= 0.25


def test_what_displaced_a_thread_before_its_work_began_says_nothing() -> None:
    world = World()
    strain = world.strain()
    world.now += 60.0
    world.displaced += 1_000
    assert world.worked(strain, 0.005, displaced=False) == 0


def test_others_that_take_the_offered_processor_want_it() -> None:
    world = World()
    strain = world.strain()
    world.kept_s = 0.0001
    assert world.worked(strain, 0.0005, displaced=False) == pytest.approx(REST_SHARE * 0.0005)


def test_the_processor_is_offered_no_more_while_it_is_known_to_be_wanted() -> None:
    world = World()
    strain = world.strain()
    world.worked(strain, 0.001, displaced=True)
    offers = world.offers
    for _ in range(8):
        world.worked(strain, STRAINED_S / 10, displaced=True)
    assert world.offers == offers
    world.now += STRAINED_S
    world.worked(strain, 0.001, displaced=True)
    assert world.offers > offers


def test_others_that_keep_the_processor_are_offered_it_seldom() -> None:
    """A process that only computes keeps it for a tick of the kernel, in which this one serves nobody."""
    world = World()
    strain = world.strain()
    world.kept_s = 2 * OFFERED_MAX_S
    while world.now < 10 * KEPT_S:
        world.now += world.worked(strain, 0.0003, displaced=False)
    assert world.offers <= 10


async def test_only_clients_work_rests() -> None:
    world, trace = World(), list[str]()
    pacer = Pacer(slice_cost=100, inline_cost=0, strain=world.strain())

    def displacing() -> Work[None]:
        for _ in range(5):
            world.displaced += 1
            world.now += 1.0  # rests are as long as can be
            trace.append("client")
            yield 100

    client = asyncio.ensure_future(pacer.run(displacing(), "client"))
    own = asyncio.ensure_future(pacer.run(counting(200, 100, trace, "node"), "own", own=True))
    await own
    assert trace.count("client") <= 2  # two hundred turns take less than one rest
    await client
    assert trace.count("client") == 5


class Rests:
    """The loop's timers, which fire at once; `taken` has their delays."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.taken: list[float] = []
        loop = asyncio.get_running_loop()

        def call_later(delay_s: float, callback: Callable[[], None]) -> object:
            self.taken.append(delay_s)
            return loop.call_soon(callback)

        patch.setattr(loop, "call_later", call_later)


async def test_what_a_request_does_between_slices_is_followed_by_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that looks up fifty names does so in one step of its task, which no slice is part of."""
    world, rests = World(), Rests(monkeypatch)
    pacer = Pacer(strain=world.strain())

    async def handling() -> str:
        for _ in range(5):
            world.displaced += 1
            world.now += 0.0015
            await asyncio.sleep(0)
        return "answer"

    assert await pacer.metered(handling()) == "answer"
    assert rests.taken
    assert sum(rests.taken) >= REST_SHARE * 4 * 0.0015  # all but the last step rest before the next


async def test_steps_between_slices_do_not_put_off_the_slices_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _, trace = World(), Rests(monkeypatch), list[str]()
    pacer = Pacer(slice_cost=100, inline_cost=0, strain=world.strain())

    def work() -> None:
        world.displaced += 1
        world.now += 0.001

    def paced() -> Work[None]:
        for _ in range(5):
            work()
            trace.append("slice")
            yield 100

    async def handling() -> None:
        for _ in range(100):
            work()
            await asyncio.sleep(0)

    waiting = asyncio.ensure_future(pacer.run(paced(), "client"))
    await asyncio.gather(pacer.metered(handling()), pacer.metered(handling()))
    assert len(trace) == 5
    await waiting


async def test_metered_work_ends_as_it_would_alone() -> None:
    pacer, ended = Pacer(strain=World().strain()), list[str]()

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("bad")

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cancelled")

    with pytest.raises(ValueError, match="bad"):
        await pacer.metered(failing())
    task = asyncio.ensure_future(pacer.metered(endless()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]
    later = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(later.set_result, 7)
    assert await pacer.metered(later) == 7


async def test_metered_work_that_is_dropped_before_its_task_ends_in_silence() -> None:
    """When a node ends, its tasks and what they wait for are collected in any order."""

    async def endless() -> None:
        await asyncio.Event().wait()

    work = endless()
    metered = Pacer(strain=World().strain()).metered(work)
    metered.send(None)
    work.close()
    metered.close()
