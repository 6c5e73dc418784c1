"""One handshake per turn of the event loop, so that the traffic of open connections runs between two of them.

A handshake takes a hundred times as long as passing a request on. Without this queue, many new connections would stall
the open ones until all handshakes are done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Turnstile:
    """A queue of handshake steps, at most one for each connection that is being opened. A step of a connection that has
    closed meanwhile is called too, and has to notice."""

    __slots__ = ("_line", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def enter(self, step: Callable[[], None]) -> None:
        """Run `step` after what is ready in this turn already, or in a later turn when others wait.

        Never at once: the loop serves descriptors in the order in which they became ready, and a listener that is
        always ready would have its handshake before each request that came during the last one.
        """
        self._line.append(step)
        if len(self._line) == 1:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        step = self._line.popleft()
        if self._line:
            self._loop.call_soon(self._turn)
        step()
