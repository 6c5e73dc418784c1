"""Creation and deletion of topics, and new partitions for them. No I/O.

Topic ids and placement use the given random generator; the results are in the records.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.identifiers import ZERO_UUID, random_uuid
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.configs import check_together, check_topic_configs
from kraft.controller.key_ranges import first_ranges, founding_cell, keyed_topics
from kraft.controller.mutation_quotas import UNBOUNDED, MutationQuota
from kraft.controller.new_partitions import partition_records
from kraft.controller.placement import ReplicaPlacer
from kraft.controller.policy import ControllerPolicy
from kraft.controller.tenant_topics import Home, TenantTopics, check_owner
from kraft.controller.tier_configs import check_generation, check_tier, default_tier_overrides
from kraft.controller.topic_configs import described_topic_configs
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.image.topics import TopicImage
from kraft.records import METADATA_TOPIC, Cause, ConfigRecord, RemoveTopicRecord, ResourceType, TopicRecord
from kraft.topic_names import (
    AUDIT_TOPIC,
    INTERNAL_TOPICS,
    TIER_TOPIC,
    check_topic_name,
    colliding_name,
)
from wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    RestoreTopicRequest,
    raw_uuid,
    schema_uuid,
)

DESCRIBED_TOPICS_MAX = 100
"""Replies to larger requests have no settings: thirty per topic would block the controller for seconds."""

TOPIC_COST, PARTITION_COST, PLACE_COST, DESCRIPTION_COST = 60, 4, 10, 150
"""Units of `common.pacing`: per created topic, per partition, per placed partition, per topic's settings in a reply."""
ASSIGNMENT_COST, DELETION_COST = 4, 10  # per given assignment, besides its replicas; per deleted topic
AT_A_TIME = 50  # partitions

_TopicResult = CreateTopicsResponse.CreatableTopicResult
_Wanted = CreateTopicsRequest.CreatableTopic
_WantedConfig = _Wanted.CreatableTopicConfig | RestoreTopicRequest.RestoredTopicConfig
_DeleteResult = DeleteTopicsResponse.DeletableTopicResult
_PartitionsResult = CreatePartitionsResponse.CreatePartitionsTopicResult


