"""One handshake per turn of the event loop, so that the traffic of open connections runs between two of them.

A handshake takes a hundred times as long as passing a request on. Without this a storm of new connections would hold
up everybody else for as long as it takes to greet all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Turnstile:
    """Its line is as long as there are connections being opened; who gave up meanwhile knows it when called."""

    __slots__ = ("_line", "_loop", "_turning")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[Callable[[], None]] = deque()
        self._turning = False

    def __len__(self) -> int:
        return len(self._line)

    def enter(self, step: Callable[[], None]) -> None:
        """Run `step` at once if nobody went through in this turn, else in a later one."""
        if self._turning:
            self._line.append(step)
            return
        self._turning = True
        self._loop.call_soon(self._turn)
        step()

    def _turn(self) -> None:
        if not self._line:
            self._turning = False
            return
        self._loop.call_soon(self._turn)
        self._line.popleft()()
