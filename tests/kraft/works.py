"""Works of `common.pacing` for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from common.pacing import Work

T = TypeVar("T")


def at_hand(value: T) -> Work[T]:
    """A work whose result is known."""
    yield 1
    return value


def costs_of(work: Work[T], between: Callable[[], None] = lambda: None) -> tuple[list[int], T]:
    """The costs of a work's parts, and its result; `between` is called after each part but the last."""
    costs: list[int] = []
    while True:
        try:
            costs.append(next(work))
        except StopIteration as end:
            result: T = end.value
            return costs, result
        between()
