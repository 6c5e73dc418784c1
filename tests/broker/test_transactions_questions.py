"""Questions of partition leaders, on their way to coordinators and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.coordination.transactions.questions import PartitionQuestion
from broker.coordination.transactions.values import Partitions
from broker.coordination.transactions.verification_client import (
    ASKED_AT_ONCE,
    VerificationClient,
    VerificationLimits,
)
from common.errors import ErrorCode, ProtocolError
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import Endpoint, PartitionRecord, RegisterBrokerRecord, TopicRecord
from kraft.topic_names import TRANSACTION_TOPIC
from tests.broker.replication_lab import eventually
from tests.broker.test_transactions_handlers import Context, Served
from tests.broker.transaction_lab import silent_link
from wire.client import ConnectionLost
from wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

pytestmark = pytest.mark.virtual_time

_Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
_Topic = _Result.AddPartitionsToTxnTopicResult
_Row = _Topic.AddPartitionsToTxnPartitionResult

LIMITS = VerificationLimits(attempt_timeout_s=2.0)


def image_led_by(leader: int) -> MetadataImage:
    """All transactional ids are coordinated by `leader`."""
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all(
        [
            *[
                RegisterBrokerRecord(node, bytes(16), (Endpoint("NODES", "h", node),), None, fenced=False)
                for node in (1, 2)
            ],
            TopicRecord(TRANSACTION_TOPIC, bytes(16)),
            PartitionRecord(bytes(16), 0, (1, 2), (1, 2), leader, 0, 0),
        ]
    )
    return delta.image()


class FakeCoordinators:
    def __init__(self, leader: int, limits: VerificationLimits = LIMITS) -> None:
        self.image = image_led_by(leader)
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.local: list[tuple[Any, ...]] = []
        self.answer: Callable[[str, int], int] = lambda transactional_id, partition: 0
        self.error = 0
        self.client = VerificationClient(1, lambda: self.image, self, cast(Any, self), "NODES", limits)
        self.answers: list[tuple[str, int, ErrorCode]] = []

    def ask(
        self, transactional_id: str, partition: int, epoch: int = 0, *, verify_only: bool = False, producer_id: int = 7
    ) -> None:
        question = PartitionQuestion(transactional_id, producer_id, epoch, "t", partition, verify_only)
        self.client.ask(question, lambda code: self.answers.append((transactional_id, partition, code)))

    async def connect(self, address: object, timeout_s: float, closed: Any = None) -> Any:
        return SimpleNamespace(call=self.call, is_closed=False, close=lambda: None)

    async def call(
        self, request: AddPartitionsToTxnRequest, version: int, timeout_s: float
    ) -> AddPartitionsToTxnResponse:
        assert version == 5
        self.requests.append(request)
        await asyncio.sleep(0.01)
        results = [
            _Result(
                transactional_id=one.transactional_id,
                topic_results=[
                    _Topic(
                        name=topic.name,
                        results_by_partition=[
                            _Row(partition_index=index, partition_error_code=self.answer(one.transactional_id, index))
                            for index in topic.partitions
                        ],
                    )
                    for topic in one.topics
                ],
            )
            for one in request.transactions
        ]
        return AddPartitionsToTxnResponse(error_code=self.error, results_by_transaction=results)

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Partitions,
        *,
        new_protocol: bool,
    ) -> None:
        assert new_protocol
        self.local.append(("add", transactional_id, producer_id, producer_epoch, partitions))
        await asyncio.sleep(self.answer("", 0))
        if self.error:
            raise ProtocolError(ErrorCode(self.error))

    async def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[tuple[str, int]]
    ) -> Sequence[ErrorCode]:
        self.local.append(("verify", transactional_id, producer_id, producer_epoch, partitions))
        return [ErrorCode.NONE if one[1] == 0 else ErrorCode.TRANSACTION_ABORTABLE for one in partitions]


async def test_questions_are_batched_by_coordinator_and_turn() -> None:
    there = FakeCoordinators(2)
    there.answer = lambda transactional_id, partition: ErrorCode.INVALID_TXN_STATE if partition == 3 else 0
    for transactional_id in ("a", "b"):
        for partition in (0, 3):
            there.ask(transactional_id, partition)
    there.ask("c", 0, verify_only=True)
    assert not there.answers
    await eventually(lambda: len(there.answers) == 5, "answered")
    [request] = there.requests
    assert [(one.transactional_id, one.verify_only) for one in request.transactions] == [
        ("a", False), ("b", False), ("c", True),
    ]  # fmt: skip
    assert request.transactions[0].topics[0].partitions == [0, 3]
    assert there.answers[:2] == [("a", 0, ErrorCode.NONE), ("a", 3, ErrorCode.INVALID_TXN_STATE)]
    await there.client.stop()


async def test_a_request_has_one_row_for_a_transactional_id() -> None:
    there = FakeCoordinators(2)
    there.ask("a", 0, epoch=1)
    there.ask("a", 0, epoch=2)
    await eventually(lambda: len(there.answers) == 2, "answered")
    assert [[one.producer_epoch for one in request.transactions] for request in there.requests] == [[1], [2]]
    await there.client.stop()


async def test_an_id_with_many_producers_delays_no_other() -> None:
    there = FakeCoordinators(2)
    for producer_id in range(100):
        there.ask("many", 0, producer_id=producer_id)
    for number in range(5):
        there.ask(f"other{number}", 0)
    await eventually(lambda: len(there.answers) == 105, "answered")
    rows = [[(one.transactional_id, one.producer_id) for one in request.transactions] for request in there.requests]
    assert rows[0] == [("many", 0), *((f"other{number}", 7) for number in range(5))]
    assert rows[1:] == [[("many", producer_id)] for producer_id in range(1, 100)], "in order"
    await there.client.stop()


async def test_an_id_with_more_questions_comes_behind_those_that_wait() -> None:
    there = FakeCoordinators(2, VerificationLimits(partitions_per_request_max=2))
    for transactional_id in ("a", "b", "c", "d"):
        for epoch in (1, 2):
            there.ask(transactional_id, 0, epoch)
    await eventually(lambda: len(there.answers) == 8, "answered")
    rows = [
        "".join(f"{one.transactional_id}{one.producer_epoch}" for one in sent.transactions) for sent in there.requests
    ]
    assert rows == ["a1b1", "c1d1", "a2b2", "c2d2"]
    await there.client.stop()


class CountedId(str):
    """Counts how often a transactional id is looked at."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        CountedId.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)


