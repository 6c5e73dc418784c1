"""AlterPartitionReassignments and ListPartitionReassignments. Pure."""

from __future__ import annotations

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.elections import CHANGE_COST, LOOK_COST, Targets
from kraft.controller.policy import ControllerPolicy
from kraft.controller.reassignment import cancel_reassignment, start_reassignment
from kraft.controller.tenant_topics import Home, check_range
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.topics import TopicImage
from kraft.records import PartitionChangeRecord
from wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

_Topic = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_Partition = _Topic.ReassignablePartitionResponse
_Ongoing = ListPartitionReassignmentsResponse.OngoingTopicReassignment
_OngoingPartition = _Ongoing.OngoingPartitionReassignment


def alter_reassignments(
    image: MetadataImage, request: AlterPartitionReassignmentsRequest, policy: ControllerPolicy
) -> Work[Decision[MetadataRecord, AlterPartitionReassignmentsResponse]]:
    """AlterPartitionReassignments (45): each partition succeeds or fails on its own; null replicas cancel.

    Version 1 can forbid a change of the number of replicas (KIP-860).
    """
    targets = Targets(image, policy)
    records: list[MetadataRecord] = []
    topics = []
    seen: dict[tuple[str, int], None] = {}
    for topic in request.topics:
        partitions = []
        home = Home(image, topic.name)
        yield CHANGE_COST
        for wanted in topic.partitions:
            key = (topic.name, wanted.partition_index)
            yield 2 * CHANGE_COST
            code, message = ErrorCode.NONE, None
            try:
                if key in seen:
                    raise ProtocolError(ErrorCode.INVALID_REQUEST, "The partition is given twice.")
                seen[key] = None
                record = _change(
                    image, home, topic.name, wanted, policy, request.allow_replication_factor_change, targets
                )
                records += [record] if record is not None else []
            except ProtocolError as error:
                code, message = error.code, error.message
            partitions.append(
                _Partition(partition_index=wanted.partition_index, error_code=int(code), error_message=message)
            )
        topics.append(_Topic(name=topic.name, partitions=partitions))
    reply = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=0,
        error_message=None,
        responses=topics,
    )
    return Decision(reply, records)


def _change(
    image: MetadataImage,
    home: Home,
    name: str,
    wanted: AlterPartitionReassignmentsRequest.ReassignableTopic.ReassignablePartition,
    policy: ControllerPolicy,
    other_factor: bool,
    targets: Targets,
) -> PartitionChangeRecord | None:
    topic = image.topics.get(name)
    partition = topic.partitions.get(wanted.partition_index) if topic is not None else None
    if topic is None or partition is None:
        message = f"There is no partition {name}-{wanted.partition_index}."
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    if wanted.replicas is None:
        return cancel_reassignment(image, topic, partition, policy, targets)
    factor = partition.settled_replica_count
    if not other_factor and len(wanted.replicas) != factor:
        message = f"The partition has {factor} replicas, and the request forbids to change that."
        raise ProtocolError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    home.check(tuple(wanted.replicas))
    check_range(image, name, wanted.partition_index, tuple(wanted.replicas))
    return start_reassignment(image, topic, partition, tuple(wanted.replicas), policy, targets)


def list_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> Work[Decision[MetadataRecord, ListPartitionReassignmentsResponse]]:
    """ListPartitionReassignments (46): current reassignments of the given partitions, or of all (null)."""
    topics = []
    if request.topics is None:
        running: dict[bytes, list[PartitionImage]] = {}
        for topic_id, index in image.topics.index.moving:
            running.setdefault(topic_id, []).append(image.topics.by_id[topic_id].partitions[index])
            yield LOOK_COST
        found = [(image.topics.by_id[topic_id], partitions) for topic_id, partitions in running.items()]
    else:
        found = []
        for asked in request.topics:
            yield LOOK_COST * (1 + len(asked.partition_indexes))
            topic = image.topics.get(asked.name)
            if topic is not None:
                indexes = dict.fromkeys(asked.partition_indexes)
                found.append((topic, [topic.partitions[index] for index in indexes if index in topic.partitions]))
    for topic, partitions in found:
        topics.append(_ongoing(topic, partitions))
        yield CHANGE_COST * len(partitions)
    reply = ListPartitionReassignmentsResponse(
        error_code=0, error_message=None, topics=[topic for topic in topics if topic.partitions]
    )
    return Decision(reply)


def _ongoing(topic: TopicImage, partitions: list[PartitionImage]) -> _Ongoing:
    return _Ongoing(
        name=topic.name,
        partitions=[
            _OngoingPartition(
                partition_index=partition.partition,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding),
                removing_replicas=list(partition.removing),
            )
            for partition in partitions
            if partition.is_reassigning
        ],
    )
