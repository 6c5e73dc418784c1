"""When a connection that makes no progress is closed. Pure: what is known of it and the time make a verdict."""

from __future__ import annotations

from typing import NamedTuple

from common.node_settings.connections import ConnectionSettings
from wire import pauses


class Overdue(NamedTuple):
    """The connection is to be closed. `reason` is None unless its peer broke the rules; `reset` drops what the kernel
    has not sent."""

    reason: str | None = None
    reset: bool = False


class Quiet(NamedTuple):
    """What is known of one connection. Times are the loop's seconds.

    `active_s`: when bytes last passed; `progressed_s`: when the peer last took some. `paused`: bits of `wire.pauses`.
    `holds_up`: it has half a frame while memory is short. `is_waiting`: its peer waits for a reply.
    """

    active_s: float
    progressed_s: float
    paused: int
    unsent_bytes: int
    holds_up: bool
    is_waiting: bool

    def looked_at(self, limits: ConnectionSettings, now: float) -> Overdue | float | None:
        """`Overdue`, or the time of the next look, or None if no look is needed."""
        if self.paused & (pauses.UNSENT | pauses.CLOSING):
            if now - self.progressed_s < limits.stall_s:
                return self.progressed_s + limits.stall_s
            why = f"reads no replies: {self.unsent_bytes} bytes unsent for {limits.stall_s:g} s"
            return Overdue(None if self.paused & pauses.CLOSING else why, reset=True)
        if self.holds_up and not self.paused:
            if now - self.active_s < limits.stall_s:
                return self.active_s + limits.stall_s
            return Overdue(f"half a frame and nothing more for {limits.stall_s:g} s while memory is short")
        if not limits.idle_s:
            return None
        if self.is_waiting or self.paused:
            return now + limits.idle_s
        return Overdue() if now - self.active_s >= limits.idle_s else self.active_s + limits.idle_s
