"""The writes and flushes that threads have begun and not ended, so that one that never ends can be found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count


class DiskOperations:
    """Of one log directory. Threads add and remove their own operations; another thread may look at any time.

    Each step is one operation on a dict or counter, which the interpreter's lock makes whole. There is no lock of its
    own, because a thread that hangs in the kernel must not block the one that looks.
    """

    __slots__ = ("_numbers", "_running")

    def __init__(self) -> None:
        self._numbers = count()
        self._running: dict[int, str] = {}

    @contextmanager
    def operation(self, what: str) -> Iterator[None]:
        """Around one call into the kernel that may wait for the device."""
        number = next(self._numbers)
        self._running[number] = what
        try:
            yield
        finally:
            del self._running[number]

    def running(self) -> dict[int, str]:
        """What has begun and not ended, by a number that is never used again."""
        return self._running.copy()