async def test_a_request_looks_at_no_question_that_it_leaves() -> None:
    """One transactional id may be claimed with thousands of producer ids."""
    there = FakeCoordinators(2)
    for producer_id in range(500):
        there.ask(CountedId("many"), 0, producer_id=producer_id)
    CountedId.looks = 0
    await eventually(lambda: len(there.answers) == 500, "answered")
    assert len(there.requests) == 500
    assert 0 < CountedId.looks < 500 * 20
    await there.client.stop()


async def test_no_answer_is_an_error_that_passes() -> None:
    there = FakeCoordinators(-1)
    there.ask("a", 0)
    await eventually(lambda: there.answers == [("a", 0, ErrorCode.COORDINATOR_NOT_AVAILABLE)], "no leader")
    there.image = image_led_by(2)

    def cut(transactional_id: str, partition: int) -> int:
        raise ConnectionLost("cut")

    there.answer = cut
    there.ask("a", 1)
    await eventually(lambda: there.answers[1:] == [("a", 1, ErrorCode.NETWORK_EXCEPTION)], "cut")
    there.answer = lambda transactional_id, partition: 0
    there.error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    there.ask("a", 2)
    await eventually(lambda: there.answers[2:] == [("a", 2, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)], "refused")
    await there.client.stop()


class CoordinatorsOfKnownTopics(FakeCoordinators):
    """They answer as brokers do."""

    def __init__(self) -> None:
        super().__init__(2)
        self.served = Served(("t",))

    async def call(
        self, request: AddPartitionsToTxnRequest, version: int, timeout_s: float
    ) -> AddPartitionsToTxnResponse:
        self.requests.append(request)
        await asyncio.sleep(0.01)
        answer: AddPartitionsToTxnResponse = await self.served.handlers.add_partitions(Context(version), request)
        return answer


