"""A callback that does too much fails its run by name, and what it does is counted alike wherever it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.sim.cluster import run_seed
from tests.sim.counted_work import LoopHeld, WorkCount
from tests.sim.loop import Scheduler, SimLoop

UNITS_MAX = 1_000


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


async def walk(count: int) -> None:
    await asyncio.sleep(0)
    sum(numbers(count))


def counted(count: int, nodes: tuple[str, ...] = ("node",)) -> WorkCount:
    scheduler = Scheduler(1)
    work = WorkCount(nodes, UNITS_MAX)
    scheduler.runs = work.run
    loop = SimLoop(scheduler, "node")
    task = loop.create_task(walk(count), name="walker")
    scheduler.run(1 << 40, task.done)
    task.result()
    return work


def test_a_callback_that_does_too_much_fails_the_run() -> None:
    with pytest.raises(LoopHeld, match=r"node: task walker did \d+ units .* in [\w.]+\.numbers:\d+ < [\w.]+\.walk:"):
        counted(UNITS_MAX)


def test_what_does_less_and_what_no_node_does_passes() -> None:
    assert counted(UNITS_MAX // 4).costliest > UNITS_MAX // 4
    assert counted(UNITS_MAX, nodes=("another",)).costliest == 0


def test_the_count_is_the_same_each_time() -> None:
    assert counted(100).costliest == counted(100).costliest
    assert counted(200).costliest - counted(100).costliest >= 100


@pytest.mark.simulation
def test_a_counted_seed_takes_the_same_course() -> None:
    without, counting = run_seed(4, counts_work=False), run_seed(4, counts_work=True)
    assert (without.failure, counting.failure) == ("", "")
    assert counting.trace_hash == without.trace_hash
    assert counting.costliest
