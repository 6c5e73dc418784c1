"""Which brokers acknowledge slower than their peers, by what leaders have measured of their followers. No I/O.

A leader times appends until a follower's fetch acknowledges them, and reports a p99 for each follower's broker. What
counts for a broker is the median over the leaders, because a leader that is slow itself finds all its followers slow.
A broker is slow in one look if that is far more than its peers need, far more than it needed before, and much in
itself. Each such look adds one to its score and any other takes one off, so that only what lasts has consequences, and
what has had them ends only when the broker has been well for as long.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Mapping
from statistics import median_low
from typing import NamedTuple

from msgspec import Struct, field

HISTORY_LOOKS = 720
DELAY_MS_MAX = 3_600_000.0
FRESH_INTERVALS = 2.5  # of reports; an older one counts no longer
PEERS_MS_MIN = 0.1  # so that peers in an idle network do not make anything look slow


class SlowLimits(Struct, frozen=True):
    """`score`: looks after which a broker is slow; also the looks that its own past must have to be judged by it.
    `samples_min`: of a leader's report, for it to count."""

    of_peers: float = 3.0
    of_history: float = 3.0
    floor_ms: float = 50.0
    score: int = 60
    samples_min: int = 5


class AckDelay(NamedTuple):
    """What one leader measured of one follower's broker since its report before."""

    samples: int
    p99_ms: float

    @property
    def is_sane(self) -> bool:
        return self.samples > 0 and 0.0 <= self.p99_ms <= DELAY_MS_MAX


class Reading(NamedTuple):
    """One look at one broker; `own_ms` is -1 while its past is not known well enough."""

    delay_ms: float
    leaders: int
    peers_ms: float
    own_ms: float
    is_slow: bool