@pytest.mark.parametrize("verify_only", [False, True])
async def test_a_partition_that_the_coordinator_does_not_know_keeps_no_other_out(verify_only: bool) -> None:
    """Those of the transaction's other requests are in the same row, and no client waits for this code."""
    there = CoordinatorsOfKnownTopics()
    outcome = ErrorCode.TRANSACTION_ABORTABLE if verify_only else ErrorCode.NONE
    for transactional_id, partition in (("a", 9), ("a", 0), ("b", 0), ("a", 0)):
        there.ask(transactional_id, partition, verify_only=verify_only)
    await eventually(lambda: len(there.answers) == 4, "answered")
    assert sorted(there.answers) == [
        ("a", 0, outcome), ("a", 0, outcome), ("a", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("b", 0, outcome),
    ]  # fmt: skip
    asked = [
        [(one.transactional_id, topic.partitions) for one in request.transactions for topic in one.topics]
        for request in there.requests
    ]
    assert asked == [[("a", [9, 0]), ("b", [0])], [("a", [0])]]
    await there.client.stop()


@pytest.mark.parametrize("is_cut", [False, True])
async def test_what_was_kept_out_is_asked_once_more_and_then_by_the_client(is_cut: bool) -> None:
    there = FakeCoordinators(2)

    def answer(transactional_id: str, partition: int) -> int:
        if is_cut and len(there.requests) > 1:
            raise ConnectionLost("cut")
        return ErrorCode.OPERATION_NOT_ATTEMPTED

    there.answer = answer
    there.ask("a", 0)
    there.ask("b", 0)
    await eventually(lambda: len(there.answers) == 2, "answered")
    assert there.answers == [("a", 0, ErrorCode.NETWORK_EXCEPTION), ("b", 0, ErrorCode.NETWORK_EXCEPTION)]
    assert len(there.requests) == 2
    await there.client.stop()


async def test_the_brokers_own_coordinators_are_asked_directly() -> None:
    here = FakeCoordinators(1)
    here.ask("a", 0)
    here.ask("a", 1)
    here.ask("b", 0, verify_only=True)
    here.ask("b", 1, verify_only=True)
    await eventually(lambda: len(here.answers) == 4, "answered")
    assert not here.requests
    assert here.local == [
        ("add", "a", 7, 0, {"t": (0, 1)}), ("verify", "b", 7, 0, (("t", 0), ("t", 1))),
    ]  # fmt: skip
    assert sorted(here.answers) == [
        ("a", 0, ErrorCode.NONE), ("a", 1, ErrorCode.NONE),
        ("b", 0, ErrorCode.NONE), ("b", 1, ErrorCode.TRANSACTION_ABORTABLE),
    ]  # fmt: skip
    here.error = ErrorCode.CONCURRENT_TRANSACTIONS
    here.ask("a", 2)
    await eventually(lambda: here.answers[4:] == [("a", 2, ErrorCode.CONCURRENT_TRANSACTIONS)], "refused")
    here.answer = lambda transactional_id, partition: 60
    here.ask("a", 3)
    await eventually(lambda: here.answers[5:] == [("a", 3, ErrorCode.NETWORK_EXCEPTION)], "late")
    await here.client.stop()


async def test_the_brokers_own_coordinators_are_asked_little_in_a_turn_and_none_waits_for_another() -> None:
    here = FakeCoordinators(1)
    here.answer = lambda transactional_id, partition: 1  # seconds
    in_turn = [0]

    def look() -> None:
        in_turn.append(len(here.local))
        if len(here.local) < 120:
            asyncio.get_running_loop().call_soon(look)

    for number in range(120):
        here.ask(f"t{number}", 0)
    look()
    await asyncio.sleep(0.5)
    assert [who for _, who, *_ in here.local] == [f"t{number}" for number in range(120)]
    assert max(after - before for before, after in pairwise(in_turn)) == ASKED_AT_ONCE
    assert not here.answers
    await eventually(lambda: len(here.answers) == 120, "answered")
    await here.client.stop()


class SilentCoordinators(FakeCoordinators):
    async def connect(self, address: object, timeout_s: float, closed: Any = None) -> Any:
        return silent_link()


async def test_no_answer_is_awaited_of_a_broker_that_was_lost() -> None:
    there = SilentCoordinators(2)
    there.ask("a", 0)
    await asyncio.sleep(0.1)
    there.client.broker_left(3)
    await asyncio.sleep(0.1)
    assert not there.answers
    there.client.broker_left(2)
    await asyncio.sleep(0.1)
    assert there.answers == [("a", 0, ErrorCode.NETWORK_EXCEPTION)]
    await there.client.stop()
