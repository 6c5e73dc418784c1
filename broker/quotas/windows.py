"""How much was used in the last seconds, as Apache Kafka measures it for its quotas (Rate over SampledStat). Pure.

Use is counted in samples of fixed length. A sample counts until its last use is older than the whole window, so a
sample that began before the window counts too, and then the window reaches back to its beginning. A window that has
just begun counts as if its earlier samples were empty: a client may use a whole window's worth at once.

Unlike Apache Kafka, an expired sample is dropped at once; there it stays for a while as an empty one.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

ELAPSED_S_MIN = 0.001


class WindowForm(NamedTuple):
    """`samples` of `sample_s` seconds each; the newest one is still being filled."""

    samples: int
    sample_s: float

    @property
    def full_s(self) -> float:
        """Seconds whose worth may be used at once."""
        return max(self.samples - 1, 1) * self.sample_s

    @property
    def elapsed_min_s(self) -> float:
        """No rate is taken over less."""
        return max((self.samples - 1) * self.sample_s, ELAPSED_S_MIN)


class RateWindow:
    """What was used in one window. The caller gives the time, in seconds that never run backwards.

    `used` is at least what was used within the window: samples that have left it may still be in it.
    """

    __slots__ = ("_form", "_samples", "used")

    def __init__(self, form: WindowForm) -> None:
        self._form = form
        self._samples: deque[list[float]] = deque()  # [begin, last use, used], the oldest first
        self.used = 0.0

    def record(self, used: float, now: float) -> None:
        samples = self._samples
        if not samples or now - samples[-1][0] >= self._form.sample_s:
            samples.append([now, now, used])
            if len(samples) > self._form.samples + 1:
                samples.popleft()
                self.used = sum([sample[2] for sample in samples])
                return
        else:
            newest = samples[-1]
            newest[1] = now
            newest[2] += used
        self.used += used

    def fill(self, bound: float, now: float) -> None:
        """Begin as if `bound` had been used all the time, so that nothing may be used at once."""
        count, length = self._form
        self._samples.clear()
        for age in range(count - 1, 0, -1):
            self._samples.append([now - age * length, now - age * length, bound * length])
        self.used = bound * length * len(self._samples)

    def cap(self, bound: float, before: float, now: float) -> None:
        """A bound that was `before` falls to `bound`, which is no fault of the client: what it used within the old one
        does not make it wait now. What it owes already stays as many seconds."""
        total = self.total(now)
        most = max(bound * self.elapsed(now), total * bound / before)
        if total > most:
            part = most / total
            for sample in self._samples:
                sample[2] *= part
            self.used = most

    def total(self, now: float) -> float:
        """What was used within the window."""
        samples, age_max = self._samples, self._form.samples * self._form.sample_s
        if samples and now - samples[0][1] >= age_max:
            while samples and now - samples[0][1] >= age_max:
                samples.popleft()
            self.used = sum([sample[2] for sample in samples])  # a difference would keep errors of large numbers
        return self.used

    def elapsed(self, now: float) -> float:
        """Seconds over which the rate is taken. Valid after `total` at the same time."""
        form = self._form
        elapsed = now - self._samples[0][0] if self._samples else 0.0
        missing = form.samples - 1 - int(elapsed / form.sample_s)
        return max(elapsed + missing * form.sample_s if missing > 0 else elapsed, ELAPSED_S_MIN)

    def rate(self, now: float) -> float:
        """Used per second."""
        return self.total(now) / self.elapsed(now)

    def pause_s(self, bound: float, now: float, more: float = 0.0) -> float:
        """Seconds without use after which the rate is down to `bound`, if `more` is used now as well; not above 0 if
        it is not over. Apache Kafka writes it as (rate - bound) / bound x window."""
        total = self.total(now) + more
        return total / bound - self.elapsed(now) if bound > 0 else (float("inf") if total > 0 else 0.0)
