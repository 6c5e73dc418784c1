"""How much the callbacks of an event loop do, counted in calls of functions: no clock, and no other process adds to
it."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class CallbackCalls:
    """A profiler that counts the calls which each callback of the loop makes, in Python and in C.

    The loop's own calls between callbacks do not count: after a stall of the machine it sorts all timers that are due.
    """

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()  # calls by name, of the callback that made the most
        self._calls: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, called: object) -> None:
        if event == "call":
            self._calls[frame.f_code.co_qualname] += 1
        elif event in ("c_call", "c_return", "c_exception") and _is_of_loop(frame):
            if event != "c_call" and self._calls.total() > self.most.total():
                self.most = self._calls
            self._calls = Counter()
        elif event == "c_call":
            self._calls[getattr(called, "__qualname__", "")] += 1


@contextmanager
def counted_callbacks() -> Iterator[CallbackCalls]:
    """Count within the block, which the callback that runs it leaves and comes back to. Garbage is collected later."""
    counted, collects = CallbackCalls(), gc.isenabled()
    gc.disable()
    sys.setprofile(counted)
    try:
        yield counted
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()


def _is_of_loop(frame: FrameType) -> bool:
    return frame.f_code.co_name == "_run" and frame.f_globals["__name__"] == asyncio.events.__name__
