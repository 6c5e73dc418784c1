"""The one way in which the replicas of a partition change. Pure.

A reassignment first adds the new replicas (`adding`), and when all of them are in the ISR it takes the old ones out
(`removing`), in the commit that found them in sync. Whoever wants other replicas, an operator or the balancer, comes
through here.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ErrorCode, ProtocolError
from kraft.controller.elections import PartitionTarget, acceptable_leaders, change_partition
from kraft.controller.policy import ControllerPolicy, min_insync_replicas
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.topics import TopicImage
from kraft.records import Cause, PartitionChangeRecord

Replicas = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """What a finished reassignment leaves."""

    replicas: Replicas
    isr: Replicas


def completion(partition: PartitionImage, isr: Replicas) -> Completion | None:
    """The end of `partition`'s reassignment once `isr` is its ISR; None while new replicas are still missing."""
    if not partition.is_reassigning:
        return None
    remaining = tuple(r for r in isr if r not in partition.removing)
    if not remaining or any(r not in remaining for r in partition.adding):
        return None
    return Completion(tuple(r for r in partition.replicas if r not in partition.removing), remaining)


def start_reassignment(
    image: MetadataImage, topic: TopicImage, partition: PartitionImage, wanted: Replicas, policy: ControllerPolicy
) -> PartitionChangeRecord | None:
    """Lead `partition` to the replicas `wanted`, the preferred leader first; an earlier reassignment is overridden.

    Raises INVALID_REPLICATION_ASSIGNMENT for replicas that cannot be. None when nothing changes.
    """
    if not wanted or len(set(wanted)) != len(wanted) or any(replica not in image.brokers for replica in wanted):
        raise ProtocolError(ErrorCode.INVALID_REPLICATION_ASSIGNMENT, f"{list(wanted)} cannot be the replicas.")
    before = tuple(r for r in partition.replicas if r not in partition.adding)
    adding = tuple(r for r in wanted if r not in before)
    removing = tuple(r for r in before if r not in wanted)
    merged = wanted + removing
    dropped = tuple(r for r in partition.replicas if r not in merged)  # of an earlier, overridden reassignment
    isr = tuple(r for r in partition.isr if r not in dropped)
    if not isr and partition.isr:
        raise ProtocolError(ErrorCode.INVALID_REPLICATION_ASSIGNMENT, "No in-sync replica would be left.")
    target = PartitionTarget(
        acceptable_leaders(image),
        min_insync_replicas(image, topic.name, policy),
        Cause.REASSIGNMENT_STARTED,
        isr=isr,
        replicas=merged,
        adding=adding,
        removing=removing,
    )
    if not adding and not removing:
        target.cause = Cause.REASSIGNMENT_COMPLETED
    elif not adding:  # only removals: nothing has to catch up
        remaining = tuple(r for r in isr if r not in removing)
        if remaining:
            target.replicas, target.isr, target.removing = wanted, remaining, ()
            target.cause = Cause.REASSIGNMENT_COMPLETED
    return change_partition(partition, target)


def cancel_reassignment(
    image: MetadataImage, topic: TopicImage, partition: PartitionImage, policy: ControllerPolicy
) -> PartitionChangeRecord | None:
    """Back to the replicas from before. Raises NO_REASSIGNMENT_IN_PROGRESS, or INVALID_REPLICATION_ASSIGNMENT when
    only new replicas are in sync."""
    if not partition.is_reassigning:
        raise ProtocolError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment of the partition is running.")
    isr = tuple(r for r in partition.isr if r not in partition.adding)
    if not isr and partition.isr:
        raise ProtocolError(ErrorCode.INVALID_REPLICATION_ASSIGNMENT, "Only new replicas are in sync.")
    target = PartitionTarget(
        acceptable_leaders(image),
        min_insync_replicas(image, topic.name, policy),
        Cause.REASSIGNMENT_CANCELLED,
        isr=isr,
        replicas=tuple(r for r in partition.replicas if r not in partition.adding),
        adding=(),
        removing=(),
    )
    return change_partition(partition, target)
