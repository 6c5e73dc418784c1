"""Topics: DeleteTopics 1-6 and DescribeTopicPartitions 0.

Behaviour: the controller decides deletions. DescribeTopicPartitions answers from the image in order of names, up to a
limit, with a cursor.
Versions: before 6 DeleteTopics has a list of names, from 6 on names or ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge

from broker.handlers.client_view import ClientView
from broker.requests.context import RequestContext
from broker.requests.forwarding import Forwarder
from broker.security.authorizer import RIGHT_COST, TOPIC_OPERATIONS, Access, as_bits
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.partitions import PartitionImage
from kraft.records import AclOperation, AclResource
from kraft.topic_names import INTERNAL_TOPICS, check_topic_name
from wire.messages import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    changed,
    schema_uuid,
)

IDS_FROM, STRICT_FROM = 6, 5  # DeleteTopics; the second: clients know THROTTLING_QUOTA_EXCEEDED
PARTITIONS_PER_REPLY_MAX = 2_000
NAMES_PER_RUN, NAME_COST, ROW_COST = 500, 1, 8  # names per run; units of `common.pacing`
DESCRIBE, TOPIC = int(AclOperation.DESCRIBE), int(AclResource.TOPIC)
UNTOLD = -(1 << 31)  # "operations not requested"

_Described = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_DescribedPartition = _Described.DescribeTopicPartitionsResponsePartition
_DeleteState = DeleteTopicsRequest.DeleteTopicState


class TopicHandlers:
    """One method per API."""

    def __init__(self, forwarder: Forwarder, node_id: int) -> None:
        self._forwarder = forwarder
        self._node_id = node_id

    async def delete_topics(self, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        states = request.topics if context.api_version >= IDS_FROM else None
        if states is None:
            states = [_DeleteState(name=name, topic_id=None) for name in request.topic_names]
        newest = DeleteTopicsRequest(topics=states, timeout_ms=request.timeout_ms)
        if context.api_version < STRICT_FROM:  # it travels in a version that has names (`Forwarder.forward`)
            newest = changed(newest, topic_names=request.topic_names)
        return await self._forwarder.serve(context, newest)

    # DescribeTopicPartitions -------------------------------------------------------------------------------

    def describe_topic_partitions(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> Work[DescribeTopicPartitionsResponse]:
        """No topics means all. A topic that was deleted under the cursor is skipped.

        If all topics are requested, those that the client may not describe are skipped too; for named topics the gate
        does that.
        """
        tenant, access = context.tenant, context.session.access
        view = ClientView(self._forwarder.image, context.listener, self._node_id, tenant=tenant)
        topics = view.image.topics
        asked: dict[str, None] = {}
        for requested in request.topics:
            asked[requested.name] = None
            yield NAME_COST
        first_name, first_partition = "", 0
        if request.cursor is not None:
            first_name, first_partition = request.cursor.topic_name, max(request.cursor.partition_index, 0)
        known: Iterable[str] = topics.ids if tenant is None else topics.names_by_tenant.get(tenant, {})
        names = yield from _from(asked or known, first_name)
        left = max(1, min(request.response_partition_limit, PARTITIONS_PER_REPLY_MAX))
        described: list[_Described] = []
        cursor = None
        for name in names:
            yield ROW_COST if access is None else ROW_COST + RIGHT_COST
            topic = topics.get(name)
            if topic is None:
                if name in asked:
                    described.append(_failure(name, access))
                continue
            if not asked and access is not None and not access.may(DESCRIBE, TOPIC, name):
                continue
            start = first_partition if name == first_name else 0
            partitions = [image for index, image in topic.partitions.items() if index >= start]
            if not left and partitions:
                cursor = _cursor(name, partitions[0].partition)
                break
            shown, rest = partitions[:left], partitions[left:]
            left -= len(shown)
            rows: list[_DescribedPartition] = []
            for image in shown:
                rows.append(_partition(view, image))
                yield ROW_COST
            described.append(
                _Described(
                    error_code=ErrorCode.NONE,
                    name=name,
                    topic_id=schema_uuid(topic.topic_id),
                    is_internal=name in INTERNAL_TOPICS,
                    partitions=rows,
                    topic_authorized_operations=_operations(access, name),
                )
            )
            if rest:
                cursor = _cursor(name, rest[0].partition)
                break
        return DescribeTopicPartitionsResponse(topics=described, next_cursor=cursor)


def _from(names: Iterable[str], first: str) -> Work[Iterator[str]]:
    """The names from `first` on, in order: sorted in runs, and merged lazily."""
    runs: list[list[str]] = [[]]
    for number, name in enumerate(names):
        if number % NAMES_PER_RUN == 0:
            yield NAMES_PER_RUN
        if name >= first:
            runs[-1].append(name)
            if len(runs[-1]) == NAMES_PER_RUN:
                runs[-1].sort()
                runs.append([])
    runs[-1].sort()
    return merge(*runs)


def _cursor(name: str, index: int) -> DescribeTopicPartitionsResponse.Cursor:
    return DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=index)


def _partition(view: ClientView, image: PartitionImage) -> _DescribedPartition:
    seen = view.partition(image)
    return _DescribedPartition(
        error_code=seen.error,
        partition_index=seen.partition,
        leader_id=seen.leader,
        leader_epoch=seen.leader_epoch,
        replica_nodes=seen.replicas,
        isr_nodes=seen.isr,
        eligible_leader_replicas=list(image.elr),
        last_known_elr=list(image.last_known_elr),
        offline_replicas=seen.offline,
    )


def _operations(access: Access | None, name: str) -> int:
    return as_bits(TOPIC_OPERATIONS if access is None else access.operations(TOPIC_OPERATIONS, TOPIC, name))


def _failure(name: str, access: Access | None) -> _Described:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except ProtocolError as error:
        code = error.code
    operations = UNTOLD if access is None else _operations(access, name)
    return _Described(error_code=code, name=name, topic_id=None, partitions=[], topic_authorized_operations=operations)
