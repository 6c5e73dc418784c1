"""Deadlines by key over one heap, cheap to push back: a heartbeat costs one dictionary write."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class DeadlineQueue(Generic[Key]):
    """At most one deadline per key. A deadline that moves later leaves its heap entry, which is put back when met."""

    __slots__ = ("_count", "_deadlines", "_heap", "_queued")

    def __init__(self) -> None:
        self._deadlines: dict[Key, float] = {}
        self._queued: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: Key) -> bool:
        return key in self._deadlines

    def set(self, key: Key, deadline: float) -> None:
        self._deadlines[key] = deadline
        queued = self._queued.get(key)
        if queued is None or deadline < queued:
            self._push(key, deadline)

    def cancel(self, key: Key) -> None:
        self._deadlines.pop(key, None)

    def first(self) -> float | None:
        """A moment at which `pop_due` may find something; never later than the first deadline."""
        while self._heap and self._heap[0][2] not in self._deadlines:
            self._discard_first()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Key | None:
        """One key whose deadline has passed, taken out; None when there is none."""
        while self._heap and self._heap[0][0] <= now:
            key = self._heap[0][2]
            self._discard_first()
            deadline = self._deadlines.get(key)
            if deadline is None:
                continue
            if deadline <= now:
                del self._deadlines[key]
                return key
            if key not in self._queued:
                self._push(key, deadline)
        return None

    def _push(self, key: Key, deadline: float) -> None:
        self._queued[key] = deadline
        self._count += 1
        heappush(self._heap, (deadline, self._count, key))

    def _discard_first(self) -> None:
        deadline, _, key = heappop(self._heap)
        if self._queued.get(key) == deadline:
            del self._queued[key]
