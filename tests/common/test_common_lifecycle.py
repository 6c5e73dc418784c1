"""A node stops when a part of it that must not end has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from common.invariants import InvariantViolation
from common.lifecycle import OnDemand, duty, watch_tasks


async def fails(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def outcome(coroutine: Coroutine[Any, Any, None], name: str) -> list[str]:
    loop = asyncio.get_running_loop()
    said: list[str] = []
    watch_tasks(loop, said.append)
    try:
        await asyncio.gather(loop.create_task(coroutine, name=name), return_exceptions=True)
        await asyncio.sleep(0)
    finally:
        loop.set_task_factory(None)
        loop.set_exception_handler(None)
    return said


async def test_a_duty_that_ends_with_an_exception_stops_the_node() -> None:
    assert await outcome(fails(OSError("gone")), duty("follow-2")) == ["follow-2 ended with OSError: gone"]


@pytest.mark.parametrize("error", [OSError("gone"), asyncio.CancelledError()])
async def test_a_request_that_fails_does_not(error: BaseException) -> None:
    assert await outcome(fails(error), "api-3") == []


async def test_a_cancelled_duty_does_not() -> None:
    assert await outcome(fails(asyncio.CancelledError()), duty("follow-2")) == []


async def test_a_broken_invariant_stops_the_node_wherever_it_shows() -> None:
    assert await outcome(fails(InvariantViolation("no")), "api-3") == ["a broken invariant: no"]
    loop = asyncio.get_running_loop()
    said: list[str] = []
    watch_tasks(loop, said.append)

    def callback() -> None:
        raise InvariantViolation("in a callback")

    loop.call_soon(callback)
    await asyncio.sleep(0.01)
    loop.set_task_factory(None)
    loop.set_exception_handler(None)
    assert said == ["a broken invariant: in a callback"]


@pytest.mark.parametrize("turns", range(6))
async def test_what_is_added_while_the_work_ends_is_worked_on(turns: int) -> None:
    """Whichever turn of the loop it is added in, counted from the last step of the work before."""
    waiting, done = ["first"], list[str]()
    emptied, failures = asyncio.Event(), list[BaseException]()

    async def work() -> None:
        while waiting:
            await asyncio.sleep(0)
            done.append(waiting.pop())
            emptied.set()

    duty_on_demand = OnDemand("work", work, failures.append)
    duty_on_demand.begin()
    await emptied.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.append("second")
    duty_on_demand.begin()
    duty_on_demand.begin()
    await duty_on_demand.idle()
    assert (done, waiting, failures) == (["first", "second"], [], [])


async def test_work_that_fails_is_told_and_begins_anew() -> None:
    failures: list[BaseException] = []
    failing = OnDemand("work", lambda: fails(OSError("gone")), failures.append)
    for count in (1, 2):
        failing.begin()
        await failing.idle()
        await asyncio.sleep(0)
        assert [str(error) for error in failures] == ["gone"] * count
