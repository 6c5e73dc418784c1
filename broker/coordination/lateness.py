"""Stalls of this node, for code that judges peers by their silence: during a stall their messages wait in sockets."""

from __future__ import annotations

LATE_S = 0.1  # a timer that fires this late shows a stall
GIVEN_BACK_MAX_S = 60.0


class Lateness:
    """After a stall, every peer that this node judges gets the stalled time back. Times are loop seconds."""

    __slots__ = ("late_s", "spared_until")

    def __init__(self) -> None:
        self.late_s = 0.0  # how late the last timer fired
        self.spared_until = float("-inf")  # before this time no peer counts as silent

    def fired(self, due: float, now: float) -> bool:
        """Record a timer due at `due` that fires at `now`. Returns whether this node was stalled."""
        self.late_s = now - due
        if self.late_s < LATE_S:
            return False
        self.spared_until = max(self.spared_until, now + min(self.late_s, GIVEN_BACK_MAX_S))
        return True
