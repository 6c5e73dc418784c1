"""Stops a node when one of its permanent tasks fails.

Some tasks run as long as their node: they follow a leader, send heartbeats, or fence silent brokers. No code awaits
such a task, so its exception would be lost. They get a name by `duty` (`duty("follow-2")`), and the node's process
watches all its tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from common.invariants import InvariantViolation

_DUTY = "duty/"


def duty(name: str) -> str:
    """The name of a task that must not end before its node does."""
    return _DUTY + name


async def end_task(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task, if there is one, and wait for its end, whatever its outcome."""
    if task is not None:
        await end_tasks([task])


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """`end_task` for several, concurrently."""
    ended = list(tasks)
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)


class OnDemand:
    """A duty that runs while there is work; `work` returns when it finds none.

    Call `begin` after adding work. It reads from the task itself whether that has ended, because the task's callbacks
    run a turn of the loop later, and work added in between would wait for the next addition.
    """

    __slots__ = ("_failed", "_name", "_task", "_work")

    def __init__(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], failed: Callable[[BaseException], None]
    ) -> None:
        """`failed` is called with the exception that ended `work`, except a cancellation."""
        self._name = duty(name)
        self._work = work
        self._failed = failed
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start the task unless it runs already."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work(), name=self._name)
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)

    async def idle(self) -> None:
        """Wait until the task has ended."""
        while self._task is not None and not self._task.done():
            await asyncio.wait((self._task,))


def watch_tasks(loop: asyncio.AbstractEventLoop, fatal: Callable[[str], None]) -> None:
    """Call `fatal` with a message when a duty ends with an exception or an invariant is broken."""

    def ended(task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, InvariantViolation):
            fatal(f"a broken invariant: {error}")
        elif error is not None and task.get_name().startswith(_DUTY):
            fatal(f"{task.get_name().removeprefix(_DUTY)} ended with {type(error).__name__}: {error}")

    def make(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        task.add_done_callback(ended)
        return task

    def surprised(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, InvariantViolation):
            fatal(f"a broken invariant: {error}")
        loop.default_exception_handler(context)

    loop.set_task_factory(make)  # type: ignore[arg-type]  # the stub wants a generator's type as well
    loop.set_exception_handler(surprised)
