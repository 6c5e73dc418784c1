"""A broker's load from the counters of its event loop, and the queues in which requests wait beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from common.loop_load import LoadMeans, LoopCounters, sample
from common.metrics import Metrics
from wire.loop_meter import LoopMeter


class LoopWatch:
    """Looked at once in each interval of the broker's reports. `now` and `cpu_s`, CPU time of the loop's thread, are in
    seconds; `queues` return the seconds that requests have waited so far in other queues of this broker."""

    def __init__(
        self,
        meter: LoopMeter,
        now: Callable[[], float],
        cpu_s: Callable[[], float],
        queues: Sequence[Callable[[], float]] = (),
    ) -> None:
        self._meter = meter
        self._now = now
        self._cpu_s = cpu_s
        self._queues = queues
        self._looked = now(), cpu_s() - meter.loop_s, meter.counters.busy_s
        self._counters = LoopCounters()
        self.means = LoadMeans()

    def look(self) -> LoopCounters:
        """The counters so far, from 0 at the start.

        The loop was busy for its turns, or for the time that its thread had a processor, whichever is more: turns leave
        out timers and the steps of coroutines, and a thread that waits for a device has no processor. The loop's own
        steps between turns do not count: they are fewer for each job the more there are, and would make a loop that
        has room for twice as much look full.
        """
        now, cpu_s, counted = self._now(), self._cpu_s() - self._meter.loop_s, self._meter.counters
        before_s, cpu_before_s, turns_before_s = self._looked
        passed_s = now - before_s
        if passed_s <= 0:
            return self._counters
        self._looked = now, cpu_s, counted.busy_s
        busy_s = min(max(counted.busy_s - turns_before_s, cpu_s - cpu_before_s), passed_s)
        before = self._counters
        self._counters = counted._replace(
            wait_s=counted.wait_s + sum(queue() for queue in self._queues), busy_s=before.busy_s + busy_s
        )
        added = self._counters.since(before)
        one = None if added is None else sample(added, passed_s)
        if one is not None:
            self.means = self.means.with_sample(one, passed_s)
        return self._counters

    def register(self, metrics: Metrics) -> None:
        """All as of the last report. Gauges are over about a minute; counters are what they follow from."""
        metrics.gauge("tidelog_broker_load", lambda: self.means.load)
        metrics.gauge("tidelog_broker_queue_wait_seconds", lambda: self.means.wait_s)
        metrics.gauge("tidelog_loop_busy_ratio", lambda: self.means.busy)
        metrics.counter("tidelog_loop_jobs_total", lambda: self._counters.jobs)
        metrics.counter("tidelog_loop_wait_seconds_total", lambda: self._counters.wait_s)
        metrics.counter("tidelog_loop_service_seconds_total", lambda: self._counters.service_s)
        metrics.counter("tidelog_loop_service_squares_total", lambda: self._counters.service_squares)
        metrics.counter("tidelog_loop_busy_seconds_total", lambda: self._counters.busy_s)
