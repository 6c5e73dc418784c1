"""What one client, user or tenant uses of one kind, against its bounds. Pure."""

from __future__ import annotations

import math

from broker.quotas.windows import UseWindow, WindowForm
from broker.security.usage import ThrottleReason

PAUSE_MS_MAX = 10_000
"""The longest throttle time. A client that is still over its bound after it is throttled again."""
LUMP_S = 0.001
"""Use enters the window in lumps of what the bound allows in so many seconds: most requests cost an addition."""
BOUND_MIN = 1e-9  # per second; a bound of 0 owes more than is ever paid


class Meter:
    """A window and its bounds, of which the lowest one counts. Without a bound nothing is counted.

    `bound`: per second, None without one; `reason`: why it is bounded, as `Usage.throttled` counts it. `is_near`:
    whether a pause may be due; `pause_ms` returns how long it is.
    """

    __slots__ = (
        "__weakref__",
        "_bounds",
        "_loose",
        "_lump",
        "_pause_ms_max",
        "_unit_s",
        "_unsaved",
        "bound",
        "is_near",
        "reason",
        "window",
    )

    def __init__(self, form: WindowForm, pause_ms_max: int = PAUSE_MS_MAX) -> None:
        self.window = UseWindow(form)
        self.bound: float | None = None
        self.reason = ThrottleReason.SHARE  # says nothing while there is no bound
        self.is_near = False
        self._loose, self._lump = (
            0.0,
            math.inf,
        )  # use that is not in the window yet, and from how much on it comes there
        self._unit_s = 0.0  # in which the bound allows to use 1
        self._bounds: dict[ThrottleReason, float] = {}
        self._unsaved: set[ThrottleReason] = set()  # of the bounds under which nothing is saved up
        self._pause_ms_max = pause_ms_max

    def limit(
        self, now: float, reason: ThrottleReason, bound: float | None, *, at_once: bool = False, saves: bool = True
    ) -> None:
        """Set the bound of this reason, or remove it.

        What was used stays counted if the bound rises. If it falls, that is no fault of the client, and what it owes
        stays as many seconds. `at_once`: a first bound leaves nothing of the window. `saves`: see `TenantBound`.
        """
        before = self.bound
        self._unsaved.discard(reason)
        if bound is None:
            self._bounds.pop(reason, None)
        else:
            self._bounds[reason] = bound
            if not saves:
                self._unsaved.add(reason)
        self.bound, self._loose, self._lump = None, 0.0, math.inf
        if self._bounds:
            self.reason = min(self._bounds, key=lambda reason: self._bounds[reason])
            self.bound = self._bounds[self.reason]
            self._unit_s, self._lump = 1 / max(self.bound, BOUND_MIN), self.bound * LUMP_S
            if before is None and at_once:
                self.window.fill(now)
            elif before is not None and before < self.bound:
                self.window.scale(before / self.bound, now)
            self.window.save(not self._unsaved, now)
        self.is_near = self.bound is not None and self.window.may_owe

    def record(self, used: float, now: float) -> None:
        self._loose += used
        if self._loose < self._lump:
            return
        window = self.window
        window.use(self._loose * self._unit_s, now)
        self._loose = 0.0
        self.is_near = window.may_owe

    def pause_ms(self, now: float) -> int:
        """Milliseconds until what was used is within the bound."""
        if self.bound is None:
            return 0
        return self._pause(self.window.owed_s(now))

    def _pause(self, owed_s: float) -> int:
        return 0 if owed_s <= 0 else min(round(owed_s * 1000), self._pause_ms_max)

    def refuses_ms(self, now: float, more: float) -> int:
        """Milliseconds for which `more` has to wait; 0 if it may be used now."""
        if self.bound is None:
            return 0
        return self._pause(self.window.lacks_s(more * self._unit_s, now))

    def room(self, now: float, form: WindowForm) -> float:
        """How much of the window is left. At least one sample's worth, so that use does not decay to small pieces."""
        if self.bound is None:
            return math.inf
        return self.bound * min(max(self.window.left_s(now), form.sample_s), form.full_s)
