"""The one way in which the replicas of a partition change. Pure.

A reassignment first adds the new replicas (`adding`), and when all of them are in the ISR it takes the old ones out
(`removing`), in the commit that found them in sync. Requests of operators and of the balancer both use it. No step
removes an in-sync replica where fewer than `min.insync.replicas` would be left. Nor does a step remove a replica of the
ISR or ELR where fewer of these would be left: any one may just have lost power, which only its silence will show.
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
    """What a finished reassignment leaves."""

    replicas: Replicas
    isr: Replicas


class _Moving(Struct, frozen=True):
    """A partition's replicas on their way: `replicas` are those of before and after together."""

    replicas: Replicas
    adding: Replicas
    removing: Replicas


def completion(partition: PartitionImage, isr: Replicas, min_isr: int) -> Completion | None:
    """The end of `partition`'s reassignment once `isr` is its ISR; None while it has to wait.

    It waits for all new replicas to be in sync, and while taking the old ones out would leave fewer in sync, or fewer
    that hold all that was committed, than `min_isr`.
    """
    if not partition.is_reassigning:
        return None
    return _completion(partition, _Moving(partition.replicas, partition.adding, partition.removing), isr, min_isr)


def changes_where_moves_may_end(
    image: MetadataImage, policy: ControllerPolicy, keys: Iterable[PartitionKey]
) -> list[PartitionChangeRecord]:
    """Those of these partitions' reassignments that waited for what their settings ask no more end."""
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
    """Who holds all that was committed once `isr` is the ISR: the ELR as well, where that is too small to commit."""
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
) -> PartitionChangeRecord | None:
    """Lead `partition` to the replicas `wanted`, the preferred leader first; an earlier reassignment is overridden.

    `targets` are those of a decision on the same image. Raises INVALID_REPLICATION_ASSIGNMENT for replicas that cannot
    be. None when nothing changes.
    """
    _check_wanted(image, wanted)
    targets = targets or Targets(image, policy)
    settled = targets.settled(topic, partition)
    before = tuple(r for r in partition.replicas if r not in partition.adding)
    adding = tuple(r for r in wanted if r not in before)
    removing = tuple(r for r in before if r not in wanted)
    moving = _Moving(wanted + removing, adding, removing)
    min_isr = targets.min_isr(topic)
    # An overridden reassignment may have added replicas that are not wanted any more: they go at once.
    isr = _isr_within(settled, moving.replicas, min(min_isr, len(before)))
    target = _target(targets, topic, moving, isr, Cause.REASSIGNMENT_STARTED)
    done = _completion(settled, moving, isr, min_isr)
    if done is not None:
        target = completed(target, done)
    elif not adding and not settled.isr:  # only removals, and no leader: no replica has to catch up
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
    """Back to the replicas from before. Raises NO_REASSIGNMENT_IN_PROGRESS, or INVALID_REPLICATION_ASSIGNMENT when
    too few of them are in sync."""
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
    """The ISR when only `kept` stay. Raises INVALID_REPLICATION_ASSIGNMENT when that would lose in-sync replicas, or
    such that hold all that was committed, and leave fewer than `needed`, or would leave none of them."""
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
