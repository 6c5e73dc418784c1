"""Who leads, who is in the ISR and who in the ELR after something happened to a partition. Pure.

Leaders come from the ISR (those first whose disks have room), else from the ELR, else, when both are empty, only the
last known leader may return; anyone else only where the topic asks for unclean elections, or where nobody has led yet.
The eligible leader replicas
(KIP-966) are those that left the ISR while it was below `min.insync.replicas`: the high watermark has not moved since,
so they hold all that was ever committed. A replica that stopped uncleanly is in neither set, whatever it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from kraft.controller.policy import ControllerPolicy, min_insync_replicas, unclean_leader_election
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.topics import TopicImage
from kraft.records import NO_LEADER, Cause, PartitionChangeRecord

Replicas = tuple[int, ...]


class Election(Enum):
    """KEEP leaves a valid leader in place; PREFERRED moves to the first replica if that is in sync; UNCLEAN is KEEP
    that takes any live replica rather than none."""

    KEEP = 1
    PREFERRED = 2
    UNCLEAN = 3


@dataclass(slots=True)
class PartitionTarget:
    """What shall become of a partition. Sets that are None stay.

    `acceptable` says whether a broker may lead now; one that is `crowded` is elected only where nobody else in sync is
    left. `unclean` are replicas that lost what they had not flushed.
    """

    acceptable: Callable[[int], bool]
    min_isr: int
    cause: Cause
    isr: Replicas | None = None
    replicas: Replicas | None = None
    adding: Replicas | None = None
    removing: Replicas | None = None
    unclean: Replicas = ()
    election: Election = Election.KEEP
    crowded: frozenset[int] = frozenset()


def change_partition(partition: PartitionImage, target: PartitionTarget) -> PartitionChangeRecord | None:
    """The record that leads to `target`, with leader, ISR and ELR as the rules above have it; None for no change."""
    replicas = partition.replicas if target.replicas is None else target.replicas
    isr = partition.isr if target.isr is None else target.isr
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
            elr, last_known_elr = (), ()  # nobody is known to hold what this leader is going to commit
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
    candidates = dict.fromkeys(partition.isr + partition.elr)
    elr = tuple(r for r in candidates if r not in isr and r not in target.unclean and r in replicas)
    candidates.update(dict.fromkeys(partition.last_known_elr))
    return elr, tuple(r for r in candidates if r not in isr and r not in elr and r in replicas)


def _elect(
    partition: PartitionImage, target: PartitionTarget, replicas: Replicas, isr: Replicas, elr: Replicas
) -> tuple[int, Cause]:
    """(leader, cause of the whole change)."""
    acceptable, current = target.acceptable, partition.leader
    in_sync = sorted((r for r in replicas if r in isr and acceptable(r)), key=target.crowded.__contains__)
    if in_sync:
        if target.election is Election.PREFERRED and in_sync[0] == replicas[0]:
            return in_sync[0], target.cause
        if current in in_sync:
            return current, target.cause
        return in_sync[0], target.cause if current != NO_LEADER else Cause.ELECTED_FROM_ISR
    for replica in replicas:
        if replica in elr and acceptable(replica):
            return replica, Cause.ELECTED_FROM_ELR
    if not isr and not elr:
        last_leader = current if current != NO_LEADER else partition.last_known_leader
        if last_leader in replicas and acceptable(last_leader):
            return last_leader, Cause.ELECTED_LAST_KNOWN_LEADER
        if last_leader == NO_LEADER:  # of a rebuilt cluster: no replica holds anything, so any may be the first
            first = next((replica for replica in replicas if acceptable(replica)), NO_LEADER)
            return first, Cause.FIRST_LEADER if first != NO_LEADER else target.cause
    if target.election is Election.UNCLEAN:
        for replica in replicas:
            if acceptable(replica):
                return replica, Cause.UNCLEAN_ELECTION
    return NO_LEADER, target.cause


def acceptable_leaders(
    image: MetadataImage, *, without: int | None = None, including: int | None = None
) -> Callable[[int], bool]:
    """Active brokers, less one that is on its way out, plus one that is on its way in."""
    active = {broker.broker_id: broker.is_active for broker in image.brokers.values()}
    if without is not None:
        active[without] = False
    if including is not None:
        active[including] = True
    return lambda broker_id: active.get(broker_id, False)


def crowded_brokers(image: MetadataImage) -> frozenset[int]:
    """Those whose disks have no room."""
    return frozenset(broker.broker_id for broker in image.brokers.values() if broker.lacks_room)


def changes_when_room_is_lacking(
    image: MetadataImage, policy: ControllerPolicy, broker_id: int
) -> list[PartitionChangeRecord]:
    """The broker, on whose disk nothing is appended any more, leaves the ISRs that can commit without it, and leads
    there no longer.

    Where fewer members with room than `min.insync.replicas` would stay, nothing changes: nobody could do better, and
    this leader tells producers why.
    """
    able = frozenset(
        broker.broker_id for broker in image.brokers.values() if broker.may_join and broker.broker_id != broker_id
    )
    records = []

    def touched(partition: PartitionImage) -> bool:
        return broker_id in partition.isr and not able.isdisjoint(partition.isr)

    for topic, partition in _partitions(image, touched):
        target = _target(image, policy, topic, able.__contains__, Cause.NO_ROOM)
        if sum(r in able for r in partition.isr) < min(target.min_isr, partition.settled_replica_count):
            continue
        target.isr = tuple(r for r in partition.isr if r != broker_id)
        record = change_partition(partition, target)
        if record is not None:
            records.append(record)
    return records


def changes_when_broker_leaves(
    image: MetadataImage, policy: ControllerPolicy, broker_id: int, cause: Cause, *, unclean: bool = False
) -> list[PartitionChangeRecord]:
    """The broker leaves every ISR, its leaderships move. `unclean`: it leaves every ELR as well."""
    acceptable = acceptable_leaders(image, without=broker_id)
    out = (broker_id,) if unclean else ()

    def touched(partition: PartitionImage) -> bool:
        return broker_id in partition.isr or partition.leader == broker_id or (unclean and broker_id in partition.elr)

    records = []
    for topic, partition in _partitions(image, touched):
        target = _target(image, policy, topic, acceptable, cause)
        target.isr = tuple(r for r in partition.isr if r != broker_id)
        target.unclean = out
        record = change_partition(partition, target)
        if record is not None:
            records.append(record)
    return records


def changes_when_broker_returns(
    image: MetadataImage, policy: ControllerPolicy, broker_id: int
) -> list[PartitionChangeRecord]:
    """Partitions without a leader that the unfenced broker may lead get one."""
    acceptable = acceptable_leaders(image, including=broker_id)

    def touched(partition: PartitionImage) -> bool:
        return partition.leader == NO_LEADER and broker_id in partition.replicas

    return _elected(image, policy, touched, acceptable, Cause.BROKER_UNFENCED)


def changes_when_elections_relax(
    image: MetadataImage, policy: ControllerPolicy, topic_names: Iterable[str]
) -> list[PartitionChangeRecord]:
    """Leaderless partitions of these topics get a leader if their settings now allow one."""
    names = dict.fromkeys(topic_names)
    records = []
    acceptable = acceptable_leaders(image)
    for topic in [image.topics.by_name[name] for name in names if name in image.topics]:
        for partition in topic.partitions.values():
            if partition.leader == NO_LEADER:
                record = change_partition(
                    partition, _target(image, policy, topic, acceptable, Cause.REQUESTED_ELECTION)
                )
                if record is not None:
                    records.append(record)
    return records


def changes_when_min_isr_changes(image: MetadataImage, topic_names: Iterable[str]) -> list[PartitionChangeRecord]:
    """The ELR was made under another `min.insync.replicas`, so it proves nothing any more: it is cleared."""
    topics = [image.topics.by_name[name] for name in dict.fromkeys(topic_names) if name in image.topics]
    return [
        PartitionChangeRecord(
            partition.topic_id,
            partition.partition,
            elr=() if partition.elr else None,
            last_known_elr=() if partition.last_known_elr else None,
            cause=Cause.MIN_ISR_CHANGED,
        )
        for topic in topics
        for partition in topic.partitions.values()
        if partition.elr or partition.last_known_elr
    ]


def changes_when_isr_suffices(image: MetadataImage, policy: ControllerPolicy) -> list[PartitionChangeRecord]:
    """ELRs go where the ISR is large enough to commit without them: made while `min.insync.replicas` was larger, which
    a restart with other settings may have changed."""
    return [
        PartitionChangeRecord(
            partition.topic_id,
            partition.partition,
            elr=() if partition.elr else None,
            last_known_elr=() if partition.last_known_elr else None,
            cause=Cause.MIN_ISR_CHANGED,
        )
        for topic, partition in _partitions(image, lambda partition: bool(partition.elr or partition.last_known_elr))
        if len(partition.isr) >= min(min_insync_replicas(image, topic.name, policy), partition.settled_replica_count)
    ]


def changes_to_preferred_leaders(
    image: MetadataImage, policy: ControllerPolicy, changes_max: int, *, broker_id: int | None = None
) -> list[PartitionChangeRecord]:
    """Leadership returns to the first replica where that is active, in sync and has room; at most `changes_max` at a
    time."""
    acceptable, crowded = acceptable_leaders(image), crowded_brokers(image)
    records: list[PartitionChangeRecord] = []

    def touched(partition: PartitionImage) -> bool:
        preferred = partition.preferred_leader
        return (
            partition.leader not in (preferred, NO_LEADER)
            and (broker_id is None or preferred == broker_id)
            and preferred in partition.isr
            and acceptable(preferred)
            and preferred not in crowded
        )

    for topic, partition in _partitions(image, touched):
        if len(records) >= changes_max:
            break
        target = _target(image, policy, topic, acceptable, Cause.PREFERRED_LEADER)
        target.election = Election.PREFERRED
        record = change_partition(partition, target)
        if record is not None:
            records.append(record)
    return records


def leads_anything(image: MetadataImage, broker_id: int) -> bool:
    return any(partition.leader == broker_id for partition in image.topics.partitions())


def _elected(
    image: MetadataImage,
    policy: ControllerPolicy,
    touched: Callable[[PartitionImage], bool],
    acceptable: Callable[[int], bool],
    cause: Cause,
) -> list[PartitionChangeRecord]:
    records = []
    for topic, partition in _partitions(image, touched):
        record = change_partition(partition, _target(image, policy, topic, acceptable, cause))
        if record is not None:
            records.append(record)
    return records


def _partitions(
    image: MetadataImage, touched: Callable[[PartitionImage], bool]
) -> Iterator[tuple[TopicImage, PartitionImage]]:
    for topic in image.topics:
        for partition in topic.partitions.values():
            if touched(partition):
                yield topic, partition


def _target(
    image: MetadataImage,
    policy: ControllerPolicy,
    topic: TopicImage,
    acceptable: Callable[[int], bool],
    cause: Cause,
) -> PartitionTarget:
    unclean = unclean_leader_election(image, topic.name, policy)
    return PartitionTarget(
        acceptable,
        min_insync_replicas(image, topic.name, policy),
        cause,
        election=Election.UNCLEAN if unclean else Election.KEEP,
        crowded=crowded_brokers(image),
    )