def create_topics(
    image: MetadataImage,
    request: CreateTopicsRequest,
    policy: ControllerPolicy,
    rng: random.Random,
    mutations: MutationQuota = UNBOUNDED,
) -> Work[Decision[MetadataRecord, CreateTopicsResponse]]:
    """CreateTopics (19): each topic succeeds or fails on its own, unless the request as a whole asks for too much."""
    total = _partition_total(request.topics, policy)
    if total > policy.partitions_per_request_max:
        message = f"{total} partitions are too many for one request."
        refused = [_failed_topic(topic.name, ErrorCode.POLICY_VIOLATION, message) for topic in request.topics]
        return Decision(CreateTopicsResponse(topics=refused))
    repeated = _repeated([topic.name for topic in request.topics])
    records: list[MetadataRecord] = []
    results = [_failed_topic(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.") for name in repeated]
    creation = _Creation(image, policy, rng, len(request.topics) <= DESCRIBED_TOPICS_MAX, mutations)
    for topic in request.topics:
        if topic.name in repeated:
            continue
        yield TOPIC_COST
        try:
            topic_records, result = yield from creation.create(topic)
        except ProtocolError as error:
            results.append(_failed_topic(topic.name, error.code, error.message))
            continue
        records += topic_records
        results.append(result)
    return Decision(CreateTopicsResponse(topics=results), [] if request.validate_only else records)


def delete_topics(
    image: MetadataImage, request: DeleteTopicsRequest, policy: ControllerPolicy, mutations: MutationQuota = UNBOUNDED
) -> Work[Decision[MetadataRecord, DeleteTopicsResponse]]:
    """DeleteTopics (20), by name or by id; versions 1 to 5 have `topic_names`."""
    wanted = chain(
        ((state.name, raw_uuid(state.topic_id)) for state in request.topics or ()),
        ((name, ZERO_UUID) for name in request.topic_names or ()),
    )
    records: list[MetadataRecord] = []
    results, taken = [], dict[bytes, None]()
    for name, topic_id in wanted:
        yield DELETION_COST
        try:
            topic = _topic_to_delete(image, name, topic_id, policy)
            if topic.topic_id in taken:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "The topic is given twice.")
            taken[topic.topic_id] = None
            mutations.take(topic.topic_id, len(topic.partitions))
            records.append(RemoveTopicRecord(topic.topic_id, topic.name))
            results.append(_DeleteResult(name=topic.name, topic_id=schema_uuid(topic.topic_id), error_code=0))
        except ProtocolError as error:
            results.append(
                _DeleteResult(
                    name=name,
                    topic_id=schema_uuid(topic_id),
                    error_code=int(error.code),
                    error_message=error.message,
                )
            )
    return Decision(DeleteTopicsResponse(responses=results), records)


def create_partitions(
    image: MetadataImage,
    request: CreatePartitionsRequest,
    policy: ControllerPolicy,
    rng: random.Random,
    mutations: MutationQuota = UNBOUNDED,
) -> Work[Decision[MetadataRecord, CreatePartitionsResponse]]:
    """CreatePartitions (37): `count` is the new total."""
    repeated = _repeated([topic.name for topic in request.topics])
    records: list[MetadataRecord] = []
    results = []
    tenants = TenantTopics(image, policy, rng)
    for topic in request.topics:
        yield TOPIC_COST
        try:
            if topic.name in repeated:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            records += yield from _added_partitions(image, topic, policy, tenants, mutations)
            results.append(_PartitionsResult(name=topic.name, error_code=0))
        except ProtocolError as error:
            results.append(_PartitionsResult(name=topic.name, error_code=int(error.code), error_message=error.message))
    return Decision(CreatePartitionsResponse(results=results), [] if request.validate_only else records)


class _Creation:
    """Shared state of the topics of one CreateTopics request."""

    def __init__(
        self,
        image: MetadataImage,
        policy: ControllerPolicy,
        rng: random.Random,
        describes: bool,
        mutations: MutationQuota,
    ) -> None:
        self._mutations = mutations
        self._image = image
        self._policy = policy
        self._random = rng
        self._describes = describes
        self._tenants = TenantTopics(image, policy, rng)
        self._names: dict[str, None] = {}

    def create(self, topic: _Wanted) -> Work[tuple[list[MetadataRecord], _TopicResult]]:
        """Records and result of one topic. Raises ProtocolError."""
        image, name = self._image, topic.name
        tenant = yield from check_new_name(image, name, self._names)
        overrides = topic_overrides(topic.configs or ())
        check_generation(overrides)
        overrides |= default_tier_overrides(image, self._policy, name, overrides)
        check_together(image, self._policy, {}, overrides)
        check_tier(image, self._policy, name, {}, overrides)
        if topic.assignments:
            assignments = yield from _manual(image, topic)
            yield from self._tenants.check_partitions(tenant, len(assignments))
        else:
            assignments = yield from self._automatic(topic, tenant)
        self._mutations.take(name, len(assignments))
        self._tenants.take(tenant, assignments)
        topic_id = random_uuid(self._random)
        while topic_id in image.topics.by_id:
            topic_id = random_uuid(self._random)
        records: list[MetadataRecord] = [TopicRecord(name, topic_id)]
        records += [ConfigRecord(ResourceType.TOPIC, name, key, value) for key, value in overrides.items()]
        records += yield from new_partitions(image, topic_id, 0, assignments, Cause.TOPIC_CREATED)
        if name in keyed_topics(image):
            made = replayed(image, records).topics.by_id[topic_id]
            records += first_ranges(image, made, self._policy, self._random)
        self._names[name] = None
        yield DESCRIPTION_COST if self._describes else 0
        result = _TopicResult(
            name=name,
            topic_id=schema_uuid(topic_id),
            error_code=0,
            error_message=None,
            num_partitions=len(assignments),
            replication_factor=len(assignments[0]),
            configs=described_topic_configs(image, overrides, self._policy) if self._describes else [],
        )
        return records, result

    def _automatic(self, topic: _Wanted, tenant: TenantImage | None) -> Work[list[tuple[int, ...]]]:
        count, factor = topic.num_partitions, topic.replication_factor
        if count == 0 or count < -1:
            raise ProtocolError(ErrorCode.INVALID_PARTITIONS, "The number of partitions must be larger than 0, or -1.")
        if factor == 0 or factor < -1:
            raise ProtocolError(
                ErrorCode.INVALID_REPLICATION_FACTOR, "The replication factor must be larger than 0, or -1."
            )
        count = self._policy.num_partitions if count == -1 else count
        yield from self._tenants.check_partitions(tenant, count)
        factor = self._policy.default_replication_factor if factor == -1 else factor
        founding = founding_cell(self._image, self._policy, factor) if topic.name in keyed_topics(self._image) else None
        if founding is not None:
            cell, factor = founding
            return (yield from placed(self._tenants.cell_placer(cell), count, factor))
        return (yield from placed(self._tenants.placer(tenant), count, factor))


def placed(placer: ReplicaPlacer, count: int, factor: int) -> Work[list[tuple[int, ...]]]:
    """The replicas of new partitions."""
    assignments: list[tuple[int, ...]] = []
    while len(assignments) < count:
        some = min(AT_A_TIME, count - len(assignments))
        assignments += placer.place(some, factor)
        yield some * PLACE_COST
    return assignments


def new_partitions(
    image: MetadataImage,
    topic_id: bytes,
    first: int,
    assignments: list[tuple[int, ...]],
    cause: Cause,
    leader_epochs: Sequence[int] = (),
) -> Work[list[MetadataRecord]]:
    """As `partition_records`, as work."""
    records: list[MetadataRecord] = []
    for at in range(0, len(assignments), AT_A_TIME):
        some, epochs = assignments[at : at + AT_A_TIME], leader_epochs[at : at + AT_A_TIME]
        records += partition_records(image, topic_id, first + at, some, cause, epochs)
        yield len(some) * PARTITION_COST
    return records


def check_new_name(image: MetadataImage, name: str, others: Mapping[str, None]) -> Work[TenantImage | None]:
    """The tenant that would own the topic, None for an operator's. Raises ProtocolError unless a topic of that name may
    be created; `others` are created in the same commit."""
    check_topic_name(name)
    tenant = check_owner(image, name)
    if name == METADATA_TOPIC:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{METADATA_TOPIC} belongs to the controllers.")
    by_name = image.topics.by_name
    if name in by_name:
        raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = yield from colliding_name(name, lambda n: n in by_name or n in others, lambda: chain(by_name, others))
    if other is not None:
        raise ProtocolError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with the existing topic '{other}'."
        )
    return tenant


