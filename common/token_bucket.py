"""The token bucket of all rate limits. Pure."""

from __future__ import annotations


class TokenBucket:
    """`rate` tokens per second, of which at most `burst` are saved; full at first.

    A `level` below 0 is debt, which the rate pays off. Debt beyond `debt_max` is forgiven. The caller gives the time,
    in seconds that never run backwards; `level` is that of the last call.
    """

    __slots__ = ("_at", "burst", "debt_max", "level", "rate")

    def __init__(self, rate: float, burst: float, now: float, debt_max: float = float("inf")) -> None:
        self.rate, self.burst, self.debt_max = float(rate), float(burst), float(debt_max)
        self.level = self.burst
        self._at = now

    def change(self, rate: float, burst: float, debt_max: float = float("inf")) -> None:
        """Change the limits from the last call on. Saved tokens and debt stay within the new limits."""
        self.rate, self.burst, self.debt_max = float(rate), float(burst), float(debt_max)

    def refill(self, now: float) -> None:
        self.level = min(self.burst, self.level + (now - self._at) * self.rate)
        self._at = now

    def spend(self, count: float, now: float) -> None:
        """Take `count` tokens, into debt if necessary."""
        self.refill(now)
        self.level = max(self.level - count, -self.debt_max)

    def take(self, count: float, now: float) -> float:
        """Take `count` tokens and return 0, or take none and return the seconds until they are available."""
        self.refill(now)
        if self.level >= count:
            self.level -= count
            return 0.0
        return self.wait_s(count)

    def wait_s(self, wanted: float = 0.0) -> float:
        """Seconds from the last call until `wanted` tokens are available."""
        if self.level >= wanted:
            return 0.0
        return (wanted - self.level) / self.rate if self.rate > 0 else float("inf")

    def is_full(self, now: float) -> bool:
        return self.level + (now - self._at) * self.rate >= self.burst
