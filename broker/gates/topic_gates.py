"""Gates of APIs about topics: Metadata, CreateTopics, DeleteTopics, CreatePartitions, DescribeTopicPartitions.

As in Kafka, the response for a topic that the client may not describe is the same whether or not the topic exists, and
lists of all topics omit it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from broker.gates.gating import (
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    MESSAGES,
    NO_TOPIC,
    TOPIC,
    split,
    then,
)
from broker.requests.context import Handler, RequestContext
from broker.security.authorizer import CLUSTER_OPERATIONS, RIGHT_COST, Access
from common.errors import ErrorCode
from common.pacing import Work
from kraft.image.metadata import MetadataImage
from wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    changed,
    raw_uuid,
)

IDS_FROM = 6  # DeleteTopics
UNKNOWN_COUNT = -1
_ABSENT = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

_Created = CreateTopicsResponse.CreatableTopicResult
_Deleted = DeleteTopicsResponse.DeletableTopicResult
_Described = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic


def partitions_not_created(topic: CreatePartitionsRequest.CreatePartitionsTopic) -> Any:
    return CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=topic.name, error_code=NO_TOPIC, error_message=MESSAGES[NO_TOPIC]
    )


def create_topics(context: RequestContext, access: Access, request: CreateTopicsRequest, handler: Handler) -> Any:
    allowed, refused = request.topics, list[CreateTopicsRequest.CreatableTopic]()
    if not access.may_cluster(CREATE):
        allowed, refused = split(request.topics, access, CREATE, TOPIC, lambda topic: topic.name)

    def visible(created: _Created) -> _Created:
        if created.error_code or access.may(DESCRIBE_CONFIGS, TOPIC, created.name):
            return created
        return changed(
            created,
            topic_config_error_code=NO_TOPIC,
            num_partitions=UNKNOWN_COUNT,
            replication_factor=UNKNOWN_COUNT,
            configs=None if context.api_version >= 5 else [],
        )

    def complete(response: CreateTopicsResponse) -> CreateTopicsResponse:
        unmade = [
            _Created(name=topic.name, error_code=NO_TOPIC, error_message="Authorization failed.", configs=[])
            for topic in refused
        ]
        return changed(response, topics=[visible(created) for created in response.topics] + unmade)

    if refused and not allowed:
        return complete(CreateTopicsResponse(topics=[]))
    return then(handler(context, changed(request, topics=allowed) if refused else request), complete)


class TopicDeletion:
    """The gate of DeleteTopics, which may identify a topic only by its id: `image` gives its name."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def delete_topics(
        self, context: RequestContext, access: Access, request: DeleteTopicsRequest, handler: Handler
    ) -> Any:
        if access.may_cluster(DELETE):
            return handler(context, request)
        answers: list[DeleteTopicsResponse.DeletableTopicResult] = []
        if context.api_version < IDS_FROM:
            names = [name for name in request.topic_names if self._may_delete(access, name, None, answers)]
            request, is_left = changed(request, topic_names=names), bool(names)
        else:
            topics = [one for one in request.topics if self._may_delete(access, one.name, one.topic_id, answers)]
            request, is_left = changed(request, topics=topics), bool(topics)
        if answers and not is_left:
            return DeleteTopicsResponse(responses=answers)

        def complete(response: DeleteTopicsResponse) -> DeleteTopicsResponse:
            response.responses.extend(answers)
            return response

        return then(handler(context, request), complete)

    def _may_delete(
        self,
        access: Access,
        name: str | None,
        topic_id: UUID | None,
        answers: list[DeleteTopicsResponse.DeletableTopicResult],
    ) -> bool:
        """Whether the topic may be deleted; if not, its response row is added to `answers`. Without the right to
        describe it, a row for an id has no name, and a row for a name does not show whether the topic exists."""
        topics = self._image().topics
        if name is None:
            found = topics.get_by_id(raw_uuid(topic_id))
            if found is None or access.may(DELETE, TOPIC, found.name):
                return True
            answers.append(_undeleted(found.name if access.may(DESCRIBE, TOPIC, found.name) else None, topic_id))
            return False
        if not access.may(DESCRIBE, TOPIC, name):
            answers.append(_undeleted(name, None))
            return False
        if access.may(DELETE, TOPIC, name):
            return True
        answers.append(_undeleted(name, None, NO_TOPIC if name in topics else _ABSENT))
        return False


def describe_topic_partitions(
    context: RequestContext, access: Access, request: DescribeTopicPartitionsRequest, handler: Handler
) -> Work[DescribeTopicPartitionsResponse]:  # fmt: skip
    """Checks the topics that the request names. If it asks for all topics, the handler checks them."""
    answers: list[_Described] = []
    if request.topics:
        first = request.cursor.topic_name if request.cursor is not None else ""
        allowed: dict[str, DescribeTopicPartitionsRequest.TopicRequest] = {}
        others: dict[str, None] = {}
        for topic in request.topics:
            name = topic.name
            if name >= first and name not in others:
                if access.may(DESCRIBE, TOPIC, name):
                    allowed[name] = topic
                else:
                    others[name] = None
                    answers.append(_undescribed(name))
            yield RIGHT_COST
        request = changed(request, topics=list(allowed.values()))
        if not allowed:
            return DescribeTopicPartitionsResponse(topics=answers, next_cursor=None)
    described: Any = handler(context, request)
    response: DescribeTopicPartitionsResponse = yield from described
    response.topics.extend(answers)
    return response


def metadata(context: RequestContext, access: Access, request: MetadataRequest, handler: Handler) -> Any:
    """The handler itself checks which topics the client may describe."""

    def complete(answer: Any) -> Any:
        if request.include_cluster_authorized_operations:
            return replace(answer, message=changed(answer.message, authorized_operations=cluster_operations(access)))
        return answer

    return then(handler(context, request), complete)


def cluster_operations(access: Access) -> tuple[int, ...]:
    """For Metadata and DescribeCluster; empty for a client that may not describe the cluster."""
    if not access.may_cluster(DESCRIBE):
        return ()
    return tuple(operation for operation in CLUSTER_OPERATIONS if access.may_cluster(operation))


def _undeleted(name: str | None, topic_id: UUID | None, code: ErrorCode = NO_TOPIC) -> _Deleted:
    message = MESSAGES.get(code, "This server does not host this topic-partition.")
    return _Deleted(name=name, topic_id=topic_id, error_code=code, error_message=message)


def _undescribed(name: str) -> _Described:
    return _Described(error_code=NO_TOPIC, name=name, topic_id=None, partitions=[])
