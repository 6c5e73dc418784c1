"""A broker's load and the state of its disk, as reported in heartbeats."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kraft.observers.broker_lifecycle import BrokerLoad
from storage.disk.directory_health import DirectoryHealth, FreeSpace

PATIENCE_S = 3.0

_logger = logging.getLogger(__name__)


class RoomWatch:
    """Whether the disk has been full for so long that other brokers should lead.

    A moment without room does not count, because retention may free some. Neither does a moment with little room,
    because a broker that took leaderships back at once would soon give them up again.

    Between two checks, appends count as rejected if they are rejected now or the disk ran full in between. The broker
    lacks room when appends have been rejected for PATIENCE_S. It has room again when there is plenty and nothing was
    rejected for PATIENCE_S. `now` is in seconds.
    """

    __slots__ = ("_health", "_now", "_refusals", "_refused_at", "_since", "is_lacking")

    def __init__(self, health: DirectoryHealth, now: Callable[[], float]) -> None:
        self.is_lacking = False
        self._health = health
        self._now = now
        self._refusals = health.refusals
        self._since: float | None = None  # time of the first in the current series of rejections
        self._refused_at = float("-inf")

    def look(self) -> bool:
        """Whether other brokers should lead now; call it more often than every PATIENCE_S."""
        health, now = self._health, self._now()
        if health.free_space is FreeSpace.REFUSED or health.refusals != self._refusals:
            self._since = now if self._since is None else self._since
            self._refused_at, self._refusals = now, health.refusals
            if not self.is_lacking and now - self._since >= PATIENCE_S:
                self.is_lacking = True
                _logger.warning("the disk stays full: other brokers should lead")
        elif now - self._refused_at >= PATIENCE_S:
            self._since = None
            if self.is_lacking and health.free_space is FreeSpace.PLENTY:
                self.is_lacking = False
                _logger.info("the disk has room again")
        return self.is_lacking


class LoadMeter:
    """Measures the broker's load. `now` and `cpu_s` are in seconds, `moved` counts bytes; all three only rise."""

    __slots__ = ("_before", "_counted")

    def __init__(self, now: Callable[[], float], cpu_s: Callable[[], float], moved: Callable[[], int]) -> None:
        self._counted = (now, cpu_s, moved)
        self._before = (now(), cpu_s(), moved())

    def look(self) -> BrokerLoad:
        """The load since the last call."""
        now, cpu_s, moved = self._counted
        since_s, cpu_before_s, moved_before = self._before
        self._before = (now(), cpu_s(), moved())
        passed_s = self._before[0] - since_s
        if passed_s <= 0:
            return BrokerLoad()
        return BrokerLoad(int((self._before[2] - moved_before) / passed_s), (self._before[1] - cpu_before_s) / passed_s)
