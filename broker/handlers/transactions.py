"""InitProducerId 0-5, AddPartitionsToTxn 0-5, AddOffsetsToTxn 0-4, EndTxn 0-5, DescribeTransactions 0,
ListTransactions 0-2, and Tidelog's own DescribeTransactionClients 0.

The version of a client's request decides between the old protocol and the new one (KIP-890). AddPartitionsToTxn from 4
on comes from partition leaders, for many transactions at a time; only then the new protocol adds partitions by it.
Older versions say INVALID_PRODUCER_EPOCH for PRODUCER_FENCED, and other errors for TRANSACTION_ABORTABLE, which their
clients do not know. Two-phase commit (KIP-939) is not served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from broker.coordination.producer_ids import ProducerIds
from broker.coordination.transactions.coordinator import TransactionCoordinator
from broker.coordination.transactions.producer_clients import ProducerClients
from broker.coordination.transactions.values import (
    NO_EPOCH,
    NO_PRODUCER,
    NO_PRODUCER_ID,
    PASSING_STATES,
    STATES_BY_TITLE,
    EndTransaction,
    InitProducer,
    ListedTransaction,
    Partitions,
    Producer,
    TransactionFilter,
)
from broker.requests.context import RequestContext
from broker.requests.portions import LEAVES_MAX
from broker.tenancy.scope import prefix_of
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work, at_once
from kraft.image.metadata import MetadataImage
from kraft.topic_names import GROUP_TOPIC, INTERNAL_TOPICS
from wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionClientsRequest,
    DescribeTransactionClientsResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

INIT_FENCED_FROM, FENCED_FROM = 4, 2  # versions of clients that know PRODUCER_FENCED
BATCHED_FROM = 4
OFFSETS_ABORTABLE_FROM = 4  # version of clients that know TRANSACTION_ABORTABLE as the answer to AddOffsetsToTxn
NEW_END_FROM = 5
TRANSACTIONS_AT_ONCE = 50  # of one request of a leader that are decided at the same time
VERIFIED_AT_ONCE = 200  # partitions of a transaction
ROW_COST, TOPIC_COST, INDEX_COST = 4, 2, 1  # units of `common.pacing`
COPIED_PER_UNIT = 100  # indexes

_Topics = Sequence[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]
_Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
_TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_Described = DescribeTransactionsResponse.TransactionState
_Listed = ListTransactionsResponse.TransactionState

T = TypeVar("T")
R = TypeVar("R")


class _Topic(Protocol):
    """A row of AddPartitionsToTxn, of any version."""

    name: str
    partitions: list[int]


class TransactionHandlers:
    """One method per API."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        producer_ids: ProducerIds,
        image: Callable[[], MetadataImage],
        group_partition_of: Callable[[str], int],
        ensure_groups: Callable[[], Awaitable[None]],
        unwritten: Callable[[str], Iterable[tuple[str, int]] | None],
    ) -> None:
        """`group_partition_of`: the partition of `__consumer_offsets` that holds a group; raises ProtocolError.
        `ensure_groups`: creates that topic, for a cluster without groups; COORDINATOR_NOT_AVAILABLE if it cannot.
        `unwritten`: the partitions of a decided transaction that have no marker yet, None if that is not known."""
        self._coordinator = coordinator
        self._producer_ids = producer_ids
        self._image = image
        self._group_partition_of = group_partition_of
        self._ensure_groups = ensure_groups
        self._unwritten = unwritten
        self._clients = ProducerClients()

    # producers ---------------------------------------------------------------------------------------------

    async def init_producer_id(self, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """Without a transactional id: a new producer id of this broker's block."""
        try:
            producer = await self._init(request)
            self._note_client(context, request.transactional_id)
        except ProtocolError as error:
            code = _known(error.code, context, INIT_FENCED_FROM)
            return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
        return InitProducerIdResponse(
            error_code=ErrorCode.NONE, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch
        )

    async def _init(self, request: InitProducerIdRequest) -> Producer:
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
            raise ProtocolError(ErrorCode.INVALID_REQUEST)
        if request.transactional_id is None:
            return Producer(await self._producer_ids.take(), 0)
        return await self._coordinator.init_producer_id(
            InitProducer(
                request.transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch
            )
        )

    async def end_txn(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
        is_new = context.api_version >= NEW_END_FROM  # the client has seen the level that this broker may not know yet
        end = EndTransaction(
            request.transactional_id, request.producer_id, request.producer_epoch, request.committed, is_new
        )
        code, producer = ErrorCode.NONE, NO_PRODUCER
        try:
            producer = await self._coordinator.end(end)
            self._note_client(context, request.transactional_id)
        except ProtocolError as error:
            code = _known(error.code, context, FENCED_FROM)
        return EndTxnResponse(error_code=code, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)

    def _note_client(self, context: RequestContext, transactional_id: str | None) -> None:
        if transactional_id is not None and not context.internal:
            self._clients.note(transactional_id, context.client_id, context.session.client_host)

    def describe_clients(
        self, context: RequestContext, request: DescribeTransactionClientsRequest
    ) -> DescribeTransactionClientsResponse:
        found = ((name, self._clients.of(name)) for name in request.transactional_ids)
        rows = [
            DescribeTransactionClientsResponse.DescribedClient(
                transactional_id=name, client_id=client.client_id, client_host=client.host
            )
            for name, client in found
            if client is not None
        ]
        return DescribeTransactionClientsResponse(error_code=ErrorCode.NONE, error_message=None, clients=rows)

    # partitions --------------------------------------------------------------------------------------------

    async def add_partitions(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        if context.api_version >= BATCHED_FROM:
            return await self._add_batched(context, request)
        topics = request.v3_and_below_topics
        codes, partitions = await _worked(context, topics, self._asked(topics, client=True))
        if partitions is not None:
            code = await self._add(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                partitions,
                new_protocol=False,
            )
            if code is ErrorCode.NONE:
                self._note_client(context, request.v3_and_below_transactional_id)
            code = _known(code, context, FENCED_FROM)
            codes = [_abortable(code, ErrorCode.POLICY_VIOLATION)] * len(codes)
        rows = await _worked(context, topics, added_rows(topics, codes))
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=rows)

    async def _add_batched(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        results: list[_Result] = []
        for at in range(0, len(request.transactions), TRANSACTIONS_AT_ONCE):
            some = request.transactions[at : at + TRANSACTIONS_AT_ONCE]
            results += await asyncio.gather(*(self._result(context, one) for one in some))
        return AddPartitionsToTxnResponse(error_code=ErrorCode.NONE, results_by_transaction=results)

    async def _result(
        self, context: RequestContext, one: AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    ) -> _Result:
        """A leader's question about one transaction, or a producer's partitions that join it."""
        codes: Sequence[ErrorCode]
        codes, partitions = await _worked(context, one.topics, self._asked(one.topics, client=False))
        if partitions is not None and one.verify_only:
            codes = await self._verify(context, one)
        elif partitions is not None:
            code = await self._add(
                one.transactional_id, one.producer_id, one.producer_epoch, partitions, new_protocol=True
            )
            codes = [code] * len(codes)
        rows = await _worked(context, one.topics, _batched_rows(one.topics, codes))
        return _Result(transactional_id=one.transactional_id, topic_results=rows)

    async def _verify(
        self, context: RequestContext, one: AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    ) -> Sequence[ErrorCode]:
        """Many partitions are asked for in portions, and other work comes between them."""
        asked = ((topic.name, index) for topic in one.topics for index in topic.partitions)
        codes: list[ErrorCode] = []
        while some := list(islice(asked, VERIFIED_AT_ONCE)):
            if codes:
                await context.paced(_turn(len(some) * INDEX_COST))
            try:
                codes += await self._coordinator.verify_partitions(
                    one.transactional_id, one.producer_id, one.producer_epoch, some
                )
            except ProtocolError as error:
                codes += [error.code] * len(some)
        return codes

    async def _add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Partitions,
        *,
        new_protocol: bool,
    ) -> ErrorCode:
        try:
            await self._coordinator.add_partitions(
                transactional_id, producer_id, producer_epoch, partitions, new_protocol=new_protocol
            )
        except ProtocolError as error:
            return error.code
        return ErrorCode.NONE

    def _asked(self, topics: Iterable[_Topic], *, client: bool) -> Work[tuple[list[ErrorCode], Partitions | None]]:
        """A code for each partition, and all partitions; None if any cannot be added: then none is. A client never
        writes to internal topics."""
        codes: list[ErrorCode] = []
        indexes: dict[str, dict[int, None]] = {}
        known = self._image().topics
        can_add = True
        for topic in topics:
            found = known.get(topic.name)
            added = indexes.setdefault(topic.name, {})
            code = ErrorCode.OPERATION_NOT_ATTEMPTED
            for index in topic.partitions:
                if client and topic.name in INTERNAL_TOPICS:
                    code, can_add = ErrorCode.TOPIC_AUTHORIZATION_FAILED, False
                elif found is None or index not in found.partitions:
                    code, can_add = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False
                else:
                    code = ErrorCode.OPERATION_NOT_ATTEMPTED
                    added[index] = None
                codes.append(code)
                yield INDEX_COST
            yield TOPIC_COST
        partitions: dict[str, tuple[int, ...]] = {}
        for name, added in indexes.items():
            if added:
                partitions[name] = tuple(added)
            yield INDEX_COST
        return codes, partitions if can_add else None

    async def add_offsets(self, context: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
        """The partition with the group's offsets joins the transaction. Clients of the new protocol leave it to
        TxnOffsetCommit. Older ones ask for the group's coordinator, which creates the topic, only after this."""
        code = ErrorCode.NONE
        try:
            await self._ensure_groups()
            index = self._group_partition_of(request.group_id)
            await self._coordinator.add_partitions(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                {GROUP_TOPIC: (index,)},
                new_protocol=False,
            )
        except ProtocolError as error:
            code = _known(error.code, context, FENCED_FROM)
            if context.api_version < OFFSETS_ABORTABLE_FROM:
                code = _abortable(code, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return AddOffsetsToTxnResponse(error_code=code)

    # administration ----------------------------------------------------------------------------------------

    async def describe_transactions(
        self, context: RequestContext, request: DescribeTransactionsRequest
    ) -> DescribeTransactionsResponse:
        """Of a decided transaction, the partitions that have no marker yet."""
        rows = [await self._described(context, name) for name in request.transactional_ids]
        return DescribeTransactionsResponse(transaction_states=rows)

    async def _described(self, context: RequestContext, transactional_id: str) -> _Described:
        try:
            found = await self._coordinator.describe(transactional_id)
        except ProtocolError as error:
            return undescribed(transactional_id, error.code)
        left = self._unwritten(transactional_id) if found.state.is_prepared else None
        work = _described_topics(found.partitions, None if left is None else tuple(left))  # markers are being written
        is_short = len(found.partitions) <= LEAVES_MAX and found.partition_count <= LEAVES_MAX
        return _Described(
            error_code=ErrorCode.NONE,
            transactional_id=transactional_id,
            transaction_state=found.state.title,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.start_ms,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=at_once(work) if is_short else await context.paced(work),
        )

    async def list_transactions(
        self, context: RequestContext, request: ListTransactionsRequest
    ) -> ListTransactionsResponse:
        """Empty filters match everything. Unknown states are named, and match nothing."""
        named = dict.fromkeys(request.state_filters)
        states = frozenset(STATES_BY_TITLE[name] for name in named if name in STATES_BY_TITLE)
        unknown = [name for name in named if name not in STATES_BY_TITLE and name not in PASSING_STATES]
        wanted = TransactionFilter(
            states if named else None,
            frozenset(request.producer_id_filters) or None,
            request.duration_filter if context.api_version >= 1 else -1,
            request.transactional_id_pattern,
            "" if context.tenant is None else prefix_of(context.tenant),
        )
        try:
            found = await self._coordinator.list_transactions(wanted)
        except ProtocolError as error:
            return ListTransactionsResponse(error_code=error.code, unknown_state_filters=[], transaction_states=[])
        rows = await context.paced(_listed(found))
        return ListTransactionsResponse(
            error_code=ErrorCode.NONE, unknown_state_filters=unknown, transaction_states=rows
        )


def _known(code: ErrorCode, context: RequestContext, fenced_from: int) -> ErrorCode:
    """The code as clients of that version know it."""
    is_old = code is ErrorCode.PRODUCER_FENCED and context.api_version < fenced_from
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_old else code


def _abortable(code: ErrorCode, known: ErrorCode) -> ErrorCode:
    """The code for clients that do not know TRANSACTION_ABORTABLE: `known` in its place, for which all of them abort.

    Apache Kafka has no limits that lead here. An unknown error of AddOffsetsToTxn is the end of Java's producer, and so
    is INVALID_TXN_STATE, which says as much for Produce. Source: TransactionManager of Apache Kafka, librdkafka.
    """
    return known if code is ErrorCode.TRANSACTION_ABORTABLE else code


def _described_topics(
    partitions: Partitions, left: Sequence[tuple[str, int]] | None
) -> Work[list[_Described.TopicData]]:
    """Those of a transaction; of `left` alone, unless that is None."""
    shown: Mapping[str, Sequence[int]] = partitions
    if left is not None:
        shown = by_topic = dict[str, list[int]]()
        for topic, index in left:
            by_topic.setdefault(topic, []).append(index)
            yield INDEX_COST
    rows: list[_Described.TopicData] = []
    for topic, indexes in shown.items():
        rows.append(_Described.TopicData(topic=topic, partitions=list(indexes)))
        yield TOPIC_COST + len(indexes) // COPIED_PER_UNIT
    return rows


async def _worked(context: RequestContext, topics: Sequence[_Topic], work: Work[T]) -> T:
    """The result of work on all partitions of `topics`. Few of them, as in leaders' questions, are done at once."""
    if len(topics) <= LEAVES_MAX and sum(len(topic.partitions) for topic in topics) <= LEAVES_MAX:
        return at_once(work)
    return await context.paced(work)


def _turn(cost: int) -> Work[None]:
    yield cost


def added_rows(topics: Iterable[_Topic], codes: Iterable[ErrorCode]) -> Work[list[_TopicResult]]:
    """One code per partition, in order."""
    return _rows(topics, codes, _TopicResult.AddPartitionsToTxnPartitionResult, _TopicResult)


def _batched_rows(
    topics: Iterable[_Topic], codes: Iterable[ErrorCode]
) -> Work[list[_Result.AddPartitionsToTxnTopicResult]]:
    row = _Result.AddPartitionsToTxnTopicResult
    return _rows(topics, codes, row.AddPartitionsToTxnPartitionResult, row)


def _rows(
    topics: Iterable[_Topic], codes: Iterable[ErrorCode], partition: Callable[..., object], row: Callable[..., R]
) -> Work[list[R]]:
    """`partition` and `row` make the results of the request's form: that of clients, or of leaders."""
    left = iter(codes)
    rows: list[R] = []
    for topic in topics:
        results = []
        for index in topic.partitions:
            results.append(partition(partition_index=index, partition_error_code=next(left)))
            yield INDEX_COST
        rows.append(row(name=topic.name, results_by_partition=results))
        yield TOPIC_COST
    return rows


def undescribed(transactional_id: str, code: ErrorCode) -> _Described:
    return _Described(
        error_code=code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )


def _listed(found: Sequence[ListedTransaction]) -> Work[list[_Listed]]:
    rows: list[_Listed] = []
    for one in found:
        rows.append(
            _Listed(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state.title,
            )
        )
        yield ROW_COST
    return rows
