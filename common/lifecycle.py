"""What becomes of a node whose own parts fail: it stops, instead of only seeming to live.

Some tasks run for as long as their node does: one that follows a leader, beats to the controller, or fences brokers
that fell silent. When such a task ends with an exception, the exception would be lost, because no code awaits it. They
are made by name (`duty("follow-2")`), and the node's process watches all that it makes.
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
    """Cancel a task of one's own, if there is one, and wait until it has ended, however it does."""
    if task is not None:
        await end_tasks([task])


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """As `end_task`, all at the same time."""
    ended = list(tasks)
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)


class OnDemand:
    """A duty that runs while there is something to do: `work` returns when it finds nothing more.

    Call `begin` after adding something. Whether the task is over is read from the task itself: its callbacks run a turn
    of the loop later, and what was added in between would wait for the next addition.
    """

    __slots__ = ("_failed", "_name", "_task", "_work")

    def __init__(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], failed: Callable[[BaseException], None]
    ) -> None:
        """`failed` is called with what ended `work`, unless that is a cancellation."""
        self._name = duty(name)
        self._work = work
        self._failed = failed
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Work, unless that happens already."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work(), name=self._name)
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)

    async def idle(self) -> None:
        """Return when nothing is worked on."""
        while self._task is not None and not self._task.done():
            await asyncio.wait((self._task,))


def watch_tasks(loop: asyncio.AbstractEventLoop, fatal: Callable[[str], None]) -> None:
    """Call `fatal` with a sentence when a duty ends with an exception, or anything breaks an invariant."""

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
