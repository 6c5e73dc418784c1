"""Waiting until history lies in the object store and the brokers have let go of their copies."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient, OffsetSpec
from kafka.errors import RetriableError

TIER_TIMEOUT_S = 90.0
ANSWER_TIMEOUT_S, ASK_AGAIN_S = 30.0, 0.2


class History(NamedTuple):
    """Offsets over all partitions: `records` in the topic, `tiered` of them in the store, `local` at the leaders."""

    records: int
    tiered: int
    local: int

    @property
    def is_settled(self) -> bool:
        """Everything is in the store, and most of it nowhere else."""
        return self.tiered == self.records and self.local * 10 <= self.records


def wait_for_the_tier(bootstrap: str, topic: str, partitions: int) -> History:
    """The last look; it may be an unsettled one, after `TIER_TIMEOUT_S`."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        deadline = time.monotonic() + TIER_TIMEOUT_S
        while True:
            found = look(admin, topic, partitions)
            if found.is_settled or time.monotonic() > deadline:
                return found
            time.sleep(0.5)
    finally:
        admin.close()


def look(admin: Any, topic: str, partitions: int) -> History:
    """Tiered and local ranges may overlap. A broker that has just started to lead may not know its offsets yet."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S

    def offsets(spec: OffsetSpec) -> list[int]:
        asked = {TopicPartition(topic, number): spec for number in range(partitions)}
        while True:
            try:
                return [found.offset for found in admin.list_partition_offsets(asked).values()]
            except RetriableError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(ASK_AGAIN_S)

    first, end = offsets(OffsetSpec.EARLIEST), offsets(OffsetSpec.LATEST)
    tiered, local = offsets(OffsetSpec.LATEST_TIERED), offsets(OffsetSpec.EARLIEST_LOCAL)
    in_tier = sum(max(0, last + 1 - start) for last, start in zip(tiered, first, strict=True))
    return History(sum(end) - sum(first), in_tier, sum(end) - sum(local))
