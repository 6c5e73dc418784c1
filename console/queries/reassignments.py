"""Which replicas reassignments add. They are not in sync while they are filled, and no partition is under-replicated
for their sake (KIP-352)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafka.errors import KafkaError

from wire.messages import ListPartitionReassignmentsRequest

TIMEOUT_MS = 10_000

Added = Mapping[tuple[str, int], Sequence[int]]
"""By topic and partition: brokers."""


def reassignments(topic: str | None = None, partitions: Sequence[int] = ()) -> ListPartitionReassignmentsRequest:
    """The question for some partitions of a topic, or for all of all topics."""
    row = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    asked = None if topic is None else [row(name=topic, partition_indexes=list(partitions))]
    return ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=asked)


def added_in(answer: Any) -> Added:
    """What is known: a person who may not ask, such as a tenant, sees no reassignments."""
    if isinstance(answer, KafkaError) or answer.error_code:
        return {}
    return {
        (topic.name, one.partition_index): tuple(one.adding_replicas)
        for topic in answer.topics
        for one in topic.partitions
        if one.adding_replicas
    }
