"""How much some code does, counted in calls of functions: no clock, and no other process adds to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class CallCount:
    """`calls` counts Python and built-in functions, and resumptions of generators, between begin and end."""

    def __init__(self) -> None:
        self.calls = 0

    def noted(self, _frame: FrameType, event: str, _arg: object) -> None:
        if event in ("call", "c_call"):
            self.calls += 1


@contextmanager
def counted_calls() -> Iterator[CallCount]:
    """Count the calls of this thread within the block. What one built-in function does at length is not seen."""
    count, before = CallCount(), sys.getprofile()
    sys.setprofile(count.noted)
    try:
        yield count
    finally:
        sys.setprofile(before)
