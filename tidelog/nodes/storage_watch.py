"""Finds that a node's storage is stuck: a thread's write or flush, or a turn of the event loop, that does not end.

Nothing here reads a clock, a disk or a loop: `tidelog/nodes/storage_watchdog.py` looks and acts. An operation's age is
the time for which the watchdog itself has run since it first saw the operation. So a process that was stopped, or whose
virtual machine was suspended, finds nothing stuck when it goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TURN = "a turn of the event loop"
LOOP_RUNS_S = 1.0  # a loop that has not answered for this long is not relied upon


class Stuck(NamedTuple):
    """What does not end, for how long by now in seconds, and whether the event loop still runs."""

    what: str
    seconds: float
    loop_runs: bool


class StorageWatch:
    """`stuck_s`: the age at which an operation counts as stuck. `interval_s`: the time between two looks."""

    __slots__ = ("_interval_s", "_lived_s", "_seen", "_stuck_s", "_turn_s", "oldest_s")

    def __init__(self, stuck_s: float, interval_s: float) -> None:
        self._stuck_s = stuck_s
        self._interval_s = interval_s
        self._lived_s = 0.0
        self._seen: dict[int, float] = {}
        self._turn_s = 0.0
        self.oldest_s = 0.0
        """The age of the oldest operation or turn, as of the last look."""

    def look(self, passed_s: float, is_answered: bool, busy_s: float, running: Mapping[int, str]) -> Stuck | None:
        """What is stuck now, or None. `passed_s`: since the last look.

        `is_answered`: the loop has answered the last question. `busy_s`: how long the loop's thread has used a
        processor, or waited for one, since the last look: a loop that works does not wait for a disk. `running`:
        the threads' operations, see `DiskOperations`.
        """
        ran_s = min(passed_s, self._interval_s)
        self._lived_s += ran_s
        self._turn_s = 0.0 if is_answered else self._turn_s + max(0.0, ran_s - busy_s)
        lived_s, seen = self._lived_s, self._seen
        self._seen = {number: seen.get(number, lived_s) for number in running}
        oldest = min(self._seen, key=self._seen.__getitem__, default=None)
        oldest_s = 0.0 if oldest is None else lived_s - self._seen[oldest]
        self.oldest_s = max(oldest_s, self._turn_s)
        if self._turn_s >= self._stuck_s:
            return Stuck(TURN, self._turn_s, loop_runs=False)
        if oldest is not None and oldest_s >= self._stuck_s:
            return Stuck(running[oldest], oldest_s, loop_runs=self._turn_s < LOOP_RUNS_S)
        return None
