"""A rate with a stock and a debt: the token bucket from which every rate limit of the service is made. Pure."""

from __future__ import annotations


class TokenBucket:
    """`rate` tokens a second, of which at most `burst` are saved; full at first.

    `level` below 0 is debt, which the rate pays off. Debt beyond `debt_max` is forgiven. The caller gives the time, in
    seconds that never run backwards; `level` is that of the last call.
    """

    __slots__ = ("_at", "burst", "debt_max", "level", "rate")

    def __init__(self, rate: float, burst: float, now: float, debt_max: float = float("inf")) -> None:
        self.rate, self.burst, self.debt_max = float(rate), float(burst), float(debt_max)
        self.level = self.burst
        self._at = now

    def change(self, rate: float, burst: float, debt_max: float = float("inf")) -> None:
        """Other limits from the last call on. The stock and the debt stay, as far as the new limits allow."""
        self.rate, self.burst, self.debt_max = float(rate), float(burst), float(debt_max)

    def refill(self, now: float) -> None:
        self.level = min(self.burst, self.level + (now - self._at) * self.rate)
        self._at = now

    def spend(self, count: float, now: float) -> None:
        """Take `count` tokens, whether or not they are there."""
        self.refill(now)
        self.level = max(self.level - count, -self.debt_max)

    def take(self, count: float, now: float) -> float:
        """0 when `count` tokens were there and are taken; else the seconds until they are, and none is taken."""
        self.refill(now)
        if self.level >= count:
            self.level -= count
            return 0.0
        return self.wait_s(count)

    def wait_s(self, wanted: float = 0.0) -> float:
        """Seconds from the last call until `wanted` tokens are there."""
        if self.level >= wanted:
            return 0.0
        return (wanted - self.level) / self.rate if self.rate > 0 else float("inf")

    def is_full(self, now: float) -> bool:
        return self.level + (now - self._at) * self.rate >= self.burst
