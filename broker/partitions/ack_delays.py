"""How long followers take to acknowledge what this broker appends as leader, by the follower's broker. No I/O.

One append is timed for each follower's broker at a time, and a new one at most every SAMPLE_INTERVAL_S: an append costs
a comparison of two numbers, a fetch the look at one field. What is kept is a histogram of constant size per broker.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

SAMPLE_INTERVAL_S = 0.02
PATIENCE_S = 10.0
"""A sample without an end is dropped then: its partition has another leader, or the follower has gone."""
LOWEST_S = 0.00025
BUCKETS_PER_DOUBLING = 4
BUCKETS = 80  # up to 262 s


class FollowerDelay(NamedTuple):
    """Since the report before: number of samples, and the p99, rounded up to its bucket's end."""

    broker_id: int
    samples: int
    p99_s: float


class AckSample:
    """One append that a follower has not acknowledged yet."""

    __slots__ = ("_delays", "_node", "end_offset", "since")

    def __init__(self, delays: AckDelays, node: int, end_offset: int, since: float) -> None:
        self._delays = delays
        self._node = node
        self.end_offset = end_offset
        self.since = since

    def acknowledged(self, now: float) -> None:
        self._delays.ended(self._node, self, now)


class AckDelays:
    """Times are loop seconds."""

    __slots__ = ("_counts", "_pending", "due_s")

    def __init__(self) -> None:
        self.due_s = float("-inf")
        """When the next append is to be timed."""
        self._pending: dict[int, AckSample] = {}
        self._counts: dict[int, list[int]] = {}

    def timed(self, now: float) -> None:
        """An append at `now` is timed: the next one only after a while."""
        self.due_s = now + SAMPLE_INTERVAL_S

    def begin(self, node: int, end_offset: int, now: float) -> AckSample | None:
        """A sample for one follower, unless its broker has one that has not ended."""
        pending = self._pending.get(node)
        if pending is not None and now - pending.since < PATIENCE_S:
            return None
        sample = self._pending[node] = AckSample(self, node, end_offset, now)
        return sample

    def ended(self, node: int, sample: AckSample, now: float) -> None:
        if self._pending.get(node) is not sample:
            return  # too late
        del self._pending[node]
        counts = self._counts.get(node)
        if counts is None:
            counts = self._counts[node] = [0] * BUCKETS
        counts[_bucket(now - sample.since)] += 1

    def take(self) -> list[FollowerDelay]:
        """What was measured since the last call."""
        taken, self._counts = self._counts, {}
        return [FollowerDelay(node, sum(counts), _p99(counts)) for node, counts in sorted(taken.items())]


class TimesAcks(Protocol):
    """A broker that leads partitions."""

    @property
    def ack_delays(self) -> AckDelays:
        """Of all partitions that it leads."""
        ...


def _bucket(delay_s: float) -> int:
    if delay_s <= LOWEST_S:
        return 0
    return min(math.ceil(math.log2(delay_s / LOWEST_S) * BUCKETS_PER_DOUBLING), BUCKETS - 1)


def _p99(counts: list[int]) -> float:
    rank, seen = math.ceil(sum(counts) * 0.99), 0
    for bucket, count in enumerate(counts):
        seen += count
        if seen >= rank:
            return LOWEST_S * math.exp2(bucket / BUCKETS_PER_DOUBLING)
    return 0.0
