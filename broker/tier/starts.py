"""When a replica may begin from the tier once more. Pure.

A leader whose log parts from what the tier holds has its followers begin there, cut what they have not in common with
it, and find themselves below its log again; and a store or shard that is away answers none of them. So a beginning
that led to nothing is followed by a pause, twice as long each time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from broker.partitions.partition import Partition
from common.backoff import Backoff

logger = logging.getLogger(__name__)

NO_OFFSET = -1


@dataclass(slots=True)
class _Tries:
    offset: int = NO_OFFSET  # where it began the last time
    futile: int = 0  # beginnings in a row that led to nothing
    not_before: float = float("-inf")


class TierStarts:
    """Of all replicas of one broker; times are the loop's seconds."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._tries: dict[Partition, _Tries] = {}
        self.repeated = 0  # beginnings at a place where the same replica had begun before

    def may_begin(self, partition: Partition, now: float) -> bool:
        tries = self._tries.get(partition)
        return tries is None or tries.not_before <= now

    def began(self, partition: Partition, offset: int, now: float) -> int:
        """How often in a row it has begun at `offset` before: each time its leader has led it back."""
        tries = self._tries.setdefault(partition, _Tries())
        if offset != tries.offset:
            tries.offset, tries.futile, tries.not_before = offset, 0, float("-inf")
            return 0
        self.repeated += 1
        return self._futile(tries, now)

    def failed(self, partition: Partition, now: float) -> int:
        """How often in a row, this time included, nothing has come of it."""
        return self._futile(self._tries.setdefault(partition, _Tries()), now)

    def _futile(self, tries: _Tries, now: float) -> int:
        tries.futile += 1
        tries.not_before = now + self._backoff.pause_s(tries.futile)
        return tries.futile

    def forget(self, partition: Partition) -> None:
        """It leads, or is hosted here no longer."""
        self._tries.pop(partition, None)


def tell_start(event: str, partition: Partition, times: int, **more: object) -> None:
    """Ever more seldom: it may never end."""
    if times & (times - 1) == 0:
        logger.warning(event, extra={"partition": repr(partition), "times": times} | more)
