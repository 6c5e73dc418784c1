"""How much a long work does between two yields, counted in lines of Python that are run: no clock, no other process.

A loop in one expression counts for each of its rounds. What one built-in function does at length is not seen.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType, GeneratorType
from typing import Any


class LineCount:
    """`most` is the largest number of lines in one go, and `where` the functions in which most of them were."""

    def __init__(self) -> None:
        self.most = 0
        self.where = ""
        self._places: Counter[str] = Counter()

    def of(self, decide: Callable[[], Any]) -> Any:
        """The result of `decide`, or of the work that it returns."""
        outcome = self._counted(decide)
        if not isinstance(outcome, GeneratorType):
            return outcome
        while True:
            try:
                self._counted(lambda: next(outcome))
            except StopIteration as end:
                return end.value

    def _counted(self, function: Callable[[], Any]) -> Any:
        self._places.clear()
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return function()
        finally:
            sys.settrace(before)
            if (lines := self._places.total()) > self.most:
                self.most = lines
                self.where = ", ".join(f"{place} {count}" for place, count in self._places.most_common(3))

    def _trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            self._places[f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"] += 1
        return self._trace
