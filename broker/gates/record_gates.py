"""Gates of ListOffsets, DeleteRecords, InitProducerId, OffsetForLeaderEpoch and DescribeProducers.

Produce and Fetch check rights in their handlers, with one look-up per topic of a request.
"""

from __future__ import annotations

from typing import Any

from broker.gates.gating import (
    CLUSTER_ACTION,
    DESCRIBE,
    IDEMPOTENT_WRITE,
    MESSAGES,
    NO_CLUSTER,
    NO_TOPIC,
    NO_TRANSACTION,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    by_topic,
)
from broker.requests.context import Handler, RequestContext
from broker.security.authorizer import Access
from wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

_Listed = ListOffsetsResponse.ListOffsetsTopicResponse
_Deleted = DeleteRecordsResponse.DeleteRecordsTopicResult
_Epochs = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_Producers = DescribeProducersResponse.TopicResponse


def offset_for_leader_epoch(
    context: RequestContext, access: Access, request: OffsetForLeaderEpochRequest, handler: Handler
) -> Any:
    """Replicas send this request too, and need CLUSTER_ACTION instead."""
    if access.may_cluster(CLUSTER_ACTION):
        return handler(context, request)
    return _epochs_of_described(context, access, request, handler)


def init_producer_id(context: RequestContext, access: Access, request: InitProducerIdRequest, handler: Handler) -> Any:
    """A client that may write to any topic may have a producer id (KIP-679)."""
    code = None
    if request.transactional_id is not None:
        if not access.may(WRITE, TRANSACTIONAL_ID, request.transactional_id):
            code = NO_TRANSACTION
    elif not access.may_cluster(IDEMPOTENT_WRITE) and not access.may_any(WRITE, TOPIC):
        code = NO_CLUSTER
    if code is None:
        return handler(context, request)
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def unlisted(topic: ListOffsetsRequest.ListOffsetsTopic) -> _Listed:
    partition = _Listed.ListOffsetsPartitionResponse
    return _Listed(
        name=topic.name,
        partitions=[
            partition(
                partition_index=one.partition_index, error_code=NO_TOPIC, timestamp=-1, offset=-1, leader_epoch=-1
            )
            for one in topic.partitions
        ],
    )


def undeleted(topic: DeleteRecordsRequest.DeleteRecordsTopic) -> _Deleted:
    partition = _Deleted.DeleteRecordsPartitionResult
    return _Deleted(
        name=topic.name,
        partitions=[
            partition(partition_index=one.partition_index, low_watermark=-1, error_code=NO_TOPIC)
            for one in topic.partitions
        ],
    )


def _no_epochs(topic: OffsetForLeaderEpochRequest.OffsetForLeaderTopic) -> _Epochs:
    return _Epochs(
        topic=topic.topic,
        partitions=[
            _Epochs.EpochEndOffset(error_code=NO_TOPIC, partition=one.partition, leader_epoch=-1, end_offset=-1)
            for one in topic.partitions
        ],
    )


def no_producers(topic: DescribeProducersRequest.TopicRequest) -> _Producers:
    partition = _Producers.PartitionResponse
    return _Producers(
        name=topic.name,
        partitions=[
            partition(partition_index=index, error_code=NO_TOPIC, error_message=MESSAGES[NO_TOPIC], active_producers=[])
            for index in topic.partition_indexes
        ],
    )


_epochs_of_described = by_topic(DESCRIBE, _no_epochs, name="topic")
