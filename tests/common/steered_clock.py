"""A clock that goes with another one until a test takes its time over."""

from __future__ import annotations

from collections.abc import Callable

from common.ports import Clock


class SteeredClock:
    """`clock`, and from `steer` on what that is given; its wall clock stays."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read = clock.monotonic

    def steer(self, read: Callable[[], float] | None) -> None:
        """None: go with the other clock again."""
        self._read = self._clock.monotonic if read is None else read

    def monotonic(self) -> float:
        return self._read()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()
