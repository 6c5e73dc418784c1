"""Gates of APIs about transactions. A transaction that the client may not describe is treated as not listed.

One difference from Apache Kafka: where a client may not write to some topics of AddPartitionsToTxn, its other ones get
OPERATION_NOT_ATTEMPTED whether or not they exist.
"""

from __future__ import annotations

import inspect
from itertools import repeat
from typing import Any

from broker.gates.gating import (
    ALTER,
    CLUSTER_ACTION,
    DESCRIBE,
    GROUP,
    NO_CLUSTER,
    NO_GROUP,
    NO_TOPIC,
    NO_TRANSACTION,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    allowed_work,
    extended,
    refused,
    split,
    split_work,
    then,
    then_work,
)
from broker.handlers.transaction_markers import none_written
from broker.handlers.transaction_offsets import pending_row
from broker.handlers.transactions import BATCHED_FROM, added_rows, undescribed
from broker.requests.context import Handler, RequestContext
from broker.security.authorizer import Access
from common.errors import ErrorCode
from common.pacing import Work
from wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    changed,
)

_Added = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic


def add_partitions(
    context: RequestContext, access: Access, request: AddPartitionsToTxnRequest, handler: Handler
) -> Any:
    """From version 4 on it comes from partition leaders, which have checked their clients' rights."""
    if context.api_version < BATCHED_FROM:
        return _add_of_client(context, access, request, handler)
    return handler(context, request) if access.may_cluster(CLUSTER_ACTION) else refused(request, NO_CLUSTER)


async def _add_of_client(
    context: RequestContext, access: Access, request: AddPartitionsToTxnRequest, handler: Handler
) -> Any:
    topics = request.v3_and_below_topics
    allowed: list[_Added] = []
    others, code = topics, NO_TRANSACTION
    if access.may(WRITE, TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        allowed, others = await context.paced(split_work(topics, access, WRITE, TOPIC, lambda topic: topic.name))
        code = NO_TOPIC
        if not others:
            outcome: Any = handler(context, request)
            return await outcome if inspect.isawaitable(outcome) else outcome
    rows = await context.paced(added_rows(others, repeat(code)))
    rows += await context.paced(added_rows(allowed, repeat(ErrorCode.OPERATION_NOT_ATTEMPTED)))
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=rows)


def add_offsets(context: RequestContext, access: Access, request: AddOffsetsToTxnRequest, handler: Handler) -> Any:
    if not access.may(WRITE, TRANSACTIONAL_ID, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=NO_TRANSACTION)
    if not access.may(READ, GROUP, request.group_id):
        return AddOffsetsToTxnResponse(error_code=NO_GROUP)
    return handler(context, request)


def txn_offset_commit(
    context: RequestContext, access: Access, request: TxnOffsetCommitRequest, handler: Handler
) -> Any:
    topics, code = request.topics, None
    if not access.may(WRITE, TRANSACTIONAL_ID, request.transactional_id):
        code = NO_TRANSACTION
    elif not access.may(READ, GROUP, request.group_id):
        code = NO_GROUP
    if code is not None:
        return TxnOffsetCommitResponse(topics=[pending_row(topic, repeat(code)) for topic in topics])
    allowed, others = split(topics, access, READ, TOPIC, lambda topic: topic.name)
    if not others:
        return handler(context, request)
    rows = [pending_row(topic, repeat(NO_TOPIC)) for topic in others]
    if not allowed:
        return TxnOffsetCommitResponse(topics=rows)
    return then(handler(context, changed(request, topics=allowed)), lambda answer: extended(answer, "topics", rows))


def end_txn(context: RequestContext, access: Access, request: EndTxnRequest, handler: Handler) -> Any:
    if access.may(WRITE, TRANSACTIONAL_ID, request.transactional_id):
        return handler(context, request)
    return EndTxnResponse(error_code=NO_TRANSACTION, producer_id=-1, producer_epoch=-1)


def write_txn_markers(
    context: RequestContext, access: Access, request: WriteTxnMarkersRequest, handler: Handler
) -> Any:
    """Brokers, and operators who may alter the cluster (KIP-664)."""
    if access.may_cluster(ALTER) or access.may_cluster(CLUSTER_ACTION):
        return handler(context, request)
    return none_written(request, NO_CLUSTER)


def describe_transactions(
    context: RequestContext, access: Access, request: DescribeTransactionsRequest, handler: Handler
) -> Any:
    """Of each transaction, only the topics that the client may describe."""
    described, others = split(request.transactional_ids, access, DESCRIBE, TRANSACTIONAL_ID, lambda name: name)
    rows = [undescribed(name, NO_TRANSACTION) for name in others]
    if not described:
        return DescribeTransactionsResponse(transaction_states=rows)

    def complete(answer: DescribeTransactionsResponse) -> Work[DescribeTransactionsResponse]:
        shown = []
        for state in answer.transaction_states:
            topics = yield from allowed_work(state.topics, access, DESCRIBE, TOPIC, lambda topic: topic.topic)
            shown.append(changed(state, topics=topics))
        return extended(changed(answer, transaction_states=shown), "transaction_states", rows)

    return then_work(context, handler(context, changed(request, transactional_ids=described)), complete)


def list_transactions(
    context: RequestContext, access: Access, request: ListTransactionsRequest, handler: Handler
) -> Any:
    def complete(answer: ListTransactionsResponse) -> Work[ListTransactionsResponse]:
        shown = yield from allowed_work(
            answer.transaction_states, access, DESCRIBE, TRANSACTIONAL_ID, lambda state: state.transactional_id
        )
        return changed(answer, transaction_states=shown)

    return then_work(context, handler(context, request), complete)
