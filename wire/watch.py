"""Deadlines that nearly never come due (idle connections, stalled readers, handshakes), without a timer for each."""

from __future__ import annotations

from typing import Protocol


class Watched(Protocol):
    def check(self, now: float) -> float | None:
        """Called at or soon after the asked time; returns when to look again, None for never."""
        ...


class Watch:
    """One per node. `now` is the loop's time at its last step: coarse, and free to read."""

    now: float

    def at(self, when: float, watched: Watched) -> None:
        """Have `watched.check` called at `when` (loop time, seconds), up to a step late."""
        raise NotImplementedError

    def close(self) -> None:
        """Forget all deadlines and stop the timer."""
        raise NotImplementedError
