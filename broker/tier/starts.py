"""When a replica may begin from the tier once more. Pure.

A leader whose log parts from what the tier holds has its followers begin there, cut what they have not in common with
it, and find themselves below its log again; and a store or shard that is away answers none of them. So a beginning
that led to nothing is followed by a pause, twice as long each time.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from broker.partitions.partition import Partition
from common.backoff import Backoff

logger = logging.getLogger(__name__)

NO_OFFSET = -1


class _Attempts(Struct):
    """Of one replica."""

    offset: int = NO_OFFSET  # where it began the last time
    failures: int = 0  # beginnings in a row that led to nothing
    not_before: float = float("-inf")

    def has_begun_at(self, offset: int) -> bool:
        """Whether it began there the last time too; else the failures of before no longer count."""
        if offset == self.offset:
            return True
        self.offset, self.failures, self.not_before = offset, 0, float("-inf")
        return False

    def failed(self, backoff: Backoff, now: float) -> int:
        """How often in a row, this time included."""
        self.failures += 1
        self.not_before = now + backoff.pause_s(self.failures)
        return self.failures


class TierStarts:
    """Of all replicas of one broker; times are the loop's seconds."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._attempts: dict[Partition, _Attempts] = {}
        self.repeated = 0  # beginnings at a place where the same replica had begun before

    def may_begin(self, partition: Partition, now: float) -> bool:
        attempts = self._attempts.get(partition)
        return attempts is None or attempts.not_before <= now

    def began(self, partition: Partition, offset: int, now: float) -> int:
        """How often in a row it has begun at `offset` before: each time its leader has led it back."""
        attempts = self._attempts.setdefault(partition, _Attempts())
        if not attempts.has_begun_at(offset):
            return 0
        self.repeated += 1
        return attempts.failed(self._backoff, now)

    def failed(self, partition: Partition, now: float) -> int:
        """How often in a row, this time included, nothing has come of it."""
        return self._attempts.setdefault(partition, _Attempts()).failed(self._backoff, now)

    def forget(self, partition: Partition) -> None:
        """It leads, or is hosted here no longer."""
        self._attempts.pop(partition, None)


def report_start(event: str, partition: Partition, times: int, **more: object) -> None:
    """Ever more seldom: it may never end."""
    if times & (times - 1) == 0:
        logger.warning(event, extra={"partition": repr(partition), "times": times} | more)