class _Past:
    """The readings of one broker while nothing was wrong with it."""

    __slots__ = ("_ordered", "_times")

    def __init__(self) -> None:
        self._times: deque[float] = deque()
        self._ordered: list[float] = []

    def add(self, delay_ms: float) -> None:
        if len(self._times) == HISTORY_LOOKS:
            del self._ordered[bisect_left(self._ordered, self._times.popleft())]
        self._times.append(delay_ms)
        insort(self._ordered, delay_ms)

    def p90(self, looks_min: int) -> float:
        count = len(self._ordered)
        return self._ordered[count * 9 // 10] if count >= max(1, looks_min) else -1.0


class _Report(Struct, frozen=True):
    at_s: float
    delays: Mapping[int, AckDelay] = field(default_factory=dict)


class Slowness:
    """Scores of all brokers: soft state of the active controller. `interval_s`: how often brokers report."""

    def __init__(self, limits: SlowLimits, interval_s: float) -> None:
        self.limits = limits
        self._fresh_s = FRESH_INTERVALS * interval_s
        self._reports: dict[int, _Report] = {}
        self._pasts: dict[int, _Past] = {}
        self.scores: dict[int, int] = {}
        self.readings: dict[int, Reading] = {}
        """Of the last look."""

    def restart(self, slow: Collection[int]) -> None:
        """Another leadership begins; `slow` were found so in an earlier one, and begin with the whole score."""
        self._reports.clear()
        self._pasts.clear()
        self.readings = {}
        self.scores = dict.fromkeys(slow, self.limits.score)

    def reported(self, leader: int, delays: Mapping[int, AckDelay], now: float) -> None:
        sane = {follower: delay for follower, delay in delays.items() if follower != leader and delay.is_sane}
        self._reports[leader] = _Report(now, sane)

    def forget(self, broker_id: int) -> None:
        """It is no longer registered, or has begun another life, whose past is not this one's."""
        self._reports.pop(broker_id, None)
        self._pasts.pop(broker_id, None)
        self.readings.pop(broker_id, None)

    def pardon(self, broker_id: int) -> None:
        """An operator knows better: it begins again."""
        self.scores.pop(broker_id, None)

    def look(self, brokers: Collection[int], slow: Collection[int], now: float) -> None:
        """Weigh the reports on live `brokers`, of which `slow` ones are treated so already."""
        delays = self._delays(brokers, now)
        medians = {broker: median_low(measured) for broker, measured in delays.items()}
        ordered = sorted(medians.values())
        self.readings = {
            broker: self._reading(broker, delay_ms, _peers_of(delay_ms, ordered), len(delays[broker]), broker in slow)
            for broker, delay_ms in medians.items()
        }
        for broker in brokers:
            reading = self.readings.get(broker)
            score = self.scores.get(broker, 0)
            score = min(score + 1, self.limits.score) if reading is not None and reading.is_slow else max(score - 1, 0)
            self.scores[broker] = score
            if reading is not None and not score and not self._is_far_off(reading):
                self._pasts.setdefault(broker, _Past()).add(reading.delay_ms)
        for gone in [broker for broker in self.scores if broker not in brokers and broker not in slow]:
            del self.scores[gone]

    def slow(self) -> list[int]:
        """The brokers with the whole score."""
        return sorted(broker for broker, score in self.scores.items() if score >= self.limits.score)

    def doubtful(self) -> list[int]:
        """The brokers that are on their way there."""
        half = (self.limits.score + 1) // 2
        return sorted(broker for broker, score in self.scores.items() if half <= score < self.limits.score)

    def is_well(self, broker_id: int) -> bool:
        return not self.scores.get(broker_id, 0)

    def evidence(self, broker_id: int) -> str:
        reading, score = self.readings.get(broker_id), self.scores.get(broker_id, 0)
        found = f"score {score} of {self.limits.score}"
        if reading is None:
            return f"{found}, no leader measures it now"
        own = f", its own p90 before {reading.own_ms:.0f} ms" if reading.own_ms >= 0 else ""
        leaders = f"{reading.leaders} leader{'s' if reading.leaders > 1 else ''}"
        peers = f"its peers' {reading.peers_ms:.0f} ms"
        return f"acknowledges in {reading.delay_ms:.0f} ms (p99, {leaders}), {peers}{own}, {found}"

    def _delays(self, brokers: Collection[int], now: float) -> dict[int, list[float]]:
        """What live leaders measured of each live broker of late."""
        found: dict[int, list[float]] = {}
        for leader in brokers:
            report = self._reports.get(leader)
            if report is None or now - report.at_s > self._fresh_s:
                continue
            for follower, delay in report.delays.items():
                if follower in brokers and delay.samples >= self.limits.samples_min:
                    found.setdefault(follower, []).append(delay.p99_ms)
        return found

    def _reading(self, broker: int, delay_ms: float, peers_ms: float, leaders: int, is_treated: bool) -> Reading:
        past, limits = self._pasts.get(broker), self.limits
        own_ms = past.p90(limits.score) if past is not None else -1.0
        is_slow = peers_ms >= 0 and delay_ms > limits.floor_ms and delay_ms > limits.of_peers * peers_ms
        if own_ms >= 0:
            is_slow = is_slow and delay_ms > limits.of_history * own_ms
        elif not is_treated:
            is_slow = False
        return Reading(delay_ms, leaders, peers_ms, own_ms, is_slow)

    def _is_far_off(self, reading: Reading) -> bool:
        """Whether it is far slower than its peers: no past that a broker should be compared with."""
        limits = self.limits
        return reading.delay_ms > limits.floor_ms and reading.delay_ms > limits.of_peers * max(reading.peers_ms, 0.0)


def _peers_of(delay_ms: float, ordered: list[float]) -> float:
    """The lower median of all in `ordered` but one `delay_ms`; -1 if there is no other."""
    if len(ordered) < 2:
        return -1.0
    middle = (len(ordered) - 2) // 2
    found = ordered[middle if middle < bisect_left(ordered, delay_ms) else middle + 1]
    return max(found, PEERS_MS_MIN)
