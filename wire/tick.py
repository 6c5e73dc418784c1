"""Work at the end of this turn of the event loop: first wake-ups, then one flush per connection.

Under load this forms batches; an idle node delays nothing, because no timer is involved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Protocol, TypeVar

from wire.loop_meter import LoopMeter

T = TypeVar("T")

AT_ONCE_MAX = 32  # wake-ups, and flushes, in one turn: each may take most of a millisecond


class Flushable(Protocol):
    def flush(self) -> None: ...


class Tick:
    """One per node and event loop, made while that loop runs.

    A callback or connection that is added twice in a turn runs once, in the order of first adding. A wake-up added by
    another wake-up runs in the next turn, and so do those beyond the first `AT_ONCE_MAX`: one append may wake the
    fetches of thousands of consumers. The loop reports exceptions; the rest of the turn's work still runs. `meter`
    measures the turns, by `now`, which is the loop's time where nothing else is given, and by `cpu_s`, the processor
    time of the loop's thread.
    """

    def __init__(self, now: Callable[[], float] | None = None, cpu_s: Callable[[], float] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.meter = LoopMeter(self._loop.time if now is None else now, cpu_s)
        self._wakeups: dict[Callable[[], None], None] = {}
        self._flushes: dict[Flushable, None] = {}
        self.is_scheduled = False  # whether this turn's end will run anyway

    def wake(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the end of this turn, before the flushes."""
        self._wakeups[callback] = None
        if not self.is_scheduled:
            self.is_scheduled = True
            self._loop.call_soon(self._run)

    def flush(self, connection: Flushable) -> None:
        """Call `connection.flush()` at the end of this turn, after the wake-ups."""
        self._flushes[connection] = None
        if not self.is_scheduled:
            self.is_scheduled = True
            self._loop.call_soon(self._run)

    def end_turn(self) -> None:
        """Have this turn end, also when nothing is left to do at its end."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        if not self.meter.is_open:
            self.meter.begin()
        if wakeups := self._wakeups:
            if len(wakeups) <= AT_ONCE_MAX:
                self._wakeups = {}
            else:
                wakeups = _first(wakeups)
            for callback in wakeups:
                try:
                    callback()
                except Exception as error:
                    self._report(error)
        if flushes := self._flushes:
            if len(flushes) <= AT_ONCE_MAX:
                self._flushes = {}
            else:
                flushes = _first(flushes)
            for connection in flushes:
                try:
                    connection.flush()
                except Exception as error:
                    self._report(error)
        self.meter.end()
        self.is_scheduled = False
        if self._wakeups or self._flushes:
            self.is_scheduled = True
            self._loop.call_soon(self._run)

    def _report(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "failure at the end of a turn", "exception": error})


def _first(added: dict[T, None]) -> dict[T, None]:
    """Take out the first `AT_ONCE_MAX`."""
    taken = dict.fromkeys(islice(added, AT_ONCE_MAX))
    for one in taken:
        del added[one]
    return taken
