"""Commit queues and deadlines."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from broker.deadlines import COMPACT_FROM, Deadlines
from broker.partitions import waiters
from broker.partitions.waiters import CommitQueue
from common.errors import ErrorCode


class Waiter:
    def __init__(self, gives_up: bool = False) -> None:
        self.outcomes: list[str] = []
        self.settled = False
        self._gives_up = gives_up

    def committed(self, offset: int) -> None:
        self.outcomes.append(f"committed {offset}")

    def refused(self, offset: int, error: ErrorCode) -> None:
        self.outcomes.append(error.name)

    def starved(self, offset: int) -> bool:
        if self._gives_up:
            self.outcomes.append("starved")
        return self._gives_up


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60))
def test_everyone_is_told_once_and_in_order_of_offsets(steps: list[tuple[int, bool]]) -> None:
    queue, waiting, high_watermark = CommitQueue(), [], 0
    for offset, moves in steps:
        if moves:
            high_watermark = max(high_watermark, offset)
            queue.release(high_watermark)
        else:
            waiter = Waiter()
            waiting.append((offset, waiter))
            queue.add(offset, waiter)
            queue.release(high_watermark)
        for due, waiter in waiting:
            assert waiter.outcomes == ([f"committed {due}"] if due <= high_watermark else [])
    assert len(queue) == sum(due > high_watermark for due, _ in waiting)


class Compared(int):
    """Counts how often offsets are compared with it."""

    count = 0

    def __lt__(self, other: int) -> bool:
        Compared.count += 1
        return int(self) < other

    def __gt__(self, other: int) -> bool:
        Compared.count += 1
        return int(self) > other

    def __le__(self, other: int) -> bool:
        Compared.count += 1
        return int(self) <= other


def test_a_waiter_for_an_early_offset_finds_its_place_among_many_without_a_walk() -> None:
    """A repeated marker waits for what it repeats, and thousands of batches may wait behind that."""
    queue = CommitQueue()
    for offset in range(10_000):
        queue.add(offset, Waiter())
    early = Waiter()
    queue.add(Compared(50), early)
    assert 0 < Compared.count <= 20
    queue.release(49)
    assert not early.outcomes
    queue.release(50)
    assert early.outcomes == ["committed 50"]


def test_refusing_tells_all_and_starving_only_those_that_give_up() -> None:
    queue = CommitQueue()
    patient, impatient = Waiter(), Waiter(gives_up=True)
    queue.add(5, patient)
    queue.add(4, impatient)
    queue.starve()
    assert (patient.outcomes, impatient.outcomes, len(queue)) == ([], ["starved"], 1)
    queue.refuse_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert (patient.outcomes, len(queue)) == (["NOT_LEADER_OR_FOLLOWER"], 0)


def test_those_whose_time_is_up_leave_a_queue_whose_high_watermark_stands_still() -> None:
    queue, patient = CommitQueue(), Waiter()
    queue.add(1, patient)
    for offset in range(2, 20 * waiters.COMPACT_FROM):
        late = Waiter()
        queue.add(offset, late)
        late.settled = True
    assert len(queue) <= waiters.COMPACT_FROM + 2
    queue.release(1_000_000)
    assert patient.outcomes == ["committed 1"]


class Sleeper:
    def __init__(self, *again: float) -> None:
        self.settled = False
        self.fired = asyncio.Event()
        self.count = 0
        self._again = list(again)

    def expire(self, now: float) -> float | None:
        self.count += 1
        if self._again:
            return now + self._again.pop()
        self.fired.set()
        return None


async def test_deadlines_fire_in_time_also_an_earlier_one_that_comes_later() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    late, early = Sleeper(), Sleeper()
    deadlines.add(loop.time() + 60, late)
    deadlines.add(loop.time() + 0.01, early)
    async with asyncio.timeout(5):
        await early.fired.wait()
    assert late.count == 0
    deadlines.close()


async def test_a_deadline_may_be_put_back() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    sleeper = Sleeper(0.01)
    deadlines.add(loop.time() + 0.01, sleeper)
    async with asyncio.timeout(5):
        await sleeper.fired.wait()
    assert sleeper.count == 2
    deadlines.close()


async def test_the_timer_is_set_for_none_that_was_answered() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    first, last = Sleeper(), Sleeper()
    deadlines.add(loop.time() + 0.01, first)
    for number in range(20):
        answered = Sleeper()
        answered.settled = True
        deadlines.add(loop.time() + 10 + number, answered)
    deadlines.add(loop.time() + 60, last)
    async with asyncio.timeout(5):
        await first.fired.wait()
    assert len(deadlines) == 1
    deadlines.close()


async def test_settled_deadlines_are_forgotten() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    for _ in range(10 * COMPACT_FROM):
        sleeper = Sleeper()
        sleeper.settled = True
        deadlines.add(loop.time() + 60, sleeper)
    assert len(deadlines) <= COMPACT_FROM
    deadlines.close()
