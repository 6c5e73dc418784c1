"""Deadlines: a heap, a queue by key, and the timer of waiting requests."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

TIMER_STEP_S = 0.005  # deadlines closer together than this share a timer
COMPACT_FROM = 128  # settled entries keep their requests in memory
DROPPED_AT_ONCE = 128  # settled entries removed from the front of the heap at a time

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


class DueHeap(Generic[Item]):
    """Items by due time; items with the same time in the order of their addition.

    Items are not removed before they are due. If an item's time changes or the item is no longer needed, the caller
    adds it again or not, and ignores the old entry when it is due. An entry is (when, serial, item).
    """

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, when: float, item: Item) -> None:
        self._serial += 1
        heappush(self._heap, (when, self._serial, item))

    def first(self) -> tuple[float, int, Item] | None:
        """The entry that is due first."""
        return self._heap[0] if self._heap else None

    def pop_first(self) -> tuple[float, int, Item]:
        return heappop(self._heap)

    def pop_due(self, now: float) -> tuple[float, int, Item] | None:
        """Remove and return the first entry, if it is due."""
        heap = self._heap
        return heappop(heap) if heap and heap[0][0] <= now else None

    def clear(self) -> None:
        self._heap.clear()


class DeadlineQueue(Generic[Key]):
    """At most one deadline per key, cheap to extend: a heartbeat costs one dictionary write. When a deadline moves
    later, its heap entry stays and is updated when it is due."""

    __slots__ = ("_deadlines", "_heap", "_queued")

    def __init__(self) -> None:
        self._deadlines: dict[Key, float] = {}
        self._queued: dict[Key, float] = {}
        self._heap: DueHeap[Key] = DueHeap()

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: Key) -> bool:
        return key in self._deadlines

    def set(self, key: Key, deadline: float) -> None:
        self._deadlines[key] = deadline
        queued = self._queued.get(key)
        if queued is None or deadline < queued:
            self._put_in(key, deadline)

    def cancel(self, key: Key) -> None:
        self._deadlines.pop(key, None)

    def first(self) -> float | None:
        """The time at which `take_due` may return something, and never later than the first deadline; None if there is
        no deadline."""
        heap = self._heap
        for _ in range(DROPPED_AT_ONCE):
            entry = heap.first()
            if entry is None or entry[2] in self._deadlines:
                break
            heap.pop_first()
            self._taken(entry[2], entry[0])
        entry = heap.first()
        return entry[0] if entry is not None and self._deadlines else None

    def take_due(self, now: float, looks: int) -> Iterator[Key]:
        """Remove and return keys whose deadlines have passed, one at a time.

        It ends after `looks` entries, which may be of deadlines that were cancelled or moved: `has_due` then.
        """
        for _ in range(looks):
            entry = self._heap.pop_due(now)
            if entry is None:
                return
            when, _, key = entry
            self._taken(key, when)
            deadline = self._deadlines.get(key)
            if deadline is None:
                continue
            if deadline <= now:
                del self._deadlines[key]
                yield key
            elif key not in self._queued:
                self._put_in(key, deadline)

    def has_due(self, now: float) -> bool:
        """Whether `take_due` has more to look at."""
        entry = self._heap.first()
        return entry is not None and entry[0] <= now

    def _put_in(self, key: Key, deadline: float) -> None:
        self._queued[key] = deadline
        self._heap.add(deadline, key)

    def _taken(self, key: Key, when: float) -> None:
        if self._queued.get(key) == when:
            del self._queued[key]


class Expirable(Protocol):
    """Something that waits. Once `settled`, it is dropped without a call."""

    settled: bool

    def expire(self, now: float) -> float | None:
        """Its deadline has passed. Returns a later deadline (loop seconds), or None if it is done."""
        ...


class Deadlines(DueHeap[Expirable]):
    """Deadlines of waiting requests, of which few ever pass, with one loop timer. Owns no task. The heap has at most
    twice the unsettled entries plus `COMPACT_FROM`."""

    __slots__ = ("_compact_at", "_loop", "_timer", "_timer_at")

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._compact_at = COMPACT_FROM
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def add(self, when: float, item: Expirable) -> None:
        """Call `item.expire` at `when` (loop seconds), unless it is settled by then."""
        heap = self._heap
        if len(heap) >= self._compact_at:
            heap[:] = [entry for entry in heap if not entry[2].settled]
            heapify(heap)
            self._compact_at = max(COMPACT_FROM, 2 * len(heap))
        self._serial += 1
        heappush(heap, (when, self._serial, item))  # `DueHeap.add` inlined: this runs for every fetch
        if self._timer is None or when < self._timer_at - TIMER_STEP_S:
            self._arm()

    def close(self) -> None:
        self.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer_at = max(self._heap[0][0], self._loop.time() + TIMER_STEP_S)
            self._timer = self._loop.call_at(self._timer_at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        again: list[tuple[float, Expirable]] = []
        while (entry := self.pop_due(now)) is not None:
            waiting = entry[2]
            if not waiting.settled and (later := waiting.expire(now)) is not None:
                again.append((later, waiting))
        for when, waiting in again:
            super().add(when, waiting)
        self._drop_settled()
        self._arm()

    def _drop_settled(self) -> None:
        """Drop settled entries before setting the timer. Nearly all requests are answered long before their deadlines,
        and the timer would wake the loop for each."""
        heap = self._heap
        for _ in range(min(len(heap), DROPPED_AT_ONCE)):
            if not heap[0][2].settled:
                break
            heappop(heap)
