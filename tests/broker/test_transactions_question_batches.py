"""How much one request to a coordinator asks: it is encoded, and its answer decoded, in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordination.transactions.config import ID_BYTES_MAX
from broker.coordination.transactions.questions import PartitionQuestion
from broker.coordination.transactions.verification_client import ADD_PARTITIONS_VERSION, VerificationLimits
from common.errors import ErrorCode
from tests.broker.replication_lab import eventually
from tests.broker.test_transactions_questions import FakeCoordinators
from tests.common.call_count import counted_calls
from wire.codec import encode_request

pytestmark = pytest.mark.virtual_time

FEW = VerificationLimits(rows_per_request_max=5, partitions_per_request_max=8, name_bytes_per_request_max=1_000)
LONG_ROW_BYTES = 600
QUESTION = st.tuples(
    st.sampled_from(["a", "b", "c", "d" * 300, "é" * 120, "漢" * 100, "e" * 500]),
    st.integers(0, 2),  # epoch
    st.sampled_from(["t", "u", "v" * 90]),
    st.integers(0, 12),
)


def size_of(request: Any) -> int:
    return len(encode_request(request, ADD_PARTITIONS_VERSION, 1, "c"))


def partitions_of(request: Any) -> int:
    return sum(len(topic.partitions) for one in request.transactions for topic in one.topics)


@settings(max_examples=60, deadline=None)
@given(st.lists(QUESTION, max_size=60))
async def test_no_request_is_long_and_every_question_is_answered_once(asked: list[tuple[str, int, str, int]]) -> None:
    there = FakeCoordinators(2, FEW)
    answers: list[tuple[str, int, str, int]] = []

    def answered(one: tuple[str, int, str, int], code: ErrorCode) -> None:
        assert code is ErrorCode.NONE
        answers.append(one)

    for one in asked:
        transactional_id, epoch, topic, partition = one
        question = PartitionQuestion(transactional_id, 7, epoch, topic, partition, verify_only=False)
        there.client.ask(question, partial(answered, one))
    await eventually(lambda: len(answers) >= len(asked), "answered")
    assert Counter(answers) == Counter(asked)
    for request in there.requests:
        ids = [one.transactional_id for one in request.transactions]
        assert 0 < len(ids) == len(set(ids)) <= FEW.rows_per_request_max
        assert partitions_of(request) <= FEW.partitions_per_request_max
        assert size_of(request) < FEW.name_bytes_per_request_max + LONG_ROW_BYTES
    rows = Counter(
        (one.transactional_id, one.producer_epoch, topic.name, index)
        for request in there.requests
        for one in request.transactions
        for topic in one.topics
        for index in topic.partitions
    )
    assert rows == Counter(set(asked)), "each is asked once"
    await there.client.stop()


async def test_the_longest_ids_travel_a_mebibyte_at_a_time() -> None:
    there = FakeCoordinators(2)
    for number in range(200):
        there.ask(f"{number:0{ID_BYTES_MAX}}", 0, producer_id=number)
    await eventually(lambda: len(there.answers) == 200, "answered")
    assert max(map(size_of, there.requests)) < 1_100_000
    assert len(there.requests) < 10, "and not one by one"
    await there.client.stop()


async def test_the_brokers_own_coordinators_are_asked_although_hundreds_of_others_are_silent() -> None:
    here = FakeCoordinators(1)
    here.answer = lambda transactional_id, partition: 1  # seconds
    for number in range(1_000):
        here.ask(f"t{number}", 0)
    await asyncio.sleep(0.5)
    assert (len(here.local), here.answers) == (1_000, [])
    await here.client.stop()


@pytest.mark.parametrize("rows", [1, 4_000])
async def test_the_longest_request_is_short_work(rows: int) -> None:
    """Thousands of producers may begin at a time, and one of them in thousands of topics."""
    there = FakeCoordinators(2)
    for number in range(4_000):
        question = PartitionQuestion(f"id{number % rows}", 7, 0, f"{number:0200}", 0, verify_only=False)
        there.client.ask(question, lambda code: there.answers.append(("", 0, code)))
    await eventually(lambda: len(there.answers) == 4_000, "answered")
    longest = max(there.requests, key=size_of)
    with counted_calls() as count:
        encode_request(longest, ADD_PARTITIONS_VERSION, 1, "c")
    assert count.calls < 10_000
    await there.client.stop()
