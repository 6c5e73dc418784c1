"""How loaded an event loop is, from counters of its jobs. Pure: counters and times in, values out.

A loop is a queue with one server, and a job is what a frame or a new connection asks of it. While little is to be
done, its load is the share of time in which it is busy. Near saturation that share says little: it is 1 for a loop that
just keeps up and for one that is hopelessly behind, and other processes and slow devices make it seem full. What
clients feel is how long jobs wait, and Kingman's formula for such a queue tells the load from that:

    E[W] = load / (1 - load) * k,  k = E[S] * (ca² + cs²) / 2 + t,  so  load = E[W] / (E[W] + k)

E[W] is a job's mean wait, E[S] its mean service time, cs² the squared coefficient of variation of service times, all
three measured. ca², that of the times between arrivals, is 1: many clients that know nothing of each other. t is what
turns cost. Jobs that come in a turn wait for the next one; if each begins with a fixed cost F, they wait about
F * (1 + load) / 2 / (1 - load) longer (a queue with gated vacations). From 0.6 on that is nearly load / (1 - load) * t
with t = 1.25 * F. It matters where jobs are hardly longer than F.
"""

from __future__ import annotations

import math
from typing import NamedTuple

JOBS_MIN = 1e-9
"""Fewer jobs, which are left of long ago, have no mean: their squares would overflow."""
MEAN_OVER_S = 60.0
"""A sample that is so old counts 1/e of a new one."""
BUSY_BELOW, WAITS_ABOVE = 0.5, 0.7
"""Below the first the busy share alone is the load, above the second the waits alone; the busy share decides."""
TURN_COST_S = 45e-6
"""t. Turns whose step takes 10 µs and whose fixed cost is 20 to 30 need 37 to 50; this is within 0.03 of the load in a
simulated queue for both."""
SERVICE_VARIATION_MAX = 100.0  # cs²; a few enormous jobs do not hide that all others wait
COUNTER_MAX = 1e15  # no loop runs for so many seconds
WAIT_MAX_S, SERVICE_MAX_S = 3_600.0, 60.0


class LoopCounters(NamedTuple):
    """Sums since the loop began. `wait_s`: time that jobs waited. `service_s`: time that jobs took, and
    `service_squares` the sum of its squares, each in s². `busy_s`: time in which the loop waited for nothing. These
    three leave out the fixed cost of a turn (`wire.loop_meter`)."""

    jobs: int = 0
    wait_s: float = 0.0
    service_s: float = 0.0
    service_squares: float = 0.0
    busy_s: float = 0.0

    @property
    def are_sane(self) -> bool:
        return all(0 <= one <= COUNTER_MAX for one in self)

    def since(self, before: LoopCounters) -> LoopCounters | None:
        """What was added; None if a counter has fallen."""
        times = (later - earlier for later, earlier in zip(self[1:], before[1:], strict=True))
        added = LoopCounters(self.jobs - before.jobs, *times)
        return added if min(added) >= 0 else None


class Sample(NamedTuple):
    """One interval of a loop. `busy`: share of the time."""

    busy: float
    wait_s: float
    jobs: float
    service_s: float
    service_squares: float


def sample(added: LoopCounters, passed_s: float) -> Sample | None:
    """What was counted in `passed_s` seconds; None if no time has passed."""
    if not passed_s > 0:
        return None
    wait_s = min(added.wait_s / added.jobs, WAIT_MAX_S) if added.jobs else 0.0
    busy = min(added.busy_s / passed_s, 1.0)
    return Sample(busy, wait_s, added.jobs, added.service_s, added.service_squares)


class LoadMeans(NamedTuple):
    """Decaying means, as the load average of Unix: a sample counts by the time that it covers and by its age.

    `weight` grows from 0 to 1 with the time that was seen, so that a loop's first seconds count as they are.
    `service_s` and `service_squares` are sums over jobs that decay alike.
    """

    weight: float = 0.0
    busy_sum: float = 0.0
    wait_sum: float = 0.0
    jobs: float = 0.0
    service_s: float = 0.0
    service_squares: float = 0.0
    seen_s: float = 0.0

    def with_sample(self, one: Sample, passed_s: float) -> LoadMeans:
        """The means after a further sample of `passed_s` seconds."""
        keep = math.exp(-passed_s / MEAN_OVER_S)
        new = 1.0 - keep
        return LoadMeans(
            self.weight * keep + new,
            self.busy_sum * keep + one.busy * new,
            self.wait_sum * keep + one.wait_s * new,
            self.jobs * keep + one.jobs,
            self.service_s * keep + one.service_s,
            self.service_squares * keep + one.service_squares,
            self.seen_s + passed_s,
        )

    @property
    def busy(self) -> float:
        return self.busy_sum / self.weight if self.weight else 0.0

    @property
    def wait_s(self) -> float:
        """E[W]."""
        return self.wait_sum / self.weight if self.weight else 0.0

    @property
    def job_s(self) -> float:
        """E[S]."""
        return min(self.service_s / self.jobs, SERVICE_MAX_S) if self.jobs > JOBS_MIN else 0.0

    @property
    def service_variation(self) -> float:
        """cs²."""
        mean = self.service_s / self.jobs if self.jobs > JOBS_MIN else 0.0
        if not mean > 0:
            return 0.0
        return min(max(self.service_squares / self.jobs / mean / mean - 1.0, 0.0), SERVICE_VARIATION_MAX)

    @property
    def load(self) -> float:
        return self.load_where(TURN_COST_S)

    def load_where(self, turn_s: float) -> float:
        return load(self.busy, self.wait_s, self.job_s, self.service_variation, turn_s)


def load(busy: float, wait_s: float, job_s: float, service_variation: float, turn_s: float = TURN_COST_S) -> float:
    """From 0 to 1, for E[W], E[S], cs² and t."""
    busy = min(max(busy, 0.0), 1.0)
    if busy <= BUSY_BELOW:
        return busy
    k = job_s * (1 + service_variation) / 2 + turn_s
    waits = wait_s / (wait_s + k) if wait_s + k > 0 else 0.0
    share = min((busy - BUSY_BELOW) / (WAITS_ABOVE - BUSY_BELOW), 1.0)
    return busy + share * (waits - busy)
