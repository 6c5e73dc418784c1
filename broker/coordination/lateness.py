"""A node's own stalls, for code that judges peers by their silence: their messages wait in sockets meanwhile."""

from __future__ import annotations

LATE_S = 0.1  # a timer that fires this late shows a stall
GIVEN_BACK_MAX_S = 60.0


class Lateness:
    """After a stall every peer that this node judges gets the stalled time back. Times are the loop's, in seconds."""

    __slots__ = ("late_s", "spared_until")

    def __init__(self) -> None:
        self.late_s = 0.0  # of the last timer
        self.spared_until = float("-inf")  # no peer counts as silent before

    def fired(self, due: float, now: float) -> bool:
        """Note a timer due at `due` that fires `now`; returns whether this node was stalled."""
        self.late_s = now - due
        if self.late_s < LATE_S:
            return False
        self.spared_until = max(self.spared_until, now + min(self.late_s, GIVEN_BACK_MAX_S))
        return True