def topic_overrides(configs: Iterable[_WantedConfig]) -> dict[str, str | None]:
    overrides: dict[str, str | None] = {}
    for config in configs:
        if config.name in overrides:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"{config.name} is given twice.")
        overrides[config.name] = config.value
    check_topic_configs(overrides)
    return overrides


def _manual(image: MetadataImage, topic: _Wanted) -> Work[list[tuple[int, ...]]]:
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST, "With replica assignments, partitions and replication factor must be -1."
        )
    by_index: dict[int, tuple[int, ...]] = {}
    for number, assignment in enumerate(topic.assignments):
        if number % AT_A_TIME == 0:
            yield AT_A_TIME
        if assignment.partition_index in by_index:
            raise ProtocolError(
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT, f"Partition {assignment.partition_index} is assigned twice."
            )
        by_index[assignment.partition_index] = tuple(assignment.broker_ids)
    if any(index not in by_index for index in range(len(by_index))):
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT, "Partitions must be numbered from 0 without a gap."
        )
    assignments = [by_index[index] for index in range(len(by_index))]
    yield from _checked_assignments(image, topic.name, assignments, len(assignments[0]))
    return assignments


def _checked_assignments(
    image: MetadataImage, name: str, assignments: list[tuple[int, ...]], replication_factor: int
) -> Work[None]:
    """Raises INVALID_REPLICATION_ASSIGNMENT unless all of them are valid for partitions of the topic `name`."""
    home = Home(image, name)
    for at in range(0, len(assignments), AT_A_TIME):
        cost = 0
        for replicas in assignments[at : at + AT_A_TIME]:
            check_assignment(image, replicas, replication_factor)
            home.check(replicas)
            cost += ASSIGNMENT_COST + len(replicas)
        yield cost


