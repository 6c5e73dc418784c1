"""How long jobs wait for an event loop and hold it, measured at its turns. See `common.loop_load` for what it is for.

A job is a frame, or a step of a connection that is opened. Its bytes come while the loop is in an earlier turn, or wait
in the kernel until the jobs before them are done; nothing tells when. So its wait is taken as the time from its turn's
begin to its own, and half of the turn before if that ended less than `BACK_TO_BACK_S` ago, because then it came at any
time of that turn. What follows a job is not its wait: parked fetches, high watermarks, muted connections, downloads.
"""

from __future__ import annotations

from collections.abc import Callable

from common.loop_load import LoopCounters

BACK_TO_BACK_S = 50e-6


class LoopMeter:
    """One per event loop. `now` is a monotonic time in seconds that goes on within a turn.

    The calls of a turn: `begin` when a socket is readable, `job` when one of its frames is handled, `end` when the
    turn's work is done. Sums are settled at the end of a turn, so that a job costs a few additions.
    """

    __slots__ = (
        "_began",
        "_busy_s",
        "_carried_s",
        "_ended",
        "_jobs",
        "_jobs_own_s",
        "_jobs_squares",
        "_jobs_waited",
        "_last_s",
        "_mark",
        "_now",
        "_service_s",
        "_service_squares",
        "_total",
        "_wait_s",
        "is_open",
    )

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.is_open = False  # within a turn
        self._total = 0
        self._wait_s = self._service_s = self._service_squares = self._busy_s = 0.0
        self._began = self._mark = 0.0
        self._ended, self._last_s = float("-inf"), 0.0  # of the turn before: its end and length
        self._carried_s = 0.0  # time of turns without a job; it belongs to the next one, whose frame they received
        self._jobs = 0  # of this turn, with the sums of their waits, times and squared times
        self._jobs_waited = self._jobs_own_s = self._jobs_squares = 0.0

    def begin(self) -> None:
        """A callback of the loop begins; jobs may follow."""
        self._mark = now = self._now()
        if not self.is_open:
            self.is_open = True
            self._began = now

    def job(self) -> float:
        """A job has ended, which began at the last job's end or at `begin`; return the seconds that it took."""
        mark = self._mark
        self._mark = now = self._now()
        own_s = now - mark
        self._jobs += 1
        self._jobs_waited += mark - self._began
        self._jobs_own_s += own_s
        self._jobs_squares += own_s * own_s
        return own_s

    def end(self) -> None:
        """The turn ends."""
        if not self.is_open:
            return
        self.is_open = False
        now, began, jobs = self._now(), self._began, self._jobs
        length_s = now - began
        self._busy_s += length_s
        if jobs:
            before_s = self._last_s / 2 if began - self._ended < BACK_TO_BACK_S else 0.0
            self._wait_s += self._jobs_waited + jobs * before_s
            own_s = self._jobs_own_s
            shared_s = length_s - own_s + self._carried_s  # the flushes, and what ran between the jobs
            each_s = shared_s / jobs
            self._service_s += own_s + shared_s
            self._service_squares += self._jobs_squares + each_s * (2 * own_s + shared_s)
            self._total += jobs
            self._carried_s = 0.0
            self._jobs = 0
            self._jobs_waited = self._jobs_own_s = self._jobs_squares = 0.0
        else:
            self._carried_s += length_s
        self._ended, self._last_s = now, length_s

    @property
    def waits(self) -> tuple[int, float]:
        """The jobs so far, and the seconds for which they waited together."""
        return self._total, self._wait_s

    @property
    def counters(self) -> LoopCounters:
        """As of the last turn that has ended."""
        return LoopCounters(self._total, self._wait_s, self._service_s, self._service_squares, self._busy_s)
