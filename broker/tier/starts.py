"""Limits how often a replica starts over from the tier. No I/O.

If a leader's log contradicts the tier, its followers start at the tier's end, truncate what diverges from the leader,
and are below its log again; and if the store or shard is down, no start succeeds. So after a start without progress
there is a pause, twice as long each time.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from broker.partitions.partition import Partition
from common.backoff import Backoff

logger = logging.getLogger(__name__)

NO_OFFSET = -1


class _Attempts(Struct):
    """The attempts of one replica."""

    offset: int = NO_OFFSET  # offset of the last start
    failures: int = 0  # consecutive starts without progress
    not_before: float = float("-inf")

    def has_begun_at(self, offset: int) -> bool:
        """Whether the last start was at `offset` too. If not, earlier failures no longer count."""
        if offset == self.offset:
            return True
        self.offset, self.failures, self.not_before = offset, 0, float("-inf")
        return False

    def failed(self, backoff: Backoff, now: float) -> int:
        """Count a failure. Returns the number of consecutive failures."""
        self.failures += 1
        self.not_before = now + backoff.pause_s(self.failures)
        return self.failures


class TierStarts:
    """The attempts of all replicas of one broker; times are loop seconds."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._attempts: dict[Partition, _Attempts] = {}
        self.repeated = 0  # starts at an offset where the same replica had started before

    def may_begin(self, partition: Partition, now: float) -> bool:
        attempts = self._attempts.get(partition)
        return attempts is None or attempts.not_before <= now

    def began(self, partition: Partition, offset: int, now: float) -> int:
        """Record a start at `offset`. Returns how many consecutive starts there were at it before."""
        attempts = self._attempts.setdefault(partition, _Attempts())
        if not attempts.has_begun_at(offset):
            return 0
        self.repeated += 1
        return attempts.failed(self._backoff, now)

    def failed(self, partition: Partition, now: float) -> int:
        """Record a failed start. Returns the number of consecutive failures."""
        return self._attempts.setdefault(partition, _Attempts()).failed(self._backoff, now)

    def forget(self, partition: Partition) -> None:
        """The replica became leader, or is no longer hosted here."""
        self._attempts.pop(partition, None)


def report_start(event: str, partition: Partition, times: int, **more: object) -> None:
    """Log at growing intervals, because the failure may persist."""
    if times & (times - 1) == 0:
        logger.warning(event, extra={"partition": repr(partition), "times": times} | more)
