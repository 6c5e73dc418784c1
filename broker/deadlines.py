"""Deadlines that are set for every waiting request and nearly never pass: one heap and one loop timer."""

from __future__ import annotations

import asyncio
import heapq
from typing import Protocol

TIMER_STEP_S = 0.005  # deadlines closer together than this share a timer
COMPACT_FROM = 128  # settled entries hold their request in memory


class Expirable(Protocol):
    """Something that waits. Once `settled` it is dropped without a call."""

    settled: bool

    def expire(self, now: float) -> float | None:
        """Its deadline has passed; a later deadline (loop seconds) to wait for, or None when it is done."""
        ...


class Deadlines:
    """Owns no task. The heap holds at most twice the unsettled entries plus `COMPACT_FROM`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int, Expirable]] = []
        self._serial = 0
        self._compact_at = COMPACT_FROM
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def add(self, when: float, waiting: Expirable) -> None:
        """Call `waiting.expire` at `when` (loop seconds), unless it is settled by then."""
        heap = self._heap
        if len(heap) >= self._compact_at:
            heap[:] = [entry for entry in heap if not entry[2].settled]
            heapq.heapify(heap)
            self._compact_at = max(COMPACT_FROM, 2 * len(heap))
        self._serial += 1
        heapq.heappush(heap, (when, self._serial, waiting))
        if self._timer is None or when < self._timer_at - TIMER_STEP_S:
            self._arm()

    def close(self) -> None:
        self._heap.clear()
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
        heap = self._heap
        again: list[tuple[float, Expirable]] = []
        while heap and heap[0][0] <= now:
            waiting = heapq.heappop(heap)[2]
            if not waiting.settled and (later := waiting.expire(now)) is not None:
                again.append((later, waiting))
        for when, waiting in again:
            self._serial += 1
            heapq.heappush(heap, (when, self._serial, waiting))
        self._arm()
