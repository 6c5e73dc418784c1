"""The one way in which the replicas of a partition change. Pure.

A reassignment first adds the new replicas (`adding`), and when all of them are in the ISR it takes the old ones out
(`removing`), in the commit that found them in sync. Whoever wants other replicas, an operator or the balancer, comes
through here. No step takes an in-sync replica away where fewer than `min.insync.replicas` would be left. Nor does one
take away a replica that is known to hold all that was committed, be it in the ISR or in the ELR, where fewer such than
that would be left: any one of them may just have lost power, which its silence tells only later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from common.errors import ErrorCode, ProtocolError
from kraft.controller.elections import PartitionTarget, acceptable_leaders, change_partition
from kraft.controller.policy import ControllerPolicy, min_insync_replicas
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.topics import TopicImage
from kraft.records import NO_LEADER, Cause, PartitionChangeRecord

Replicas = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """What a finished reassignment leaves."""

    replicas: Replicas
    isr: Replicas


@dataclass(frozen=True, slots=True)
class _Moving:
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


def changes_when_moves_may_end(
    image: MetadataImage, policy: ControllerPolicy, topic_names: Iterable[str]
) -> list[PartitionChangeRecord]:
    """Reassignments of these topics that waited for what their settings ask no more end."""
    records = []
    for topic in [image.topics.by_name[name] for name in dict.fromkeys(topic_names) if name in image.topics]:
        for partition in topic.partitions.values():
            min_isr = min_insync_replicas(image, topic.name, policy)
            done = completion(partition, partition.isr, min_isr)
            if done is not None:
                target = PartitionTarget(acceptable_leaders(image), min_isr, Cause.REASSIGNMENT_COMPLETED)
                complete(target, done)
                record = change_partition(partition, target)
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
    image: MetadataImage, topic: TopicImage, partition: PartitionImage, wanted: Replicas, policy: ControllerPolicy
) -> PartitionChangeRecord | None:
    """Lead `partition` to the replicas `wanted`, the preferred leader first; an earlier reassignment is overridden.

    Raises INVALID_REPLICATION_ASSIGNMENT for replicas that cannot be. None when nothing changes.
    """
    _check_wanted(image, wanted)
    before = tuple(r for r in partition.replicas if r not in partition.adding)
    adding = tuple(r for r in wanted if r not in before)
    removing = tuple(r for r in before if r not in wanted)
    moving = _Moving(wanted + removing, adding, removing)
    min_isr = min_insync_replicas(image, topic.name, policy)
    # An overridden reassignment may have added replicas that are not wanted any more: they go at once.
    isr = _isr_within(partition, moving.replicas, min(min_isr, len(before)))
    target = _target(image, min_isr, moving, isr, Cause.REASSIGNMENT_STARTED)
    done = _completion(partition, moving, isr, min_isr)
    if done is not None:
        complete(target, done)
    elif not adding and not partition.isr:  # only removals, and nobody leads: nothing has to catch up
        isr = _isr_within(partition, wanted, 0)
        if not _loses_holders(_holders(partition, isr, min_isr), wanted, min(min_isr, len(wanted))):
            complete(target, Completion(wanted, isr))
    return change_partition(partition, target)


def cancel_reassignment(
    image: MetadataImage, topic: TopicImage, partition: PartitionImage, policy: ControllerPolicy
) -> PartitionChangeRecord | None:
    """Back to the replicas from before. Raises NO_REASSIGNMENT_IN_PROGRESS, or INVALID_REPLICATION_ASSIGNMENT when
    too few of them are in sync."""
    if not partition.is_reassigning:
        raise ProtocolError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment of the partition is running.")
    replicas = tuple(r for r in partition.replicas if r not in partition.adding)
    min_isr = min_insync_replicas(image, topic.name, policy)
    isr = _isr_within(partition, replicas, min(min_isr, len(replicas)))
    target = _target(image, min_isr, _Moving(replicas, (), ()), isr, Cause.REASSIGNMENT_CANCELLED)
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


def _target(image: MetadataImage, min_isr: int, moving: _Moving, isr: Replicas, cause: Cause) -> PartitionTarget:
    return PartitionTarget(
        acceptable_leaders(image),
        min_isr,
        cause,
        isr=isr,
        replicas=moving.replicas,
        adding=moving.adding,
        removing=moving.removing,
    )


def complete(target: PartitionTarget, done: Completion) -> None:
    """Have `target` end the reassignment."""
    target.replicas, target.isr, target.adding, target.removing = done.replicas, done.isr, (), ()
    target.cause = Cause.REASSIGNMENT_COMPLETED
