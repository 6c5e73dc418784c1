"""ElectLeaders: elects the preferred replica, or any live replica if there is no leader. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from itertools import chain

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.elections import CHANGE_COST, LOOK_COST, Election, Targets, change_partition
from kraft.controller.policy import ControllerPolicy
from kraft.image.metadata import MetadataImage
from kraft.records import NO_LEADER, Cause, PartitionChangeRecord
from wire.messages import ElectLeadersRequest, ElectLeadersResponse

_Topic = ElectLeadersResponse.ReplicaElectionResult
_Partition = _Topic.PartitionResult


class ElectionType(IntEnum):
    """Kafka's numbers (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


def elect_leaders(
    image: MetadataImage, request: ElectLeadersRequest, policy: ControllerPolicy
) -> Work[Decision[MetadataRecord, ElectLeadersResponse]]:
    """ElectLeaders (43): each partition succeeds or fails on its own.

    Null partitions mean all, and those that need no election are left out of the reply. With an unclean election the
    operator accepts the loss of records; the metadata log records it as the cause.
    """
    try:
        kind = ElectionType(request.election_type)
    except ValueError:
        return Decision(ElectLeadersResponse(error_code=int(ErrorCode.INVALID_REQUEST), replica_election_results=[]))
    everywhere = request.topic_partitions is None
    asked: Iterable[tuple[str, Iterable[int]]]
    if request.topic_partitions is None:
        asked = yield from _concerned(image, kind)
    else:
        asked = [(topic.topic, dict.fromkeys(topic.partitions)) for topic in request.topic_partitions]
    targets = Targets(image, policy)
    records: list[MetadataRecord] = []
    topics = []
    for name, indexes in asked:
        results = []
        for index in indexes:
            yield LOOK_COST
            code, message = ErrorCode.NONE, None
            try:
                records.append(_election(image, name, index, kind, targets))
                yield CHANGE_COST
            except ProtocolError as error:
                code, message = error.code, error.message or None
            if not (everywhere and code is ErrorCode.ELECTION_NOT_NEEDED):
                results.append(_Partition(partition_id=index, error_code=int(code), error_message=message))
        if results or not everywhere:
            topics.append(_Topic(topic=name, partition_result=results))
    return Decision(ElectLeadersResponse(error_code=0, replica_election_results=topics), records)


def _concerned(image: MetadataImage, kind: ElectionType) -> Work[Iterable[tuple[str, list[int]]]]:
    """Every partition that an election of that kind could change, by topic."""
    index = image.topics.index
    found: dict[bytes, list[int]] = {}
    for topic_id, number in chain(index.leaderless, index.astray if kind is ElectionType.PREFERRED else ()):
        found.setdefault(topic_id, []).append(number)
        yield LOOK_COST
    return ((image.topics.by_id[topic_id].name, sorted(numbers)) for topic_id, numbers in found.items())


def _election(
    image: MetadataImage, name: str, index: int, kind: ElectionType, targets: Targets
) -> PartitionChangeRecord:
    topic = image.topics.get(name)
    partition = topic.partitions.get(index) if topic is not None else None
    if topic is None or partition is None:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{index}.")
    preferred = kind is ElectionType.PREFERRED
    if partition.leader == partition.preferred_leader if preferred else partition.has_leader:
        raise ProtocolError(ErrorCode.ELECTION_NOT_NEEDED)
    cause = Cause.PREFERRED_LEADER if preferred else Cause.REQUESTED_ELECTION
    target = targets.of(topic, cause, election=Election.PREFERRED if preferred else Election.UNCLEAN)
    record = change_partition(partition, target)
    if record is None or record.leader is None or record.leader == NO_LEADER:
        if preferred:
            who = f"Broker {partition.preferred_leader}, the preferred leader,"
            message = f"{who} is not in sync, not alive, not healthy or without room."
            raise ProtocolError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
        raise ProtocolError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica is alive.")
    return record
