"""Deadlines that rarely come due (idle connections, stalled readers, handshakes), without a timer for each."""

from __future__ import annotations

import asyncio
from typing import Protocol

STEP_S = 1.0


class Watched(Protocol):
    def check(self, now: float) -> float | None:
        """Called at or soon after the requested time; returns the time of the next check, None for none."""
        ...


class Watch:
    """One per node, made while the node's loop runs. One timer, with the resolution of a step, serves all.

    `now` is the loop's time at the last step, cheap to read and exact enough for the time of last activity.
    """

    def __init__(self, step_s: float = STEP_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._step_s = step_s
        self.now = self._loop.time()
        self._passed = int(self.now / step_s)
        self._slots: dict[int, dict[Watched, None]] = {}
        self._slot_of: dict[Watched, int] = {}
        self._timer = self._loop.call_later(step_s, self._step)

    def at(self, when: float, watched: Watched) -> None:
        """Call `watched.check` at `when` (loop time, seconds) or up to a step later; an earlier deadline stays."""
        slot = max(int(when / self._step_s), self._passed) + 1
        known = self._slot_of.get(watched)
        if known is not None:
            if known <= slot:
                return
            self._slots[known].pop(watched, None)
        self._slot_of[watched] = slot
        self._slots.setdefault(slot, {})[watched] = None

    def forget(self, watched: Watched) -> None:
        slot = self._slot_of.pop(watched, None)
        if slot is not None:
            self._slots[slot].pop(watched, None)

    def close(self) -> None:
        """Forget all deadlines and stop the timer."""
        self._timer.cancel()
        self._slots.clear()
        self._slot_of.clear()

    def _step(self) -> None:
        self._timer = self._loop.call_later(self._step_s, self._step)
        self.now = now = self._loop.time()
        first, self._passed = self._passed + 1, int(now / self._step_s)
        for slot in range(first, self._passed + 1):
            due = self._slots.pop(slot, None)
            while due:  # a check may make the watch forget another of the same slot
                watched = next(iter(due))
                del due[watched], self._slot_of[watched]
                again = watched.check(now)
                if again is not None:
                    self.at(again, watched)
