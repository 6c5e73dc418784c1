"""A limit of bytes per second shared by several copiers: a token bucket that may run into debt."""

from __future__ import annotations

BURST_S = 0.5


class BandwidthLimit:
    """Whoever is about to move bytes reserves them and then waits as long as it is told.

    Reservations are served in the order they are made, each no sooner than the ones before it are paid for; a piece
    larger than the burst therefore just waits longer, and the mean over any span is at most the rate and one burst.
    The caller gives the time (`monotonic` seconds), so the limit itself has neither clock nor loop.
    """

    __slots__ = ("_free_at", "_rate")

    def __init__(self, bytes_per_s: float | None) -> None:
        """None or a rate of 0 or less: no limit."""
        self._rate = bytes_per_s if bytes_per_s is not None and bytes_per_s > 0 else None
        self._free_at = float("-inf")

    @property
    def bytes_per_s(self) -> float | None:
        return self._rate

    def set_rate(self, bytes_per_s: float | None, now: float) -> None:
        """Takes effect for later reservations, and for the debt that is left."""
        debt = max(0.0, self._free_at - now) * (self._rate or 0.0)
        self._rate = bytes_per_s if bytes_per_s is not None and bytes_per_s > 0 else None
        self._free_at = now + debt / self._rate if self._rate else float("-inf")

    def reserve(self, count: int, now: float) -> float:
        """Seconds to wait before these bytes may move."""
        if self._rate is None:
            return 0.0
        starts = max(self._free_at, now - BURST_S)
        self._free_at = starts + count / self._rate
        return max(0.0, self._free_at - now)
