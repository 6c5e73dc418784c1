"""Rights on requests about transactions: what a handler is asked after its gate, and what the client is answered."""

from __future__ import annotations

from typing import Any

import pytest

from broker.gates import transaction_gates
from broker.gates.gating import CLUSTER, DESCRIBE, GROUP, READ, TOPIC, TRANSACTIONAL_ID, WRITE
from broker.handlers.transactions import undescribed
from common.errors import ErrorCode
from common.pacing import Work, at_once
from wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

TOPIC_ROW = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Rights:
    def __init__(self, *allowed: tuple[int, int, str]) -> None:
        self.allowed = set(allowed)

    def may(self, operation: int, resource_type: int, name: str) -> bool:
        return (operation, resource_type, name) in self.allowed

    def may_cluster(self, operation: int) -> bool:
        return any(resource_type == CLUSTER for _, resource_type, _ in self.allowed)


class Version:
    def __init__(self, api_version: int) -> None:
        self.api_version = api_version

    async def paced(self, work: Work[Any]) -> Any:
        return at_once(work)


def asked(gate: Any, request: object, rights: Rights, version: int = 3, answer: object = "handled") -> Any:
    return gate(Version(version), rights, request, lambda _, __: answer)


def added(*topics: str) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_topics=[TOPIC_ROW(name=name, partitions=[0, 1]) for name in topics],
    )


def codes(answer: Any) -> dict[str, list[int]]:
    return {
        topic.name: [one.partition_error_code for one in topic.results_by_partition]
        for topic in answer.results_by_topic_v3_and_below
    }


T = (WRITE, TRANSACTIONAL_ID, "t")


async def test_partitions_join_all_or_none() -> None:
    gate = transaction_gates.add_partitions
    assert codes(await asked(gate, added("a"), Rights())) == {"a": [NO_TRANSACTION] * 2}
    answer = await asked(gate, added("a", "b"), Rights(T, (WRITE, TOPIC, "a")))
    assert codes(answer) == {
        "a": [ErrorCode.OPERATION_NOT_ATTEMPTED] * 2,
        "b": [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2,
    }
    assert await asked(gate, added("a"), Rights(T, (WRITE, TOPIC, "a"))) == "handled"


def test_partitions_of_leaders_need_the_cluster() -> None:
    gate = transaction_gates.add_partitions
    request = AddPartitionsToTxnRequest(transactions=[])
    refused = at_once(asked(gate, request, Rights(T), version=4))
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert asked(gate, request, Rights((0, CLUSTER, "")), version=4) == "handled"


@pytest.mark.parametrize(
    ("rights", "code"),
    [
        (Rights(), NO_TRANSACTION),
        (Rights(T), ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (Rights((READ, GROUP, "g")), NO_TRANSACTION),
        (Rights(T, (READ, GROUP, "g")), None),
    ],
)
def test_offsets(rights: Rights, code: ErrorCode | None) -> None:
    answer = asked(transaction_gates.add_offsets, AddOffsetsToTxnRequest(transactional_id="t", group_id="g"), rights)
    assert answer == "handled" if code is None else answer.error_code == code


def test_end() -> None:
    request = EndTxnRequest(transactional_id="t")
    assert asked(transaction_gates.end_txn, request, Rights()).error_code == NO_TRANSACTION
    assert asked(transaction_gates.end_txn, request, Rights(T)) == "handled"


def test_described_are_those_that_the_client_may_see_with_their_topics() -> None:
    row = undescribed("t", ErrorCode.NONE)
    row.topics.extend(DescribeTransactionsResponse.TransactionState.TopicData(topic=name) for name in ("a", "b"))
    handled = DescribeTransactionsResponse(transaction_states=[row])
    request = DescribeTransactionsRequest(transactional_ids=["u", "t"])
    rights = Rights((DESCRIBE, TRANSACTIONAL_ID, "t"), (DESCRIBE, TOPIC, "b"))

    answer = at_once(asked(transaction_gates.describe_transactions, request, rights, answer=handled))

    rows = [(one.transactional_id, one.error_code, [topic.topic for topic in one.topics])
            for one in answer.transaction_states]  # fmt: skip
    assert rows == [("t", ErrorCode.NONE, ["b"]), ("u", NO_TRANSACTION, [])]


def test_listed_are_those_that_the_client_may_see() -> None:
    listed = ListTransactionsResponse.TransactionState
    handled = ListTransactionsResponse(transaction_states=[listed(transactional_id=name) for name in ("t", "u")])
    rights = Rights((DESCRIBE, TRANSACTIONAL_ID, "u"))
    answer = at_once(asked(transaction_gates.list_transactions, ListTransactionsRequest(), rights, answer=handled))
    assert [one.transactional_id for one in answer.transaction_states] == ["u"]
