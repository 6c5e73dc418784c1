"""When to try again: full jitter within doubling bounds, and a budget for all calls together.

The budget is what keeps a broken store from being asked several times as often as a healthy one. Sources: "Exponential
Backoff and Jitter" (AWS Architecture Blog), the retry throttling of gRPC (proposal A6).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

GAIN_PER_SUCCESS = 0.1


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits before the second and later attempts; seconds."""

    first_s: float
    max_s: float

    def wait_s(self, attempt: int, chance: Random) -> float:
        """After the failure of `attempt` (the first is 1): anywhere from 0 to a bound that doubles each time."""
        return chance.uniform(0.0, min(self.max_s, self.first_s * 2.0 ** min(attempt - 1, 60)))


class RetryBudget:
    """Each retry takes one, each success gives a tenth back, never above `tokens_max`.

    Retries are allowed while more than half is left: a single call's bad luck always finds some, a store that is down
    uses them up and is then asked once per call until calls succeed again.
    """

    __slots__ = ("_max", "tokens")

    def __init__(self, tokens_max: float) -> None:
        self._max = self.tokens = tokens_max

    def take(self) -> bool:
        """Whether there may be a retry now."""
        if self.tokens <= self._max / 2:
            return False
        self.tokens -= 1.0
        return True

    def succeeded(self) -> None:
        """A call ended well."""
        self.tokens = min(self._max, self.tokens + GAIN_PER_SUCCESS)
