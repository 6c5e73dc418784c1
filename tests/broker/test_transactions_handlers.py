"""What clients are answered: codes by version, and partitions that cannot be added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker.coordination.transactions.values import (
    EndTransaction,
    InitProducer,
    ListedTransaction,
    Producer,
    Transaction,
    TransactionFilter,
    TransactionState,
)
from broker.gates import transaction_gates
from broker.gates.gating import CLUSTER, TOPIC, TRANSACTIONAL_ID, WRITE
from broker.handlers.transactions import VERIFIED_AT_ONCE, TransactionHandlers
from broker.security.session import ClientSession
from common.errors import ErrorCode, ProtocolError
from common.pacing import SLICE_COST, Pacer, Work, at_once
from tests.broker.test_transactions_gates import Rights
from tests.broker.topic_images import image_of
from wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)

FENCED = ErrorCode.PRODUCER_FENCED
OLD_ROW = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
BATCH = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction


class Coordinator:
    """Refuses with `code`, and keeps what it was asked."""

    def __init__(self) -> None:
        self.code = ErrorCode.NONE
        self.state = TransactionState.ONGOING
        self.partitions: dict[str, tuple[int, ...]] = {"flights": (0, 1), "gates": (2,)}
        self.asked: list[Any] = []

    def _answer(self, request: Any, reply: Any) -> Any:
        self.asked.append(request)
        if self.code:
            raise ProtocolError(self.code)
        return reply

    async def init_producer_id(self, request: InitProducer) -> Any:
        return self._answer(request, Producer(7, 5))

    async def end(self, request: EndTransaction) -> Any:
        return self._answer(request, Producer(7, 6))

    async def add_partitions(self, *request: Any, new_protocol: bool) -> Any:
        return self._answer((*request, new_protocol), None)

    async def verify_partitions(self, *request: Any) -> Any:
        return self._answer(request, [ErrorCode.TRANSACTION_ABORTABLE])

    async def describe(self, transactional_id: str) -> Any:
        return self._answer(transactional_id, Transaction(7, 5, 9, self.state, self.partitions, 2, 1))

    async def list_transactions(self, wanted: TransactionFilter) -> Any:
        return self._answer(wanted, [ListedTransaction("t", 7, TransactionState.ONGOING)])


class Ids:
    async def take(self) -> int:
        return 8


class Context:
    tenant = None

    def __init__(
        self, api_version: int, pacer: Pacer | None = None, *, client_id: str | None = "app", internal: bool = False
    ) -> None:
        self.api_version = api_version
        self.pacer = pacer
        self.client_id = client_id
        self.internal = internal
        self.session = ClientSession("PLAINTEXT", internal, "10.0.0.7", None)

    async def paced(self, work: Work[Any]) -> Any:
        return at_once(work) if self.pacer is None else await self.pacer.run(work, "client")


class Served:
    def __init__(self, names: Sequence[str] = ("flights", "__consumer_offsets")) -> None:
        self.coordinator = Coordinator()
        self.unwritten: list[tuple[str, int]] | None = []
        self.has_groups = True
        image = image_of(*names)
        self.handlers: Any = TransactionHandlers(
            self.coordinator,  # type: ignore[arg-type]
            Ids(),  # type: ignore[arg-type]
            lambda: image,
            self._group_partition_of,
            self._ensure_groups,
            lambda transactional_id: self.unwritten,
        )

    def _group_partition_of(self, group_id: str) -> int:
        if not self.has_groups:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return 3

    async def _ensure_groups(self) -> None:
        self.has_groups = True


@pytest.mark.parametrize(("version", "code"), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, FENCED)])
async def test_init_fenced_by_version(version: int, code: ErrorCode) -> None:
    served = Served()
    served.coordinator.code = FENCED
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1, producer_id=7, producer_epoch=5)
    assert (await served.handlers.init_producer_id(Context(version), request)).error_code == code


@pytest.mark.parametrize(("producer_id", "epoch"), [(7, -1), (-1, 5)])
async def test_init_with_half_a_producer(producer_id: int, epoch: int) -> None:
    request = InitProducerIdRequest(transactional_id="t", producer_id=producer_id, producer_epoch=epoch)
    answer = await Served().handlers.init_producer_id(Context(4), request)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_init_without_a_transactional_id() -> None:
    request = InitProducerIdRequest(transactional_id=None, producer_id=-1, producer_epoch=-1)
    answer = await Served().handlers.init_producer_id(Context(4), request)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.NONE, 8, 0)


@pytest.mark.parametrize(("api", "new"), [(4, False), (5, True)])
async def test_end_by_version(api: int, new: bool) -> None:
    """Whatever `transaction.version` this broker knows of: the client may have heard of a later one."""
    served = Served()
    request = EndTxnRequest(transactional_id="t", producer_id=7, producer_epoch=5, committed=True)
    answer = await served.handlers.end_txn(Context(api), request)
    assert served.coordinator.asked == [EndTransaction("t", 7, 5, True, new)]
    assert (answer.producer_id, answer.producer_epoch) == (7, 6)
    served.coordinator.code = FENCED
    assert (await served.handlers.end_txn(Context(1), request)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_partitions_of_a_client_are_added_all_or_none() -> None:
    served = Served()
    topics = [
        OLD_ROW(name="flights", partitions=[0, 9]),
        OLD_ROW(name="unknown", partitions=[0]),
        OLD_ROW(name="__consumer_offsets", partitions=[0]),
    ]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=7,
        v3_and_below_producer_epoch=5,
        v3_and_below_topics=topics,
    )
    answer = await served.handlers.add_partitions(Context(3), request)
    rows = [
        [one.partition_error_code for one in topic.results_by_partition]
        for topic in answer.results_by_topic_v3_and_below
    ]
    assert rows == [
        [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.TOPIC_AUTHORIZATION_FAILED],
    ]
    assert served.coordinator.asked == []
    request.v3_and_below_topics[:] = [OLD_ROW(name="flights", partitions=[0])]
    await served.handlers.add_partitions(Context(3), request)
    assert served.coordinator.asked == [("t", 7, 5, {"flights": (0,)}, False)]


async def test_partitions_of_leaders_are_added_or_verified() -> None:
    served = Served()
    topics = [BATCH.AddPartitionsToTxnTopic(name="flights", partitions=[0])]
    batches = [
        BATCH(transactional_id=name, producer_id=7, producer_epoch=5, verify_only=name == "v", topics=topics)
        for name in ("t", "v")
    ]
    answer = await served.handlers.add_partitions(Context(5), AddPartitionsToTxnRequest(transactions=batches))
    codes = {
        one.transactional_id: one.topic_results[0].results_by_partition[0].partition_error_code
        for one in answer.results_by_transaction
    }
    assert codes == {"t": ErrorCode.NONE, "v": ErrorCode.TRANSACTION_ABORTABLE}
    assert served.coordinator.asked == [("t", 7, 5, {"flights": (0,)}, True), ("v", 7, 5, [("flights", 0)])]


@pytest.mark.parametrize("version", [3, 5])
async def test_ten_thousand_topics_join_in_slices(version: int) -> None:
    names = [f"flights-{number:05}" for number in range(10_000)]
    served, pacer = Served(names=names), Pacer()
    rights: Any = Rights((WRITE, TRANSACTIONAL_ID, "t"), (0, CLUSTER, ""), *((WRITE, TOPIC, name) for name in names))
    context: Any = Context(version, pacer)
    if version < 4:
        old = [OLD_ROW(name=name, partitions=[0]) for name in names]
        request = AddPartitionsToTxnRequest(v3_and_below_transactional_id="t", v3_and_below_topics=old)
    else:
        topics = [BATCH.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names]
        request = AddPartitionsToTxnRequest(transactions=[BATCH(transactional_id="t", topics=topics)])
    await transaction_gates.add_partitions(context, rights, request, served.handlers.add_partitions)
    assert served.coordinator.asked[0][3] == dict.fromkeys(names, (0,))
    assert pacer.slices > 20
    assert pacer.costliest <= 2 * SLICE_COST


async def test_ten_thousand_partitions_are_verified_in_portions() -> None:
    served, pacer = Served(), Pacer()
    context: Any = Context(5, pacer)
    topics = [BATCH.AddPartitionsToTxnTopic(name="flights", partitions=[0] * 10_000)]
    request = AddPartitionsToTxnRequest(transactions=[BATCH(transactional_id="v", verify_only=True, topics=topics)])
    served.coordinator.code = FENCED
    answer = await served.handlers.add_partitions(context, request)
    (topic,) = answer.results_by_transaction[0].topic_results
    assert [one.partition_error_code for one in topic.results_by_partition] == [FENCED] * 10_000
    asked = [len(partitions) for *_, partitions in served.coordinator.asked]
    assert (sum(asked), max(asked)) == (10_000, VERIFIED_AT_ONCE)
    assert pacer.slices >= len(asked)


async def test_offsets_add_the_partition_of_the_group() -> None:
    served = Served()
    request = AddOffsetsToTxnRequest(transactional_id="t", producer_id=7, producer_epoch=5, group_id="g")
    assert (await served.handlers.add_offsets(Context(3), request)).error_code == ErrorCode.NONE
    assert served.coordinator.asked == [("t", 7, 5, {"__consumer_offsets": (3,)}, False)]
    served.coordinator.code = FENCED
    assert (await served.handlers.add_offsets(Context(1), request)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_offsets_join_a_transaction_in_a_cluster_without_groups() -> None:
    """A client of the older protocol asks for the group's coordinator, which creates the topic, only after this."""
    served = Served()
    served.has_groups = False
    request = AddOffsetsToTxnRequest(transactional_id="t", producer_id=7, producer_epoch=5, group_id="g")
    assert (await served.handlers.add_offsets(Context(3), request)).error_code == ErrorCode.NONE
    assert served.has_groups


