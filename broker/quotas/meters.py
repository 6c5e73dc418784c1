"""What one client, user or tenant uses of one kind, against its bounds. Pure."""

from __future__ import annotations

from broker.quotas.windows import RateWindow, WindowForm

PAUSE_MS_MAX = 10_000
"""The longest throttle time. A client that is still over its bound after it is throttled again."""


class Meter:
    """A window and its bounds, of which the lowest one counts.

    `bound`: per second, None without one; `reason`: why it is bounded, as `Usage.throttled` counts it. While the window
    has at most `free` in it, it is within the bound, because no rate is taken over less than `elapsed_min_s`.
    """

    __slots__ = ("__weakref__", "_bounds", "_elapsed_min_s", "_pause_ms_max", "bound", "free", "reason", "window")

    def __init__(self, form: WindowForm, pause_ms_max: int = PAUSE_MS_MAX) -> None:
        self.window = RateWindow(form)
        self.bound: float | None = None
        self.reason = ""
        self.free = float("inf")
        self._elapsed_min_s = form.elapsed_min_s
        self._bounds: dict[str, float] = {}
        self._pause_ms_max = pause_ms_max

    def limit(self, reason: str, bound: float | None) -> None:
        """Set the bound of this reason, or remove it. What was used stays counted."""
        if bound is None:
            self._bounds.pop(reason, None)
        else:
            self._bounds[reason] = bound
        self.bound, self.reason, self.free = None, "", float("inf")
        if self._bounds:
            self.reason = min(self._bounds, key=lambda reason: self._bounds[reason])
            self.bound = self._bounds[self.reason]
            self.free = self.bound * self._elapsed_min_s

    def limit_from(self, now: float, reason: str, bound: float | None, *, at_once: bool) -> None:
        """As `limit`; a bound that falls does not count for what was used before. `at_once`: a first bound leaves
        nothing of the window."""
        before = self.bound
        self.limit(reason, bound)
        if self.bound is None:
            return
        if before is None and at_once:
            self.window.fill(self.bound, now)
        elif before is not None and self.bound < before:
            self.window.cap(self.bound, before, now)

    def record(self, used: float, now: float) -> bool:
        """Returns whether a pause may be due; `pause_ms` tells."""
        window = self.window
        window.record(used, now)
        return window.used > self.free

    def pause_ms(self, now: float, more: float = 0.0) -> int:
        """Milliseconds until what was used, and `more` with it, is within the bound."""
        if self.bound is None:
            return 0
        pause_s = self.window.pause_s(self.bound, now, more)
        return 0 if pause_s <= 0 else min(round(min(pause_s, 3600) * 1000), self._pause_ms_max)

    def refuses_ms(self, now: float, more: float) -> int:
        """Milliseconds for which `more` has to wait; 0 if it may be used now. After a window without any use it may
        always, however much it is: otherwise a batch larger than a window's worth could never be read."""
        return self.pause_ms(now, more) if self.window.total(now) > 0 else 0

    def room(self, now: float, form: WindowForm) -> float:
        """How much of the window is left. At least one sample's worth, so that use does not decay to small pieces."""
        if self.bound is None:
            return float("inf")
        total = self.window.total(now)
        left = self.bound * self.window.elapsed(now) - total
        return min(max(left, self.bound * form.sample_s), self.bound * form.full_s)
