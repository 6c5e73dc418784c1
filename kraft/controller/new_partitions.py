"""The records of new partitions. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import ErrorCode, ProtocolError
from kraft.image.metadata import MetadataImage
from kraft.records import Cause, PartitionRecord


def partition_records(
    image: MetadataImage,
    topic_id: bytes,
    first: int,
    assignments: list[tuple[int, ...]],
    cause: Cause,
    leader_epochs: Sequence[int] = (),
) -> list[PartitionRecord]:
    """Records of new partitions from number `first` on. Raises INVALID_REPLICATION_ASSIGNMENT if no replica could lead
    one."""
    fit = {broker.broker_id: None for broker in image.brokers.values() if broker.is_fit}
    active = {broker.broker_id: None for broker in image.brokers.values() if broker.is_active}
    records = []
    for index, replicas in enumerate(assignments, first):
        isr = replicas if all(r in active for r in replicas) else tuple(r for r in replicas if r in active)
        if not isr:
            raise ProtocolError(
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT, f"All brokers for partition {index} are fenced or stopping."
            )
        epoch = leader_epochs[index - first] if leader_epochs else 0
        leader = next((r for r in isr if r in fit), isr[0])
        records.append(PartitionRecord(topic_id, index, replicas, isr, leader, epoch, cause=cause))
    return records
