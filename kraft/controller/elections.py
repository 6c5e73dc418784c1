"""Leader, ISR and ELR of a partition after an event. No I/O.

Leaders come from the ISR (healthy brokers with room on their disks first), else from the ELR. If both are empty, only
the last known leader may return; another replica only with unclean elections, or if the partition has never had a
leader. The eligible leader replicas (KIP-966) are those that left the ISR while it was below `min.insync.replicas`: the
high watermark has not moved since, so they hold everything committed. A replica that stopped uncleanly leaves both
sets.

A broker leaves many partitions in pieces (`kraft.controller.broker_removal`). Until the last piece, some partitions
still list it, and every decision treats it as gone from them: see `Standing`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from itertools import chain

import msgspec
from msgspec import Struct

from common.pacing import Work
from kraft.controller.policy import ControllerPolicy, min_insync_replicas, unclean_leader_election
from kraft.image.metadata import MetadataImage
from kraft.image.partition_index import PartitionKey
from kraft.image.partitions import PartitionImage
from kraft.image.topics import TopicImage
from kraft.records import NO_LEADER, Cause, PartitionChangeRecord

Replicas = tuple[int, ...]

LOOK_COST, CHANGE_COST = 2, 15
"""Per partition that is checked, and per partition that changes."""


class Election(Enum):
    """KEEP leaves a valid leader in place; PREFERRED moves leadership to the first replica if it is in sync; UNCLEAN is
    KEEP, but elects any live replica rather than none."""

    KEEP = 1
    PREFERRED = 2
    UNCLEAN = 3


class PartitionTarget(msgspec.Struct, frozen=True, gc=False):
    """The intended state of a partition. Sets that are None stay.

    `acceptable`: whether a broker may lead now. One in `unfit` is elected only if no other in-sync replica is left.
    `leaving` brokers leave every ISR; `unclean` replicas lost unflushed records, and leave every ELR as well.
    """

    acceptable: Callable[[int], bool]
    min_isr: int
    cause: Cause
    isr: Replicas | None = None
    replicas: Replicas | None = None
    adding: Replicas | None = None
    removing: Replicas | None = None
    unclean: Collection[int] = ()
    election: Election = Election.KEEP
    unfit: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()


class Standing(Struct, frozen=True):
    """The state of brokers towards partitions in one image.

    `unfit`: brokers that are without room or not healthy, so that others should lead. `leaving`: brokers that
    partitions list as in sync although they are not active: fenced, shutting down or unregistered. `unclean`: those of
    them, and of the eligible ones, that lost unflushed records: a partition that still lists such a broker does so from
    before the loss.
    """

    active: frozenset[int]
    unfit: frozenset[int]
    leaving: frozenset[int]
    unclean: frozenset[int]


def standing_of(image: MetadataImage) -> Standing:
    index, brokers = image.topics.index, image.brokers
    active = frozenset(broker.broker_id for broker in brokers.values() if broker.is_active)
    return Standing(
        active,
        frozenset(b.broker_id for b in brokers.values() if b.lacks_room or not b.is_healthy),
        frozenset(broker_id for broker_id in index.in_sync if broker_id not in active),
        frozenset(b for b in chain(index.in_sync, index.eligible) if b not in brokers or brokers[b].is_unclean),
    )


class Targets:
    """Creates the targets of one decision; looks up brokers once, and each topic's settings once."""

    def __init__(self, image: MetadataImage, policy: ControllerPolicy) -> None:
        self.image = image
        self.standing = standing_of(image)
        self._policy = policy
        self._asked: dict[str, tuple[int, bool]] = {}

    def of(
        self,
        topic: TopicImage,
        cause: Cause,
        *,
        election: Election | None = None,
        isr: Replicas | None = None,
        leaders: frozenset[int] | None = None,
    ) -> PartitionTarget:
        """The target without further requests: leaving brokers are removed, and a leader is elected if possible.
        `leaders`: the brokers that may lead; default: all active ones."""
        min_isr, unclean = self._of_topic(topic.name)
        standing = self.standing
        return PartitionTarget(
            (standing.active if leaders is None else leaders).__contains__,
            min_isr,
            cause,
            isr,
            unclean=standing.unclean,
            election=election or (Election.UNCLEAN if unclean else Election.KEEP),
            unfit=standing.unfit,
            leaving=standing.leaving,
        )

    def min_isr(self, topic: TopicImage) -> int:
        return self._of_topic(topic.name)[0]

    def _of_topic(self, name: str) -> tuple[int, bool]:
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = (
                min_insync_replicas(self.image, name, self._policy),
                unclean_leader_election(self.image, name, self._policy),
            )
        return asked

    def settled(self, topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        """`partition` without the brokers that it lists although they have left."""
        standing = self.standing
        if standing.leaving.isdisjoint(partition.isr) and standing.unclean.isdisjoint(partition.elr):
            return partition
        record = change_partition(partition, self.of(topic, Cause.UNSPECIFIED))
        return partition if record is None else partition.changed(record)


def change_partition(partition: PartitionImage, target: PartitionTarget) -> PartitionChangeRecord | None:
    """The record that leads to `target`, with leader, ISR and ELR by the rules above; None if nothing changes."""
    replicas = partition.replicas if target.replicas is None else target.replicas
    isr = partition.isr if target.isr is None else target.isr
    if not target.leaving.isdisjoint(isr):
        isr = tuple(r for r in isr if r not in target.leaving)
    adding = partition.adding if target.adding is None else target.adding
    removing = partition.removing if target.removing is None else target.removing
    needed = min(target.min_isr, len(replicas) - len(adding))
    elr, last_known_elr = _eligible(partition, target, replicas, isr, needed)
    leader, cause = _elect(partition, target, replicas, isr, elr)
    if leader != NO_LEADER and leader not in isr:
        isr = (leader,)
        if cause is Cause.ELECTED_FROM_ELR:
            elr, last_known_elr = _eligible(partition, target, replicas, isr, needed)
        else:
            elr, last_known_elr = (), ()  # no other replica is known to hold what this leader will commit
    last_known_leader = NO_LEADER
    if leader == NO_LEADER:
        last_known_leader = partition.leader if partition.has_leader else partition.last_known_leader
    dropped = any(replica not in replicas for replica in partition.replicas)
    record = PartitionChangeRecord(
        partition.topic_id,
        partition.partition,
        isr if isr != partition.isr else None,
        leader if leader != partition.leader or dropped else None,
        replicas if replicas != partition.replicas else None,
        adding if adding != partition.adding else None,
        removing if removing != partition.removing else None,
        elr if elr != partition.elr else None,
        last_known_elr if last_known_elr != partition.last_known_elr else None,
        last_known_leader if last_known_leader != partition.last_known_leader else None,
        cause,
    )
    return record if _changes_something(record) else None


def _changes_something(record: PartitionChangeRecord) -> bool:
    return not (
        record.isr is None
        and record.leader is None
        and record.replicas is None
        and record.adding is None
        and record.removing is None
        and record.elr is None
        and record.last_known_elr is None
        and record.last_known_leader is None
    )


def _eligible(
    partition: PartitionImage, target: PartitionTarget, replicas: Replicas, isr: Replicas, needed: int
) -> tuple[Replicas, Replicas]:
    """(ELR, last known ELR): empty once the ISR has the `needed` size for the high watermark to move."""
    if len(isr) >= needed:
        return (), ()
    before = partition.elr, partition.last_known_elr
    if len(partition.isr) >= min(target.min_isr, partition.settled_replica_count):
        before = (), ()  # from a larger min.insync.replicas: the ISR may have committed without them since
    candidates = dict.fromkeys(partition.isr + before[0])
    elr = tuple(r for r in candidates if r not in isr and r not in target.unclean and r in replicas)
    candidates.update(dict.fromkeys(before[1]))
    return elr, tuple(r for r in candidates if r not in isr and r not in elr and r in replicas)


def _elect(
    partition: PartitionImage, target: PartitionTarget, replicas: Replicas, isr: Replicas, elr: Replicas
) -> tuple[int, Cause]:
    """(leader, cause of the whole change)."""
    acceptable, current = target.acceptable, partition.leader
    in_sync = sorted((r for r in replicas if r in isr and acceptable(r)), key=target.unfit.__contains__)
    if in_sync:
        if target.election is Election.PREFERRED and in_sync[0] == replicas[0]:
            return in_sync[0], target.cause
        if current in in_sync:
            return current, target.cause
        return in_sync[0], target.cause if current != NO_LEADER else Cause.ELECTED_FROM_ISR
    for replica in sorted(replicas, key=target.unfit.__contains__):
        if replica in elr and acceptable(replica):
            return replica, Cause.ELECTED_FROM_ELR
    if not isr and not elr:
        last_leader = current if current != NO_LEADER else partition.last_known_leader
        if last_leader in replicas and acceptable(last_leader):
            return last_leader, Cause.ELECTED_LAST_KNOWN_LEADER
        if last_leader == NO_LEADER:  # in a rebuilt cluster no replica holds anything, so any may be the first leader
            first = next((replica for replica in replicas if acceptable(replica)), NO_LEADER)
            return first, Cause.FIRST_LEADER if first != NO_LEADER else target.cause
    if target.election is Election.UNCLEAN:
        for replica in replicas:
            if acceptable(replica):
                return replica, Cause.UNCLEAN_ELECTION
    return NO_LEADER, target.cause


def changes_where_brokers_leave(
    image: MetadataImage, policy: ControllerPolicy, keys: Iterable[PartitionKey], cause: Cause
) -> list[PartitionChangeRecord]:
    """Changes by which leaving brokers leave these partitions' ISRs, after unclean stops also the ELRs, and their
    leaderships move."""
    return _changes(image, policy, keys, cause)


def changes_where_leaders_lack(
    image: MetadataImage, policy: ControllerPolicy, keys: Iterable[PartitionKey], cause: Cause
) -> list[PartitionChangeRecord]:
    """Changes that elect leaders for these partitions, where they have none and one is possible now."""
    return _changes(image, policy, keys, cause, lambda partition: not partition.has_leader)


def changes_where_brokers_are_unfit(
    image: MetadataImage, policy: ControllerPolicy, keys: Iterable[PartitionKey]
) -> list[PartitionChangeRecord]:
    """Changes by which others lead in place of brokers without room or health, and by which those of them that should
    not be in an ISR leave it.

    No ISR falls below `min.insync.replicas`. Where that would be needed, a broker without room also goes on leading: no
    other leader could commit, and this one reports the reason to producers. Any other broker hands its leadership over.
    """
    targets = Targets(image, policy)
    unfit, active = targets.standing.unfit, targets.standing.active
    records = []
    for topic, partition in _found(image, keys):
        if unfit.isdisjoint(partition.isr):
            continue
        members = tuple(r for r in partition.isr if r in active)
        needed = max(1, min(targets.min_isr(topic), partition.settled_replica_count))
        roomless = tuple(r for r in members if image.brokers[r].lacks_room)
        isr = tuple(r for r in members if r not in roomless)
        if len(isr) < needed:
            if roomless:
                continue
            isr = members
        without_slow = tuple(r for r in isr if not image.brokers[r].should_leave_isr)
        if len(without_slow) >= needed:
            isr = without_slow
        leaders = frozenset(r for r in isr if r not in unfit) or frozenset(isr)
        if not leaders or (isr == partition.isr and partition.leader in leaders):
            continue
        cause = Cause.NO_ROOM if roomless else _cause_of_unfitness(image, partition.isr)
        target = targets.of(topic, cause, election=Election.KEEP, isr=isr, leaders=leaders)
        record = change_partition(partition, target)
        if record is not None:
            records.append(record)
    return records


def _cause_of_unfitness(image: MetadataImage, isr: Replicas) -> Cause:
    brokers = (image.brokers[r] for r in isr if r in image.brokers)
    return next((broker.health.cause for broker in brokers if not broker.is_healthy), Cause.UNSPECIFIED)


def changes_where_isr_suffices(
    image: MetadataImage, policy: ControllerPolicy, keys: Iterable[PartitionKey]
) -> list[PartitionChangeRecord]:
    """Changes that clear ELRs where the ISR is large enough to commit. Such ELRs are from a time with a larger
    `min.insync.replicas`, which a restart with other settings may have changed."""
    targets = Targets(image, policy)
    return [
        _without_elr(partition)
        for topic, partition in _found(image, keys)
        if _has_elr(partition)
        and len(targets.settled(topic, partition).isr) >= min(targets.min_isr(topic), partition.settled_replica_count)
    ]


def changes_where_min_isr_changes(image: MetadataImage, keys: Iterable[PartitionKey]) -> list[PartitionChangeRecord]:
    """Changes that clear the ELRs from another `min.insync.replicas`, because they prove nothing any more."""
    return [_without_elr(partition) for _topic, partition in _found(image, keys) if _has_elr(partition)]


def _has_elr(partition: PartitionImage) -> bool:
    return bool(partition.elr or partition.last_known_elr)


def _without_elr(partition: PartitionImage) -> PartitionChangeRecord:
    return PartitionChangeRecord(
        partition.topic_id,
        partition.partition,
        elr=() if partition.elr else None,
        last_known_elr=() if partition.last_known_elr else None,
        cause=Cause.MIN_ISR_CHANGED,
    )


def return_leaders(
    image: MetadataImage, policy: ControllerPolicy, changes_max: int
) -> Work[list[PartitionChangeRecord]]:
    """Changes that return leadership to the first replica if it is active, in sync, healthy and has room; at
    most `changes_max`."""
    targets = Targets(image, policy)
    fit = targets.standing.active - targets.standing.unfit
    records: list[PartitionChangeRecord] = []
    for topic, partition in _found(image, image.topics.index.astray):
        yield LOOK_COST
        preferred = partition.preferred_leader
        if preferred not in fit or preferred not in partition.isr or not partition.has_leader:
            continue
        target = targets.of(topic, Cause.PREFERRED_LEADER, election=Election.PREFERRED)
        record = change_partition(partition, target)
        if record is not None:
            records.append(record)
            yield CHANGE_COST
        if len(records) >= changes_max:
            break
    return records


def _changes(
    image: MetadataImage,
    policy: ControllerPolicy,
    keys: Iterable[PartitionKey],
    cause: Cause,
    concerned: Callable[[PartitionImage], bool] = lambda partition: True,
) -> list[PartitionChangeRecord]:
    targets = Targets(image, policy)
    records = []
    for topic, partition in _found(image, keys):
        if concerned(partition):
            record = change_partition(partition, targets.of(topic, cause))
            if record is not None:
                records.append(record)
    return records


def _found(image: MetadataImage, keys: Iterable[PartitionKey]) -> Iterator[tuple[TopicImage, PartitionImage]]:
    """Those of these partitions that still exist."""
    topic: TopicImage | None = None
    for topic_id, index in keys:
        if topic is None or topic.topic_id != topic_id:
            topic = image.topics.by_id.get(topic_id)
        partition = topic.partitions.get(index) if topic is not None else None
        if topic is not None and partition is not None:
            yield topic, partition
