"""How much some code does, counted in calls of functions: no clock, and no other process adds to it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any


class CallCount:
    """`calls` counts Python and built-in functions, and resumptions of generators, between begin and end.

    With `of`, the code of a Python function, it counts only the calls of that one.
    """

    def __init__(self, of: CodeType | None, outer: Callable[..., object] | None) -> None:
        self.calls = 0
        self._of = of
        self._outer = outer

    def noted(self, frame: FrameType, event: str, arg: object) -> None:
        if self._outer is not None:
            self._outer(frame, event, arg)
        if self._of is None:
            self.calls += event in ("call", "c_call")
        else:
            self.calls += event == "call" and frame.f_code is self._of


@contextmanager
def counted_calls(of: Callable[..., Any] | None = None) -> Iterator[CallCount]:
    """Count the calls of this thread within the block: all of them, or those of the Python function or generator `of`.
    What one built-in function does at length is not seen. Blocks within each other count each for itself. Garbage is
    collected later: who watches collections would be counted now and then."""
    before, collects = sys.getprofile(), gc.isenabled()
    count = CallCount(of.__code__ if of is not None else None, before)
    gc.disable()
    sys.setprofile(count.noted)
    try:
        yield count
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