@pytest.mark.parametrize(
    ("version", "code"),
    [
        *((old, ErrorCode.GROUP_AUTHORIZATION_FAILED) for old in range(4)),
        (4, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
async def test_offsets_beyond_a_limit_end_the_transaction_but_not_the_producer(version: int, code: ErrorCode) -> None:
    served = Served()
    served.coordinator.code = ErrorCode.TRANSACTION_ABORTABLE
    request = AddOffsetsToTxnRequest(transactional_id="t", producer_id=7, producer_epoch=5, group_id="g")
    assert (await served.handlers.add_offsets(Context(version), request)).error_code == code


@pytest.mark.parametrize("version", range(4))
async def test_partitions_beyond_a_limit_end_the_transaction_but_not_the_producer(version: int) -> None:
    served = Served()
    served.coordinator.code = ErrorCode.TRANSACTION_ABORTABLE
    topics = [OLD_ROW(name="flights", partitions=[0, 0])]
    request = AddPartitionsToTxnRequest(v3_and_below_transactional_id="t", v3_and_below_topics=topics)
    (topic,) = (await served.handlers.add_partitions(Context(version), request)).results_by_topic_v3_and_below
    codes = [one.partition_error_code for one in topic.results_by_partition]
    assert codes == [ErrorCode.POLICY_VIOLATION] * 2


@pytest.mark.parametrize(
    ("state", "unwritten", "shown"),
    [
        (TransactionState.PREPARE_COMMIT, [("flights", 1)], {"flights": [1]}),
        (TransactionState.PREPARE_ABORT, [], {}),
        (TransactionState.PREPARE_ABORT, None, {"flights": [0, 1], "gates": [2]}),
        (TransactionState.ONGOING, [("flights", 1)], {"flights": [0, 1], "gates": [2]}),
    ],
)
async def test_a_decided_transaction_is_described_by_what_is_left_of_it(
    state: TransactionState, unwritten: list[tuple[str, int]] | None, shown: dict[str, list[int]]
) -> None:
    served = Served()
    served.coordinator.state, served.unwritten = state, unwritten
    request = DescribeTransactionsRequest(transactional_ids=["t"])
    (row,) = (await served.handlers.describe_transactions(Context(0), request)).transaction_states
    assert {topic.topic: topic.partitions for topic in row.topics} == shown


@pytest.mark.parametrize(
    ("state", "is_known"),
    [
        (TransactionState.ONGOING, False),
        (TransactionState.PREPARE_COMMIT, False),
        (TransactionState.PREPARE_ABORT, True),
    ],
)
async def test_ten_thousand_topics_are_described_in_slices(state: TransactionState, is_known: bool) -> None:
    names = [f"flights-{number:05}" for number in range(10_000)]
    served, pacer = Served(), Pacer()
    served.coordinator.state, served.coordinator.partitions = state, dict.fromkeys(names, (0,))
    served.unwritten = [(name, 0) for name in names] if is_known else None
    request = DescribeTransactionsRequest(transactional_ids=["t", "u"])
    answer = await served.handlers.describe_transactions(Context(0, pacer), request)
    for row in answer.transaction_states:
        assert {topic.topic: topic.partitions for topic in row.topics} == {name: [0] for name in names}
    assert pacer.slices > 2 * 20
    assert pacer.costliest <= 2 * SLICE_COST


async def test_describe_and_list() -> None:
    served = Served()
    (row,) = (
        await served.handlers.describe_transactions(Context(0), DescribeTransactionsRequest(transactional_ids=["t"]))
    ).transaction_states
    assert (row.transaction_state, row.transaction_start_time_ms, row.topics[0].partitions) == ("Ongoing", 1, [0, 1])
    request = ListTransactionsRequest(
        state_filters=["Ongoing", "Dead", "ongoing"], producer_id_filters=[], duration_filter=5
    )
    answer = await served.handlers.list_transactions(Context(1), request)
    assert answer.unknown_state_filters == ["ongoing"]
    assert [one.transaction_state for one in answer.transaction_states] == ["Ongoing"]
    assert served.coordinator.asked[-1] == TransactionFilter(frozenset({TransactionState.ONGOING}), None, 5)
    served.coordinator.code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    (row,) = (
        await served.handlers.describe_transactions(Context(0), DescribeTransactionsRequest(transactional_ids=["x"]))
    ).transaction_states
    assert row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
