"""Pauses between retries: exponential backoff with jitter. Pure.

Jitter keeps callers that failed together from retrying together. Source: "Exponential Backoff and Jitter" (AWS
Architecture Blog).
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from msgspec import Struct

DOUBLINGS_MAX = 60  # a larger power of two exceeds every bound, and at last a float


class Jitter(NamedTuple):
    """The shortest and the longest jittered pause, as factors of its length."""

    low: float
    high: float

    def spread(self, seconds: float, chance: Random) -> float:
        return seconds * (self.low + (self.high - self.low) * chance.random())


FULL = Jitter(0.0, 1.0)
UPPER_HALF = Jitter(0.5, 1.0)
AROUND = Jitter(0.5, 1.5)
SLIGHT = Jitter(0.9, 1.1)  # for periodic work


class Backoff(Struct, frozen=True):
    """The pause after consecutive failures: `first_s`, doubled each time up to `max_s`."""

    first_s: float
    max_s: float
    jitter: Jitter = AROUND

    def pause_s(self, failures: int) -> float:
        """Seconds after the last of `failures` consecutive failures, without jitter."""
        return min(self.max_s, self.first_s * 2.0 ** min(max(failures - 1, 0), DOUBLINGS_MAX))

    def jittered_s(self, failures: int, chance: Random) -> float:
        """Seconds after the last of `failures` consecutive failures, with jitter."""
        return self.jitter.spread(self.pause_s(failures), chance)


class Retries:
    """Counts the consecutive failures of one activity, and gives the pause after each."""

    __slots__ = ("_backoff", "_chance", "failures")

    def __init__(self, backoff: Backoff, chance: Random, failures: int = 0) -> None:
        self.failures = failures
        self._backoff = backoff
        self._chance = chance

    def failed(self) -> float:
        """Count a failure; return the seconds until the next attempt."""
        self.failures += 1
        return self._backoff.jittered_s(self.failures, self._chance)

    def succeeded(self) -> None:
        self.failures = 0
