"""Reassignment, the only way in which a partition's replicas change. No I/O.

A reassignment first adds the new replicas (`adding`). When all of them are in the ISR it removes the old ones
(`removing`), in the commit that found them in sync. Operators and the balancer both use it. No step removes an in-sync
replica if fewer than `min.insync.replicas` would remain. Nor does a step remove a replica of ISR or ELR if fewer of
these would remain, because any one of them may just have lost power, which is only noticed later.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from common.errors import ErrorCode, ProtocolError
from kraft.controller.elections import Election, PartitionTarget, Targets, change_partition
from kraft.controller.policy import ControllerPolicy
from kraft.image.metadata import MetadataImage
from kraft.image.partition_index import PartitionKey
from kraft.image.partitions import PartitionImage
from kraft.image.topics import TopicImage
from kraft.records import NO_LEADER, Cause, PartitionChangeRecord

Replicas = tuple[int, ...]


class Completion(Struct, frozen=True):
    """The result of a finished reassignment."""

    replicas: Replicas
    isr: Replicas


class _Moving(Struct, frozen=True):
    """The replicas of a moving partition: `replicas` has old and new ones."""

    replicas: Replicas
    adding: Replicas
    removing: Replicas


def completion(partition: PartitionImage, isr: Replicas, min_isr: int) -> Completion | None:
    """The end of `partition`'s reassignment when `isr` is its ISR; None if it must wait.

    It waits until all new replicas are in sync, and while removing the old ones would leave fewer than `min_isr` in
    sync, or fewer than `min_isr` that hold everything committed.
    """
    if not partition.is_reassigning:
        return None
    return _completion(partition, _Moving(partition.replicas, partition.adding, partition.removing), isr, min_isr)


def changes_where_moves_may_end(
    image: MetadataImage, policy: ControllerPolicy, keys: Iterable[PartitionKey]
) -> list[PartitionChangeRecord]:
    """Changes that end reassignments that waited for a setting that has changed."""
    targets = Targets(image, policy)
    records = []
    for topic_id, index in keys:
        topic = image.topics.by_id.get(topic_id)
        partition = topic.partitions.get(index) if topic is not None else None
        if topic is None or partition is None:
            continue
        settled = targets.settled(topic, partition)
        target = targets.of(topic, Cause.REASSIGNMENT_COMPLETED, election=Election.KEEP)
        done = completion(settled, settled.isr, target.min_isr)
        if done is not None:
            record = change_partition(partition, completed(target, done))
            records += [record] if record is not None else []
    return records


def _completion(partition: PartitionImage, moving: _Moving, isr: Replicas, min_isr: int) -> Completion | None:
    replicas = tuple(r for r in moving.replicas if r not in moving.removing)
    remaining = tuple(r for r in isr if r not in moving.removing)
    if not remaining or any(r not in remaining for r in moving.adding):
        return None
    needed = min(min_isr, len(replicas))
    if len(remaining) < len(isr) and len(remaining) < needed:
        return None
    if _loses_holders(_holders(partition, isr, min_isr), replicas, needed):
        return None
    return Completion(replicas, remaining)


def _holders(partition: PartitionImage, isr: Replicas, min_isr: int) -> Replicas:
    """The replicas that hold everything committed if `isr` is the ISR: the ELR too, if the ISR is too small to
    commit."""
    if len(isr) >= min(min_isr, partition.settled_replica_count):
        return isr
    return tuple(dict.fromkeys(isr + partition.isr + partition.elr))


def _loses_holders(holders: Replicas, kept: Replicas, needed: int) -> bool:
    left = sum(holder in kept for holder in holders)
    return left < len(holders) and left < needed


def start_reassignment(
    image: MetadataImage,
    topic: TopicImage,
    partition: PartitionImage,
    wanted: Replicas,
    policy: ControllerPolicy,
    targets: Targets | None = None,
    cause: Cause = Cause.REASSIGNMENT_STARTED,
) -> PartitionChangeRecord | None:
    """Reassign `partition` to `wanted`, the preferred leader first; overrides an earlier reassignment.

    `targets`: of a decision on the same image. Raises INVALID_REPLICATION_ASSIGNMENT for impossible replicas. None if
    nothing changes.
    """
    _check_wanted(image, wanted)
    targets = targets or Targets(image, policy)
    settled = targets.settled(topic, partition)
    before = tuple(r for r in partition.replicas if r not in partition.adding)
    adding = tuple(r for r in wanted if r not in before)
    removing = tuple(r for r in before if r not in wanted)
    moving = _Moving(wanted + removing, adding, removing)
    min_isr = targets.min_isr(topic)
    # An overridden reassignment may have added replicas that are no longer wanted: they are removed at once.
    isr = _isr_within(settled, moving.replicas, min(min_isr, len(before)))
    target = _target(targets, topic, moving, isr, cause)
    done = _completion(settled, moving, isr, min_isr)
    if done is not None:
        target = completed(target, done)
    elif not adding and not settled.isr:  # only removals and no leader: no replica has to catch up
        isr = _isr_within(settled, wanted, 0)
        if not _loses_holders(_holders(settled, isr, min_isr), wanted, min(min_isr, len(wanted))):
            target = completed(target, Completion(wanted, isr))
    return change_partition(partition, target)


def cancel_reassignment(
    image: MetadataImage,
    topic: TopicImage,
    partition: PartitionImage,
    policy: ControllerPolicy,
    targets: Targets | None = None,
) -> PartitionChangeRecord | None:
    """Return to the old replicas. Raises NO_REASSIGNMENT_IN_PROGRESS, or INVALID_REPLICATION_ASSIGNMENT if too few of
    them are in sync."""
    if not partition.is_reassigning:
        raise ProtocolError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment of the partition is running.")
    targets = targets or Targets(image, policy)
    replicas = tuple(r for r in partition.replicas if r not in partition.adding)
    isr = _isr_within(targets.settled(topic, partition), replicas, min(targets.min_isr(topic), len(replicas)))
    target = _target(targets, topic, _Moving(replicas, (), ()), isr, Cause.REASSIGNMENT_CANCELLED)
    return change_partition(partition, target)


def _check_wanted(image: MetadataImage, wanted: Replicas) -> None:
    problem = ""
    if not wanted:
        problem = "A partition needs at least one replica."
    elif len(set(wanted)) != len(wanted):
        problem = f"{list(wanted)} names a broker twice."
    else:
        unknown = [replica for replica in wanted if replica not in image.brokers]
        if unknown:
            problem = f"There is no broker {unknown[0]}."
    if problem:
        raise ProtocolError(ErrorCode.INVALID_REPLICATION_ASSIGNMENT, problem)


def _isr_within(partition: PartitionImage, kept: Replicas, needed: int) -> Replicas:
    """The ISR if only `kept` remain. Raises INVALID_REPLICATION_ASSIGNMENT if that would remove in-sync replicas, or
    ones that hold everything committed, and leave fewer than `needed`, or none."""
    isr = tuple(r for r in partition.isr if r in kept)
    if len(isr) < len(partition.isr) and len(isr) < max(needed, 1):
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
            f"Only {len(isr)} of the replicas that would stay are in sync, where {max(needed, 1)} are needed.",
        )
    holders = tuple(dict.fromkeys(partition.isr + partition.elr))
    if _loses_holders(holders, kept, needed):
        left = sum(holder in kept for holder in holders)
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
            f"Of {list(holders)}, which hold all that was committed, {left} would stay, where {needed} are needed.",
        )
    if not partition.isr:
        if not holders and partition.last_known_leader != NO_LEADER:
            holders = (partition.last_known_leader,)
        if holders and not any(r in kept for r in holders):
            raise ProtocolError(
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
                f"The partition has no leader, and of {list(holders)}, which may become it, none would stay.",
            )
    return isr


def _target(targets: Targets, topic: TopicImage, moving: _Moving, isr: Replicas, cause: Cause) -> PartitionTarget:
    target = targets.of(topic, cause, election=Election.KEEP, isr=isr)
    return msgspec.structs.replace(target, replicas=moving.replicas, adding=moving.adding, removing=moving.removing)


def completed(target: PartitionTarget, done: Completion) -> PartitionTarget:
    """`target` with the end of the reassignment."""
    return msgspec.structs.replace(
        target, replicas=done.replicas, isr=done.isr, adding=(), removing=(), cause=Cause.REASSIGNMENT_COMPLETED
    )
