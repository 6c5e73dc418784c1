"""One handshake per turn of the event loop, so that the traffic of open connections runs between two of them.

A handshake takes a hundred times as long as relaying a request, so many new connections would stall the open ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class HandshakeQueue:
    """Handshake steps, at most one per opening connection. A step also runs when its connection has closed meanwhile,
    and has to check that."""

    __slots__ = ("_line", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def enter(self, step: Callable[[], None]) -> None:
        """Run `step` after everything that is ready in this turn, or in a later turn when others wait.

        It never runs at once, because a listener that is always ready would then have its handshake before each request
        that arrived during the last one.
        """
        self._line.append(step)
        if len(self._line) == 1:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        step = self._line.popleft()
        if self._line:
            self._loop.call_soon(self._turn)
        step()
