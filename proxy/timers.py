"""Periodic actions on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timers:
    """Actions of one owner, each at its own interval."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: list[asyncio.TimerHandle] = []

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        """Act now, and at each interval until `cancel`."""
        number = len(self._timers)
        self._timers.append(self._loop.call_later(seconds, lambda: None))

        def again() -> None:
            # scheduled first, so that an action that raises runs again
            self._timers[number] = self._loop.call_later(seconds, again)
            action()

        again()

    def cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()
