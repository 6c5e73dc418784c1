"""What is open is asked of all leaders at once, and of each a bounded part of its partitions at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError

from tests.console.fake_cluster import TOPIC_ID, FakeClient, log_in, offsets, visitor
from tidelog.admin.open_transactions import examined
from tidelog.admin.partition_offsets import PARTITIONS_AT_ONCE
from tidelog.admin.transaction_doctor import STATE_TOPIC, Class, Place
from wire.messages import (
    DescribeProducersResponse,
    DescribeTransactionsResponse,
    ListTransactionsResponse,
    MetadataResponse,
)

BROKERS = (0, 1, 2)
COUNT = 3 * PARTITIONS_AT_ONCE + 3
HUNG = COUNT - 1


class Leaders(FakeClient):
    """Notes which of them are asked at once. `silent` does not answer questions about producers. `hidden`: this user
    may not see `__transaction_state`."""

    def __init__(self, silent: int | None = None, *, hidden: bool = False) -> None:
        brokers = [{"broker_id": one, "is_fenced": False} for one in BROKERS]
        super().__init__(
            {
                "MetadataRequest": lambda _: _metadata(hidden=hidden),
                "ListTransactionsRequest": lambda _: ListTransactionsResponse(
                    error_code=0, unknown_state_filters=[], transaction_states=[]
                ),
                "DescribeProducersRequest": _producers,
                "DescribeTransactionsRequest": _unknown,
                "ListOffsetsRequest": offsets(0, 9),
            },
            {"describe_cluster": lambda: {"brokers": brokers}},
        )
        self.asked: list[tuple[str, list[int | None]]] = []
        self._silent = silent

    def send_all(self, requests: Sequence[tuple[Any, int | None]]) -> list[Any]:
        for name in {type(request).__name__ for request, _ in requests}:
            self.asked.append((name, [broker for _, broker in requests]))
        return super().send_all(requests)

    def send(self, request: Any, broker: int | None = None) -> Any:
        if broker == self._silent and type(request).__name__ == "DescribeProducersRequest":
            raise KafkaConnectionError("no broker answers")
        return super().send(request, broker)


def _metadata(*, hidden: bool) -> Any:
    row = MetadataResponse.MetadataResponseTopic
    partitions = [
        row.MetadataResponsePartition(
            error_code=0, partition_index=number, leader_id=number % len(BROKERS), leader_epoch=0, replica_nodes=[0],
            isr_nodes=[0], offline_replicas=[],
        )
        for number in range(COUNT)
    ]  # fmt: skip
    none = row(error_code=3, name=STATE_TOPIC, topic_id=TOPIC_ID, is_internal=not hidden, partitions=[])
    gone = row(error_code=3, name="gone", topic_id=TOPIC_ID, is_internal=False, partitions=partitions[:1])
    there = row(error_code=0, name="t", topic_id=TOPIC_ID, is_internal=False, partitions=partitions)
    return MetadataResponse(brokers=[], topics=[none, gone, there])


def _unknown(request: Any) -> Any:
    row = DescribeTransactionsResponse.TransactionState
    (name,) = request.transactional_ids
    rows = [
        row(
            error_code=105, transactional_id=name, transaction_state="", transaction_timeout_ms=0,
            transaction_start_time_ms=0, producer_id=0, producer_epoch=0, topics=[],
        )
    ]  # fmt: skip
    return DescribeTransactionsResponse(transaction_states=rows)


def _producers(request: Any) -> Any:
    topic = DescribeProducersResponse.TopicResponse
    row = topic.PartitionResponse
    producer = row.ProducerState(
        producer_id=7,
        producer_epoch=0,
        last_sequence=0,
        last_timestamp=1,
        coordinator_epoch=0,
        current_txn_start_offset=5,
    )
    (asked,) = request.topics
    assert asked.name == "t"
    assert len(asked.partition_indexes) <= PARTITIONS_AT_ONCE
    rows = [
        row(partition_index=one, error_code=0, error_message=None, active_producers=[producer] if one == HUNG else [])
        for one in asked.partition_indexes
    ]
    return DescribeProducersResponse(topics=[topic(name="t", partitions=rows)])


def test_all_leaders_are_asked_at_once_and_each_has_one_question_at_a_time() -> None:
    client = Leaders()
    ((found,), unanswered, tier_unknown) = examined(client, None, dict)  # type: ignore[arg-type]
    assert not unanswered
    assert not tier_unknown
    assert (found.kind, found.places) == (Class.HANGING, (Place("t", HUNG),))
    asked = [(name, brokers) for name, brokers in client.asked if name == "DescribeProducersRequest"]
    assert asked == [
        ("DescribeProducersRequest", [*BROKERS]),
        ("DescribeProducersRequest", [*BROKERS]),
        ("DescribeProducersRequest", [HUNG % len(BROKERS)]),  # again, of what hangs
    ]


def test_a_leader_that_does_not_answer_is_no_sign_that_nothing_is_open() -> None:
    with pytest.raises(KafkaConnectionError):
        examined(Leaders(silent=2), None, dict)  # type: ignore[arg-type]


@pytest.mark.parametrize("hidden", [False, True])
def test_the_console_ends_what_hangs_and_not_what_only_may(hidden: bool) -> None:
    browser = visitor(Leaders(hidden=hidden))
    log_in(browser)
    page = browser.get("/transactions/open").text
    assert ("__transaction_state: this user may not see it" in page) is hidden
    assert ("unknown" in page) is hidden
    assert (f"End in t-{HUNG}" in page) is not hidden
