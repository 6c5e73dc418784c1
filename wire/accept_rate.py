"""How fast connections are accepted: Apache Kafka's `max.connection.creation.rate`, a node's and a listener's."""

from __future__ import annotations


class AcceptRate:
    """A bucket that holds what a second gives and takes one per connection; `per_second` from 1 on."""

    __slots__ = ("_filled", "_tokens", "per_second")

    def __init__(self, per_second: int, now: float) -> None:
        self.per_second = per_second
        self._tokens = float(per_second)
        self._filled = now

    def take(self, now: float) -> float:
        """Count a connection; seconds for which no other should be accepted, 0 while there is room."""
        self._tokens = min(self.per_second, self._tokens + (now - self._filled) * self.per_second) - 1
        self._filled = now
        return max(0.0, (1 - self._tokens) / self.per_second)
