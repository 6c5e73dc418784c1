"""The end of a loop turn, and deadlines without timers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from wire.tick import AT_ONCE_MAX, Tick
from wire.watch import Watch

pytestmark = pytest.mark.virtual_time


class Flushed:
    def __init__(self, log: list[str], name: str) -> None:
        self._log = log
        self._name = name

    def flush(self) -> None:
        self._log.append(self._name)


async def test_wakeups_come_once_and_before_flushes() -> None:
    tick, log = Tick(), list[str]()
    one = Flushed(log, "flush 1")

    def wake() -> None:
        log.append("wake")
        tick.flush(two)

    two = Flushed(log, "flush 2")
    tick.flush(one)
    tick.wake(wake)
    tick.wake(wake)
    tick.flush(one)
    assert log == []
    await asyncio.sleep(0)
    assert log == ["wake", "flush 1", "flush 2"]


async def test_a_wakeup_that_wakes_another_is_not_lost() -> None:
    tick, log = Tick(), list[int]()

    def wake(depth: int) -> None:
        log.append(depth)
        if depth:
            tick.wake(lambda: wake(depth - 1))

    tick.wake(lambda: wake(3))
    for _ in range(5):
        await asyncio.sleep(0)
    assert log == [3, 2, 1, 0]


async def test_one_failure_is_told_and_harms_no_other() -> None:
    tick, log = Tick(), list[str]()
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

    def fail() -> None:
        raise RuntimeError("bug")

    tick.wake(fail)
    tick.wake(lambda: log.append("other"))
    tick.flush(Flushed(log, "flush"))
    await asyncio.sleep(0)
    assert log == ["other", "flush"]
    assert [str(error) for error in told] == ["bug"]


class Checked:
    def __init__(self, again: float | None = None) -> None:
        self.times: list[float] = []
        self._again = again

    def check(self, now: float) -> float | None:
        self.times.append(now)
        return None if self._again is None else now + self._again


async def test_deadlines_come_due_once_and_never_early() -> None:
    loop = asyncio.get_running_loop()
    watch = Watch(0.01)
    start = loop.time()
    one, two, gone = Checked(), Checked(0.02), Checked()
    watch.at(start + 0.05, one)
    watch.at(start + 0.03, two)
    watch.at(start + 0.03, gone)
    watch.forget(gone)
    watch.at(start + 0.2, one)  # the earlier wish stands
    await asyncio.sleep(0.12)
    assert len(one.times) == 1
    assert one.times[0] >= start + 0.05
    assert len(two.times) >= 2
    assert gone.times == []
    watch.close()
    seen = len(two.times)
    await asyncio.sleep(0.05)
    assert len(two.times) == seen


async def test_a_deadline_can_be_moved_forward() -> None:
    loop = asyncio.get_running_loop()
    watch = Watch(0.01)
    one = Checked()
    watch.at(loop.time() + 60, one)
    watch.at(loop.time() + 0.01, one)
    await asyncio.sleep(0.06)
    assert len(one.times) == 1
    watch.close()


async def test_no_turn_runs_the_wake_ups_or_flushes_of_thousands() -> None:
    tick, turn = Tick(), 0
    ran: list[tuple[int, int]] = []
    flushed: list[tuple[int, int]] = []

    class Connection:
        def __init__(self, number: int) -> None:
            self.number = number

        def flush(self) -> None:
            flushed.append((turn, self.number))

    many = 10 * AT_ONCE_MAX + 1
    for number in range(many):
        tick.wake(lambda number=number: ran.append((turn, number)))  # type: ignore[misc]
        tick.flush(Connection(number))
    while len(ran) < many or len(flushed) < many:
        turn += 1
        assert turn <= many
        await asyncio.sleep(0)
    for done in (ran, flushed):
        assert [number for _, number in done] == list(range(many)), "each once, in the order of adding"
        assert max(Counter(at for at, _ in done).values()) == AT_ONCE_MAX
