"""The work of each callback, counted: the rule that no callback holds a node's loop, without a clock.

A unit is one event of the interpreter's profiler: a Python function, a generator or a built-in function is entered or
left. A callback has the same count on every machine, and no other process can add to it. `UNITS_MAX` stands for 50 ms:
a unit is at most a quarter of a microsecond of CPU on a slow core (`python -m tests.sim.work_unit` measures it). Loops
without a call, and long work of one built-in function, are not seen; the laboratories, which measure CPU time, see it.

A counted run takes nearly twice as long. So one seed in `COUNTED_EVERY` is counted, and the scenes that are about work.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from types import FrameType

from tests.sim.loop import SimLoop, SimulationFailure, label, run_callback

UNITS_MAX = 200_000
UNIT_NS = 250
COUNTED_EVERY = 16
FRAMES_TOLD = 8


class LoopHeld(SimulationFailure):
    """A callback did more than a node's loop can wait for."""


class WorkCount:
    """Counts what each callback of some nodes does. One that does more than `units_max` fails the run.

    With `takes_time` a callback lasts as long as it would on a slow core, so that a node that is held is late.
    """

    def __init__(self, nodes: Iterable[str], units_max: int = UNITS_MAX, *, takes_time: bool = False) -> None:
        self.costliest = 0
        self.costliest_is = ""  # units, node and name of that callback
        self.units = 0  # of the newest callback
        self.nodes = frozenset(nodes)
        self._units_max = units_max
        self._takes_time = takes_time
        self._where: list[str] = []

    def run(self, loop: SimLoop, handle: asyncio.Handle) -> None:
        """Run a callback as its loop would."""
        if loop.name not in self.nodes:
            run_callback(loop, handle)
            return
        self.units, self._where = 0, []
        sys.setprofile(self._count)
        try:
            run_callback(loop, handle)
        finally:
            sys.setprofile(None)
            if self._takes_time:
                loop.stall(self.units * UNIT_NS)
            if self.units > self.costliest:
                self.costliest = self.units
                self.costliest_is = f"{self.units} units, {loop.name}: {label(handle)}"
            if self._where:
                where = " < ".join(self._where)
                error = LoopHeld(f"{loop.name}: {label(handle)} did {self.units} units of work in one go, in {where}")
                loop.scheduler.fail(error)

    def _count(self, frame: FrameType, event: str, arg: object) -> None:
        self.units += 1
        if self.units == self._units_max:
            self._where = innermost(frame)


def innermost(frame: FrameType | None) -> list[str]:
    """Where the interpreter stands, the innermost frame first."""
    told: list[str] = []
    while frame is not None and len(told) < FRAMES_TOLD:
        told.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return told
