"""How long jobs wait for an event loop and hold it, measured at its turns. See `common.loop_load` for what it is for.

A job is a frame, or a step of a connection that is opened. Its bytes come while the loop is in an earlier turn, or wait
in the kernel until the jobs before them are done; nothing tells when. So its wait is taken as the time from its turn's
begin to its own, and half of the turn before if that ended less than `BACK_TO_BACK_S` ago, because then it came at any
time of that turn. What follows a job is not its wait: parked fetches, high watermarks, muted connections, downloads.

Between two turns the loop asks the kernel what is readable. The more is to be done, the more jobs share one such step,
so that it is no load of theirs; `loop_s` tells apart what it takes. How long a step is shows where turns follow at
once. To sleep and wake up takes some four times as long, and only the processor's clock shows that. It is read around
one pause in `WATCHED_ONE_IN`. Of the last few pauses that were watched, those in which the thread had no processor for
a while count as sleep, as long as the shortest of them, because other work between turns is load.

A turn, too, has a fixed cost that its jobs share. It is no load either, and goes to `loop_s`. It is the intercept of
the straight line through the turns' lengths over their jobs, as the mean of some lines, because few long jobs move one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from common.loop_load import LoopCounters

BACK_TO_BACK_S = 50e-6
STEP_NEW = 1 / 64  # what the latest step between turns counts in their mean
WATCHED_ONE_IN = 31  # turns; the processor's clock is a call of the kernel. Odd: turns may come in pairs
WATCHED_KEPT = 16
SLEPT_S = 20e-6  # a pause with so much more time than processor time had a sleep
WAKE_MAX_S = 60e-6  # at most so much of a pause is taken for the loop's own step
LINE_TURNS = 1024  # turns with jobs through which a line is drawn
LINE_VARIANCE_MIN = 1 / 16  # of their numbers of jobs; else a few turns with jobs of another kind decide
LINE_TURN_MAX_S = 5e-3  # longer turns are left out
LINES_KEPT = 16  # in the mean
FIXED_MAX_S = 30e-6  # at most so much of a turn is taken for its fixed cost: jobs of very different lengths hide it


class TurnLine:
    """The straight line through the lengths of turns over how many jobs they had, by least squares."""

    __slots__ = ("_jobs", "_lengths_s", "_products", "_squares", "_turns")

    def __init__(self) -> None:
        self._turns = self._jobs = self._squares = 0
        self._lengths_s = self._products = 0.0

    def add(self, jobs: int, length_s: float) -> bool:
        """Return whether the line has enough turns."""
        self._turns += 1
        self._jobs += jobs
        self._squares += jobs * jobs
        self._lengths_s += length_s
        self._products += jobs * length_s
        return self._turns >= LINE_TURNS

    def intercept_s(self) -> float | None:
        """The length of a turn without jobs. None if the turns had about equally many."""
        spread = self._turns * self._squares - self._jobs * self._jobs
        if spread < LINE_VARIANCE_MIN * self._turns * self._turns:
            return None
        return (self._lengths_s * self._squares - self._jobs * self._products) / spread


class LoopMeter:
    """One per event loop. `now` is a monotonic time in seconds that goes on within a turn, `cpu_s` the processor time
    of the loop's thread; without it all steps between turns count alike.

    The calls of a turn: `begin` when a socket is readable, `job` when one of its frames is handled, `end` when the
    turn's work is done. A job costs a few additions; what all jobs of a turn share is added at its end.
    """

    __slots__ = (
        "_began",
        "_busy_s",
        "_carried_s",
        "_cpu_at_end",
        "_cpu_s",
        "_ended",
        "_fixed_s",
        "_intercept_s",
        "_jobs",
        "_jobs_before",
        "_last_s",
        "_line",
        "_lines",
        "_loop_s",
        "_now",
        "_own_s",
        "_own_squares",
        "_service_squares",
        "_step_s",
        "_unwatched",
        "_wait_s",
        "_wake_s",
        "_watched",
        "is_open",
        "mark",
    )

    def __init__(self, now: Callable[[], float], cpu_s: Callable[[], float] | None = None) -> None:
        self._now = now
        self._cpu_s = cpu_s
        self.is_open = False  # within a turn
        self._jobs = self._jobs_before = 0  # so far, and of the turns that have ended
        self._wait_s = self._service_squares = self._busy_s = 0.0
        self._began = 0.0
        self.mark = 0.0
        """When the job that goes on began. Read it where a time of this job is wanted without reading the clock."""
        self._own_s = self._own_squares = 0.0  # of this turn's jobs: their times, and the squares of these
        self._ended, self._last_s = float("-inf"), 0.0  # of the turn before: its end and length
        self._step_s = self._loop_s = 0.0  # the mean step between turns that follow at once, and all steps together
        self._unwatched = WATCHED_ONE_IN  # turns until the next one after which the processor's clock is read
        self._cpu_at_end: float | None = None  # of the turn before, if it was watched
        self._wake_s = 0.0  # how much more than a step between turns that follow at once a pause takes, on average
        self._watched: deque[float | None] = deque(maxlen=WATCHED_KEPT)  # pauses: processor time if the loop slept
        self._line, self._lines, self._intercept_s = TurnLine(), 0, 0.0  # the mean of so many lines
        self._fixed_s = 0.0  # what a turn costs, however many jobs it has
        self._carried_s = 0.0  # time of turns without a job; it belongs to the next one, whose frame they received

    def begin(self) -> None:
        """A callback of the loop begins; jobs may follow."""
        self.mark = now = self._now()
        if not self.is_open:
            self.is_open = True
            self._began = now
            if self._cpu_at_end is not None:
                self._woke(now - self._ended)

    def job(self) -> float:
        """A job has ended, which began at the last job's end or at `begin`; return the seconds that it took."""
        mark = self.mark
        self.mark = now = self._now()
        own_s = now - mark
        self._jobs += 1
        self._wait_s += mark - self._began
        self._own_s += own_s
        self._own_squares += own_s * own_s
        return own_s

    def end(self) -> None:
        """The turn ends."""
        if not self.is_open:
            return
        self.is_open = False
        now, began = self._now(), self._began
        length_s = now - began
        step_s, before_s = began - self._ended, 0.0
        if step_s < BACK_TO_BACK_S:
            before_s = self._last_s / 2
            self._step_s += (step_s - self._step_s) * STEP_NEW
            self._loop_s += self._step_s
        else:
            self._loop_s += self._step_s + self._wake_s
        jobs = self._jobs - self._jobs_before
        if jobs:
            own_s = self._own_s
            self._wait_s += jobs * before_s
            fixed_s = self._fixed_s if self._fixed_s < length_s else length_s
            work_s = length_s - fixed_s
            self._loop_s += fixed_s
            self._busy_s += work_s
            shared_s = work_s - own_s + self._carried_s  # the flushes, and what ran between the jobs
            self._service_squares += self._own_squares + shared_s / jobs * (2 * own_s + shared_s)
            self._jobs_before = self._jobs
            self._own_s = self._own_squares = self._carried_s = 0.0
            if length_s <= LINE_TURN_MAX_S and self._line.add(jobs, length_s):
                self._drawn()
        else:
            self._busy_s += length_s
            self._carried_s += length_s
        self._ended, self._last_s = now, length_s
        if self._cpu_s is not None:
            self._unwatched -= 1
            if not self._unwatched:
                self._unwatched = WATCHED_ONE_IN
                self._cpu_at_end = self._cpu_s()

    def _drawn(self) -> None:
        """A line has all its turns."""
        intercept_s = self._line.intercept_s()
        self._line = TurnLine()
        if intercept_s is not None:
            self._lines = min(self._lines + 1, LINES_KEPT)
            self._intercept_s += (intercept_s - self._intercept_s) / self._lines
            self._fixed_s = min(max(self._intercept_s, 0.0), FIXED_MAX_S)

    def _woke(self, passed_s: float) -> None:
        """A turn begins `passed_s` after a watched one has ended."""
        if self._cpu_s is not None and self._cpu_at_end is not None and passed_s >= BACK_TO_BACK_S:
            spent_s = self._cpu_s() - self._cpu_at_end
            self._watched.append(spent_s if passed_s - spent_s >= SLEPT_S else None)
            slept = [one for one in self._watched if one is not None]
            if slept and len(self._watched) == WATCHED_KEPT:
                wake_s = max(min(*slept, WAKE_MAX_S) - self._step_s, 0.0)
                self._wake_s = wake_s * len(slept) / WATCHED_KEPT
            else:
                self._wake_s = 0.0
        self._cpu_at_end = None

    @property
    def waits(self) -> tuple[int, float]:
        """The jobs so far, and the seconds for which they waited together."""
        return self._jobs, self._wait_s

    @property
    def loop_s(self) -> float:
        """About how many seconds of processor time the loop has taken for its own steps, one for each turn, and for the
        fixed cost of turns."""
        return self._loop_s

    @property
    def counters(self) -> LoopCounters:
        """As of the last turn that has ended, but for the number and waits of jobs of one that goes on."""
        service_s = self._busy_s - self._carried_s  # jobs share all time of their turns but the fixed cost
        return LoopCounters(self._jobs, self._wait_s, service_s, self._service_squares, self._busy_s)
