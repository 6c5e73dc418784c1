"""A budget of retries for all calls together: how a store that is down is told from a call that had bad luck.

The budget is what keeps a broken store from being asked several times as often as a healthy one. Source: the retry
throttling of gRPC (proposal A6).
"""

from __future__ import annotations

GAIN_PER_SUCCESS = 0.1


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
