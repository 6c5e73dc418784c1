"""The led partitions in which a transaction is open, so that readers of committed records and the tier stop there.

A partition is looked at when a batch of a transaction, or a marker, was appended to it, or its leadership changed; so
neither a scrape nor a round walks over all partitions.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.partitions.partition import Partition
from common.pacing import Work
from storage.disk.checkpoint_files import TopicPartition

LOOK_COST = 2  # units of `common.pacing`


class OpenTransactions:
    """`noted`: what is to be looked at; this removes them. `now`: loop seconds."""

    def __init__(
        self,
        noted: dict[TopicPartition, None],
        find: Callable[[str, int], Partition | None],
        now: Callable[[], float],
    ) -> None:
        self._noted = noted
        self._find = find
        self._now = now
        self._stops: dict[TopicPartition, tuple[int, float]] = {}
        """Where each partition's committed records stop, and since when; the longest first."""

    def __len__(self) -> int:
        """Number of partitions, as of the last round."""
        return len(self._stops)

    @property
    def age_s(self) -> float:
        """For how long the oldest one has stopped at the same offset, since this broker leads it."""
        oldest = next(iter(self._stops.values()), None)
        return 0.0 if oldest is None else self._now() - oldest[1]

    def look(self) -> Work[None]:
        """One round. What is noted meanwhile is looked at in the next one."""
        now = self._now()
        for key in list(self._noted):
            self._noted.pop(key, None)
            partition = self._find(*key)
            if partition is not None and partition.log.barred is not None:
                self._noted[key] = None  # its producers may be from before a truncation: in a later round
                yield LOOK_COST
                continue
            is_led = partition is not None and partition.is_leader
            first = partition.log.producers.first_undecided_offset if is_led and partition is not None else None
            known = self._stops.get(key)
            if first is None:
                self._stops.pop(key, None)
            elif known is None or known[0] != first:
                self._stops.pop(key, None)
                self._stops[key] = first, now
            yield LOOK_COST
