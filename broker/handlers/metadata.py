"""Metadata 0-13: brokers, topics and who leads their partitions, as the asking listener's clients are to see them.

Behaviour: the controller id is that of a live broker. A topic that is asked for by name and unknown is created where
`auto.create.topics.enable` and the request allow it, and answered once it is there; while another request creates it
the answer is LEADER_NOT_AVAILABLE.
Versions: 0 asks for all topics with an empty list, later ones with null; before 4 creation is always allowed; from 12
on topics may be asked for by id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from broker.coordination.internal_topics import InternalTopics
from broker.forwarding import Forwarder
from broker.handlers.authorized_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from broker.handlers.client_view import LISTENER_NOT_FOUND_FROM, ClientView
from broker.request import RequestContext
from common.errors import ErrorCode, ProtocolError, known_error
from kraft.controller.topic_names import INTERNAL_TOPICS, check_topic_name
from kraft.image.topics import TopicImage
from wire.messages import CreateTopicsRequest, MetadataResponse, raw_uuid, schema_uuid

AUTO_CREATION_ASKED_FROM = 4
BY_ID_FROM = 12
CREATE_TOPICS_VERSION = 7
CREATE_TIMEOUT_MS = 5_000
CREATING_MAX = 1_000
PARTITIONS_PER_TURN = 500

_Topic = MetadataResponse.MetadataResponseTopic
_Partition = _Topic.MetadataResponsePartition
_Creatable = CreateTopicsRequest.CreatableTopic


@dataclass(frozen=True, slots=True)
class MetadataConfig:
    """Kafka's settings node.id and auto.create.topics.enable; sizes of created topics are the controller's."""

    node_id: int
    auto_create_topics_enable: bool = True


class MetadataHandler:
    """Answers from the local image."""

    def __init__(
        self,
        forwarder: Forwarder,
        internal_topics: InternalTopics,
        config: MetadataConfig,
        is_doubted: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._forwarder = forwarder
        self._internal_topics = internal_topics
        self._config = config
        self._is_doubted = is_doubted
        self._creating: dict[str, None] = {}

    async def metadata(self, context: RequestContext, request: Any) -> Any:
        version = context.api_version
        wants_all = request.topics is None or (version == 0 and not request.topics)
        if wants_all:
            view = self._view(context)
            known = view.image.topics if context.tenant is None else view.image.topics.of_tenant(context.tenant)
            topics = await _in_turns(self._known(view, topic, request, version) for topic in known)
        else:
            failed = await self._create_missing(context, request)
            view = self._view(context)
            topics = await _in_turns(self._asked(view, asked, request, version, failed) for asked in request.topics)
        cluster_operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else None
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(
                    node_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack
                )
                for broker in view.brokers()
            ],
            cluster_id=view.image.cluster_id,
            controller_id=view.controller_id,
            topics=topics,
            authorized_operations=cluster_operations,
            error_code=ErrorCode.NONE,
        )

    def _view(self, context: RequestContext) -> ClientView:
        return ClientView(
            self._forwarder.image, context.listener, self._config.node_id, self._is_doubted, context.tenant
        )

    # topics ------------------------------------------------------------------------------------------------

    def _asked(self, view: ClientView, asked: Any, request: Any, version: int, failed: dict[str, ErrorCode]) -> Any:
        topics = view.image.topics
        if asked.topic_id is not None and asked.topic_id.int:
            if version < BY_ID_FROM:
                return _failure(asked.name or "", asked.topic_id, ErrorCode.INVALID_REQUEST)
            topic = topics.get_by_id(raw_uuid(asked.topic_id))
            if topic is None:
                return _failure(None, asked.topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        elif asked.name is None:
            return _failure("" if version < BY_ID_FROM else None, None, ErrorCode.INVALID_REQUEST)
        else:
            topic = topics.get(asked.name)
            if topic is None:
                code = failed.get(asked.name) or _missing(asked.name)
                return _failure(asked.name, None, code)
        return self._known(view, topic, request, version)

    def _known(self, view: ClientView, topic: TopicImage, request: Any, version: int) -> Any:
        listener_not_found = version >= LISTENER_NOT_FOUND_FROM
        partitions = []
        for image in topic.partitions.values():
            seen = view.partition(image, listener_not_found=listener_not_found)
            partitions.append(
                _Partition(
                    error_code=seen.error,
                    partition_index=seen.partition,
                    leader_id=seen.leader,
                    leader_epoch=seen.leader_epoch,
                    replica_nodes=seen.replicas,
                    isr_nodes=seen.isr,
                    offline_replicas=seen.offline,
                )
            )
        return _Topic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=schema_uuid(topic.topic_id),
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=partitions,
            authorized_operations=TOPIC_OPERATIONS if request.include_topic_authorized_operations else None,
        )

    # creation ----------------------------------------------------------------------------------------------

    async def _create_missing(self, context: RequestContext, request: Any) -> dict[str, ErrorCode]:
        """Create the unknown topics of the request where that is allowed; codes of those that are not there after."""
        allowed = request.allow_auto_topic_creation or context.api_version < AUTO_CREATION_ASKED_FROM
        if not allowed or not self._config.auto_create_topics_enable:
            return {}
        known = self._forwarder.image.topics
        failed: dict[str, ErrorCode] = {}
        missing: list[str] = []
        for name in dict.fromkeys(asked.name for asked in request.topics if asked.name):
            if name in known or _missing(name) is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if name in self._internal_topics:
                failed.update(await self._create_internal(name))
            elif name in self._creating or len(self._creating) + len(missing) >= CREATING_MAX:
                failed[name] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                missing.append(name)
        if missing:
            failed.update(await self._create(context, missing))
        return failed

    async def _create_internal(self, name: str) -> dict[str, ErrorCode]:
        try:
            await self._internal_topics.ensure(name)
        except ProtocolError:
            return {name: ErrorCode.LEADER_NOT_AVAILABLE}
        return {}

    async def _create(self, context: RequestContext, names: list[str]) -> dict[str, ErrorCode]:
        self._creating.update(dict.fromkeys(names))
        creatable = [
            _Creatable(name=name, num_partitions=-1, replication_factor=-1, assignments=[], configs=[])
            for name in names
        ]  # fmt: skip
        create = CreateTopicsRequest(topics=creatable, timeout_ms=CREATE_TIMEOUT_MS, validate_only=False)
        try:
            response = await self._forwarder.forward(context, create, CREATE_TOPICS_VERSION, CREATE_TIMEOUT_MS)
        except ProtocolError:
            return dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)
        finally:
            for name in names:
                del self._creating[name]
        failed = {}
        for result in response.topics:
            code = known_error(result.error_code)
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                code = ErrorCode.LEADER_NOT_AVAILABLE  # it is there, though perhaps not yet in this broker's image
            failed[result.name] = code
        return failed


async def _in_turns(answers: Iterable[Any]) -> list[Any]:
    """The answers for topics, made in turns of the loop, so that nobody waits for a client with many."""
    made, partitions = [], 0
    for answer in answers:
        made.append(answer)
        partitions += len(answer.partitions)
        if partitions >= PARTITIONS_PER_TURN:
            partitions = 0
            await asyncio.sleep(0)
    return made


def _missing(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except ProtocolError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _failure(name: str | None, topic_id: Any, code: ErrorCode) -> Any:
    is_internal = name in INTERNAL_TOPICS
    return _Topic(error_code=code, name=name, topic_id=topic_id, is_internal=is_internal, partitions=[])
