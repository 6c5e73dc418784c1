"""How much a broker does: what its heartbeats tell the controller, who weighs cells by it."""

from __future__ import annotations

from collections.abc import Callable

from kraft.broker_lifecycle import BrokerLoad


class LoadMeter:
    """`now` and `cpu_s` are in seconds, `moved` counts bytes; all three only rise."""

    __slots__ = ("_before", "_counted")

    def __init__(self, now: Callable[[], float], cpu_s: Callable[[], float], moved: Callable[[], int]) -> None:
        self._counted = (now, cpu_s, moved)
        self._before = (now(), cpu_s(), moved())

    def look(self) -> BrokerLoad:
        """Since the last look."""
        now, cpu_s, moved = self._counted
        since_s, cpu_before_s, moved_before = self._before
        self._before = (now(), cpu_s(), moved())
        passed_s = self._before[0] - since_s
        if passed_s <= 0:
            return BrokerLoad()
        return BrokerLoad(int((self._before[2] - moved_before) / passed_s), (self._before[1] - cpu_before_s) / passed_s)
