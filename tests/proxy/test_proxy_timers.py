"""What a worker does every few seconds goes on after it has failed."""

from __future__ import annotations

import asyncio
from typing import Any

from proxy.timers import Timers


async def test_an_action_that_fails_is_tried_again() -> None:
    loop, tried, well = asyncio.get_running_loop(), list[bool](), asyncio.Event()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    timers = Timers(loop)

    def action() -> None:
        tried.append(len(tried) != 1)
        if not tried[-1]:
            raise ValueError("this time")
        if len(tried) == 3:
            timers.cancel()
            well.set()

    timers.every(0.001, action)
    async with asyncio.timeout(30):
        await well.wait()
    assert tried == [True, False, True]
    assert [str(context["exception"]) for context in told] == ["this time"]
