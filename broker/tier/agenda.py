"""The led partitions that a broker's tier must look at now: those with something to do, not all of them.

A partition is in the list, or has a time at which it returns to it, or waits for a free place for a claim, copy or
deletion. One that is being worked on returns when the work ends. An idle partition returns only for retention and to
roll an old segment, and costs nothing in between.
"""

from __future__ import annotations

from broker.deadlines import DueHeap
from broker.tier.config import WorkKind
from broker.tier.led import LedPartition
from common.pacing import Work

POP_COST = 4


class Agenda:
    """No I/O; times are loop seconds."""

    def __init__(self, places: dict[WorkKind, int]) -> None:
        """`places`: how many partitions may be at each kind of work at a time."""
        self._places = places
        self._soon: dict[LedPartition, None] = {}
        self._later: DueHeap[LedPartition] = DueHeap()
        # when each partition returns; entries of `_later` with another time are obsolete
        self._times: dict[LedPartition, float] = {}
        self._blocked: dict[WorkKind, dict[LedPartition, None]] = {kind: {} for kind in places}
        self._running = dict.fromkeys(places, 0)

    def soon(self, led: LedPartition) -> None:
        """Look at the partition in the next round."""
        self._soon[led] = None

    def at(self, led: LedPartition, when: float, now: float) -> None:
        """Look at the partition at `when` or before. An earlier time that was set stays, at the cost of one extra
        look."""
        named = self._times.get(led)
        if named is None or not now < named <= when:
            self._times[led] = when
            self._later.add(when, led)

    def may_begin(self, led: LedPartition, kind: WorkKind) -> bool:
        """Whether there is a free place for it; if not, it returns when one is free, in turn."""
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
        """Remove and return those whose turn it is."""
        while (entry := self._later.pop_due(now)) is not None:
            when, _, led = entry
            if self._times.get(led) == when:  # otherwise another time was set since
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
