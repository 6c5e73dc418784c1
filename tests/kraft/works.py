"""Works of `common.pacing` for tests."""

from __future__ import annotations

from typing import TypeVar

from common.pacing import Work

T = TypeVar("T")


def at_hand(value: T) -> Work[T]:
    """A work whose result is known."""
    yield 1
    return value
