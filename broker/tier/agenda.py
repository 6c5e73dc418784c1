"""Which led partitions a broker's tier has to look at now: those with something to do, not all of them.

A partition is on the list, or has a time at which it comes back, or waits for a place among those that claim, copy or
delete. One that does none of that is at work, and comes back at the work's end. An idle one comes back for its
retention and to close an old segment, and costs nothing in between.
"""

from __future__ import annotations

from broker.deadlines import DueHeap
from broker.tier.config import WorkKind
from broker.tier.led import LedPartition
from common.pacing import Work

POP_COST = 4


class Agenda:
    """Pure; times are loop seconds."""

    def __init__(self, places: dict[WorkKind, int]) -> None:
        """`places`: how many partitions may be at each kind of work at one time."""
        self._places = places
        self._soon: dict[LedPartition, None] = {}
        self._later: DueHeap[LedPartition] = DueHeap()
        self._times: dict[LedPartition, float] = {}  # of those that come back; other entries of `_later` are void
        self._blocked: dict[WorkKind, dict[LedPartition, None]] = {kind: {} for kind in places}
        self._running = dict.fromkeys(places, 0)

    def soon(self, led: LedPartition) -> None:
        """Look at it in the next round."""
        self._soon[led] = None

    def at(self, led: LedPartition, when: float, now: float) -> None:
        """Look at it then, at the latest: a time before that was named stands, and looks once too often."""
        named = self._times.get(led)
        if named is None or not now < named <= when:
            self._times[led] = when
            self._later.add(when, led)

    def may_begin(self, led: LedPartition, kind: WorkKind) -> bool:
        """Whether there is a place for it; else it comes back when one is free, in turn."""
        if self._running[kind] < self._places[kind]:
            return True
        self._blocked[kind][led] = None
        return False

    def began(self, kind: WorkKind) -> None:
        """A partition has taken a place."""
        self._running[kind] += 1

    def ended(self, kind: WorkKind) -> None:
        self._running[kind] -= 1

    def take(self, now: float) -> Work[list[LedPartition]]:
        """Those whose turn it is; they are not on the list any more."""
        while (entry := self._later.pop_due(now)) is not None:
            when, _, led = entry
            if self._times.get(led) == when:  # else another time was named since
                del self._times[led]
                self._soon[led] = None
            yield POP_COST
        for kind, blocked in self._blocked.items():
            for _ in range(min(self._places[kind] - self._running[kind], len(blocked))):
                led = next(iter(blocked))
                del blocked[led]
                self._soon[led] = None
        taken, self._soon = list(self._soon), {}
        return taken

    def forget(self, led: LedPartition) -> None:
        self._soon.pop(led, None)
        self._times.pop(led, None)
        for blocked in self._blocked.values():
            blocked.pop(led, None)
