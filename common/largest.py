"""The largest of many values, by key, and the sum of the others, in memory that the number of keys does not change."""

from __future__ import annotations

from heapq import heappush, heappushpop
from typing import Generic, TypeVar

Key = TypeVar("Key")


class Largest(Generic[Key]):
    """Keeps `count` keys. Of equal values those that came first stay."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._heap: list[tuple[float, int, Key]] = []
        self._added = 0
        self.rest = 0.0
        """The sum of the values that are not kept."""

    def add(self, key: Key, value: float) -> None:
        """Each key once."""
        self._added += 1
        entry = (value, -self._added, key)
        if len(self._heap) < self._count:
            heappush(self._heap, entry)
        elif self._count:
            self.rest += heappushpop(self._heap, entry)[0]
        else:
            self.rest += value

    @property
    def is_cut(self) -> bool:
        """Whether some keys are not kept."""
        return self._added > len(self._heap)

    def kept(self) -> list[tuple[Key, float]]:
        """Keys and values, the largest first."""
        return [(key, value) for value, _, key in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]
