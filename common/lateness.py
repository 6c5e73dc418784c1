"""A node's own stalls, for code that judges others by their silence: what they sent meanwhile waits in a socket."""

from __future__ import annotations

LATE_S = 0.1  # a timer that fires this late tells of a stall
GIVEN_BACK_MAX_S = 60.0


class Lateness:
    """Seconds of the loop's clock. After a stall every peer judged by this node gets the stalled time back."""

    __slots__ = ("late_s", "spared_until")

    def __init__(self) -> None:
        self.late_s = 0.0  # of the last timer
        self.spared_until = float("-inf")  # no peer counts as silent before

    def fired(self, due: float, now: float) -> bool:
        """A timer that was due at `due` fires `now`; whether it is so late that this node was stalled."""
        self.late_s = now - due
        if self.late_s < LATE_S:
            return False
        self.spared_until = max(self.spared_until, now + min(self.late_s, GIVEN_BACK_MAX_S))
        return True
