"""How long things wait in a queue, all added up: the sum of its length over time, without a time for each of them."""

from __future__ import annotations

from collections.abc import Callable


class QueueTime:
    """`now` is in seconds and never falls."""

    __slots__ = ("_at", "_length", "_now", "_seconds")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._length = 0
        self._at = now()
        self._seconds = 0.0

    def is_now(self, length: int) -> None:
        """So many wait from now on."""
        now = self._now()
        self._seconds += self._length * (now - self._at)
        self._at, self._length = now, length

    def changed(self, more: int) -> None:
        """So many more wait; negative when they leave."""
        self.is_now(self._length + more)

    @property
    def seconds(self) -> float:
        """Of those that wait still, too."""
        return self._seconds + self._length * (self._now() - self._at)
