"""AlterPartition: a leader changes the ISR, as compare-and-set on leader and partition epoch. No I/O."""

from __future__ import annotations

from common.decision import Decision
from common.errors import ErrorCode
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.elections import CHANGE_COST, Election, Targets, change_partition
from kraft.controller.policy import ControllerPolicy
from kraft.controller.reassignment import completed, completion
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.topics import TopicImage
from kraft.records import Cause
from wire.messages import AlterPartitionRequest, AlterPartitionResponse, raw_uuid, schema_uuid

NO_BROKER_EPOCH = -1
RECOVERED = 0
_Change = AlterPartitionRequest.TopicData.PartitionData
_Topic = AlterPartitionResponse.TopicData
_Partition = AlterPartitionResponse.TopicData.PartitionData


def alter_partition(
    image: MetadataImage, request: AlterPartitionRequest, version: int, policy: ControllerPolicy
) -> Work[Decision[MetadataRecord, AlterPartitionResponse]]:
    """AlterPartition (56). Each partition succeeds or fails on its own; a stale broker epoch fails the whole request.

    Version 3 has the broker epoch of each member. A broker that joins the ISR must be active, have room and not be
    slow, and its epoch must be that of its current registration (KIP-903): a replica that restarted since the leader
    saw it may have lost its tail.
    """
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        return Decision(AlterPartitionResponse(error_code=int(ErrorCode.STALE_BROKER_EPOCH), topics=[]))
    targets = Targets(image, policy)
    records: list[MetadataRecord] = []
    topics = []
    seen: dict[tuple[bytes, int], None] = {}
    for wanted in request.topics:
        topic_id = raw_uuid(wanted.topic_id)
        topic = image.topics.get_by_id(topic_id)
        partitions = []
        for change in wanted.partitions:
            key = (topic_id, change.partition_index)
            yield CHANGE_COST
            if topic is None:
                code: ErrorCode | None = ErrorCode.UNKNOWN_TOPIC_ID
            else:
                code = ErrorCode.INVALID_REQUEST if key in seen else None
            seen[key] = None
            if code is None and topic is not None:
                partitions.append(_alter(image, topic, change, version, request.broker_id, targets, records))
            else:
                partitions.append(_failed(change, code or ErrorCode.INVALID_REQUEST))
        topics.append(_Topic(topic_id=schema_uuid(topic_id), partitions=partitions))
    return Decision(AlterPartitionResponse(error_code=0, topics=topics), records)


def _alter(
    image: MetadataImage,
    topic: TopicImage,
    change: _Change,
    version: int,
    broker_id: int,
    targets: Targets,
    records: list[MetadataRecord],
) -> _Partition:
    """The partition's response; changes to commit are added to `records`."""
    partition = topic.partitions.get(change.partition_index)
    if partition is None:
        return _failed(change, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    members = _members(change, version)
    code = _refusal(image, partition, change, members, broker_id, targets.min_isr(topic))
    if code is not None:
        return _failed(change, code)
    isr = tuple(member for member, _epoch in members)
    target = targets.of(topic, Cause.ISR_CHANGE_BY_LEADER, election=Election.KEEP, isr=isr)
    done = completion(targets.settled(topic, partition), isr, target.min_isr)
    record = change_partition(partition, target if done is None else completed(target, done))
    after = partition
    if record is not None:
        records.append(record)
        after = partition.changed(record)
    if after.leader != broker_id:
        return _failed(change, ErrorCode.NEW_LEADER_ELECTED)
    return _Partition(
        partition_index=after.partition,
        error_code=0,
        leader_id=after.leader,
        leader_epoch=after.leader_epoch,
        isr=list(after.isr),
        leader_recovery_state=RECOVERED,
        partition_epoch=after.partition_epoch,
    )


def _members(change: _Change, version: int) -> list[tuple[int, int]]:
    """(broker id, broker epoch) of the wanted ISR."""
    if version >= 3:
        return [(state.broker_id, state.broker_epoch) for state in change.new_isr_with_epochs]
    return [(broker_id, NO_BROKER_EPOCH) for broker_id in change.new_isr]


def _refusal(
    image: MetadataImage,
    partition: PartitionImage,
    change: _Change,
    members: list[tuple[int, int]],
    broker_id: int,
    min_isr: int,
) -> ErrorCode | None:
    # A leader is ahead of this image: this node is no longer the controller.
    if change.leader_epoch > partition.leader_epoch or change.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if change.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if partition.leader != broker_id:
        return ErrorCode.INVALID_REQUEST
    if change.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = [member for member, _epoch in members]
    if len(set(isr)) != len(isr) or any(member not in partition.replicas for member in isr):
        return ErrorCode.INVALID_REQUEST
    if partition.leader not in isr or change.leader_recovery_state != RECOVERED:
        return ErrorCode.INVALID_REQUEST
    in_need = len(partition.isr) < min(min_isr, partition.settled_replica_count)
    if not all(_may_join(image, partition, member, epoch, in_need) for member, epoch in members):
        return ErrorCode.INELIGIBLE_REPLICA
    return None


def _may_join(image: MetadataImage, partition: PartitionImage, member: int, epoch: int, in_need: bool) -> bool:
    """`in_need`: the ISR is too small to commit anything, so a slow member is better than none."""
    broker = image.brokers.get(member)
    if broker is None or not broker.is_active:
        return False
    if epoch == NO_BROKER_EPOCH:  # accepted only for current members, which were there before this registration
        return member in partition.isr
    may_join = broker.may_join_in_need if in_need else broker.may_join
    return epoch == broker.epoch and (may_join or member in partition.isr)


def _failed(change: _Change, code: ErrorCode) -> _Partition:
    return _Partition(partition_index=change.partition_index, error_code=int(code), leader_id=-1, leader_epoch=-1)
