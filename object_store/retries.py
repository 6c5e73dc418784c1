"""A budget of retries for all calls together, so that a broken store does not get several times the requests.

Source: the retry throttling of gRPC (proposal A6).
"""

from __future__ import annotations

GAIN_PER_SUCCESS = 0.1


class RetryBudget:
    """A retry takes one token, a success returns a tenth of one, up to `tokens_max`.

    Retries are allowed while more than half is left. A single failing call always finds some. A store that is down uses
    them up, and then gets one request per call until calls succeed again.
    """

    __slots__ = ("_max", "tokens")

    def __init__(self, tokens_max: float) -> None:
        self._max = self.tokens = tokens_max

    def take(self) -> bool:
        """Whether a retry is allowed now; if so, its token is taken."""
        if self.tokens <= self._max / 2:
            return False
        self.tokens -= 1.0
        return True

    def succeeded(self) -> None:
        self.tokens = min(self._max, self.tokens + GAIN_PER_SUCCESS)