def check_assignment(image: MetadataImage, replicas: tuple[int, ...], replication_factor: int) -> None:
    """Raises INVALID_REPLICATION_ASSIGNMENT unless these brokers exist, once each, in the right number."""
    reason = None
    unknown = next((replica for replica in replicas if replica not in image.brokers), None)
    if not replicas:
        reason = "An assignment without a replica."
    elif len(set(replicas)) != len(replicas):
        reason = f"The assignment {list(replicas)} names a broker twice."
    elif unknown is not None:
        reason = f"The assignment {list(replicas)} names broker {unknown}, which is not registered."
    elif len(replicas) != replication_factor:
        reason = f"The assignment {list(replicas)} has not the replication factor {replication_factor} of the others."
    if reason is not None:
        raise ProtocolError(ErrorCode.INVALID_REPLICATION_ASSIGNMENT, reason)


def _added_partitions(
    image: MetadataImage,
    wanted: CreatePartitionsRequest.CreatePartitionsTopic,
    policy: ControllerPolicy,
    tenants: TenantTopics,
    mutations: MutationQuota,
) -> Work[list[MetadataRecord]]:
    topic = image.topics.get(wanted.name)
    if topic is None:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{wanted.name}' does not exist.")
    # keys are hashed over the number of partitions: existing ones would not be found
    if wanted.name in INTERNAL_TOPICS:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"The partitions of {wanted.name} keep their number.")
    present = len(topic.partitions)
    added = wanted.count - present
    if added <= 0:
        raise ProtocolError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic '{wanted.name}' has {present} partitions; {wanted.count} would not be an increase.",
        )
    if added > policy.partitions_per_request_max:
        raise ProtocolError(ErrorCode.INVALID_PARTITIONS, f"{added} partitions are too many for one request.")
    tenant = image.tenants.owner(wanted.name)
    yield from tenants.check_partitions(tenant, added)
    factor = topic.partitions[0].settled_replica_count
    if wanted.assignments is not None:
        assignments = [tuple(assignment.broker_ids) for assignment in wanted.assignments]
        if len(assignments) != added:
            raise ProtocolError(
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
                f"{added} partitions are to be added, but {len(assignments)} are assigned.",
            )
        yield from _checked_assignments(image, wanted.name, assignments, factor)
    else:
        assignments = yield from placed(tenants.placer(tenant), added, factor)
    mutations.take(wanted.name, added)
    tenants.take(tenant, assignments)
    return (yield from new_partitions(image, topic.topic_id, present, assignments, Cause.PARTITIONS_ADDED))


def _topic_to_delete(image: MetadataImage, name: str | None, topic_id: bytes, policy: ControllerPolicy) -> TopicImage:
    topic = _existing_topic(image, name, topic_id, policy)
    if topic.name == AUDIT_TOPIC:
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, "The audit cannot be deleted.")
    if topic.name == TIER_TOPIC:
        text = f"{topic.name} cannot be deleted: without it the cluster finds nothing of what it has in the tier."
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, text)
    return topic


def _existing_topic(image: MetadataImage, name: str | None, topic_id: bytes, policy: ControllerPolicy) -> TopicImage:
    if not policy.delete_topic_enable:
        raise ProtocolError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false.")
    if (name is None) == (topic_id == ZERO_UUID):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "A topic is given by its name or its id, and by one of them.")
    if name is not None:
        topic = image.topics.get(name)
        if topic is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return topic
    topic = image.topics.get_by_id(topic_id)
    if topic is None:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID, "There is no topic with that id.")
    return topic


def _partition_total(topics: list[_Wanted], policy: ControllerPolicy) -> int:
    total = 0
    for topic in topics:
        count = len(topic.assignments) if topic.assignments else topic.num_partitions
        total += max(policy.num_partitions if count == -1 else count, 0)
    return total


def _repeated(names: list[str]) -> dict[str, None]:
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    return {name: None for name, count in seen.items() if count > 1}


def _failed_topic(name: str, code: ErrorCode, message: str) -> _TopicResult:
    return _TopicResult(name=name, topic_id=None, error_code=int(code), error_message=message, configs=[])
