"""Time on the loop of one client, counted for its tenant and for the quotas of its requests' time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.quotas.meters import Meter
from broker.security.usage import ThrottleReason, Usage

PERCENT = 100.0


class TimedUsage(Usage):
    """Stands for the usage `of` in a session whose requests' time is under a quota. Other sessions pay nothing for
    it. Work in slices of the pacer counts for the tenant alone."""

    __slots__ = ("_meters", "_now", "of")

    def __init__(self, of: Usage, meters: Sequence[Meter], now: Callable[[], float]) -> None:
        super().__init__()
        self.of = of
        self._meters = meters
        self._now = now

    def served(self, seconds: float) -> None:
        self.of.served(seconds)
        self._record(seconds)

    def spent(self, seconds: float) -> None:
        self.of.spent(seconds)
        self._record(seconds)

    def connection_closed(self) -> None:
        self.of.connection_closed()

    def throttled(self, reason: ThrottleReason, pause_ms: int) -> None:
        self.of.throttled(reason, pause_ms)

    def _record(self, seconds: float) -> None:
        now = self._now()
        for meter in self._meters:
            meter.record(seconds * PERCENT, now)


def counted(usage: Usage) -> Usage:
    """The usage that is reported."""
    return usage.of if isinstance(usage, TimedUsage) else usage
