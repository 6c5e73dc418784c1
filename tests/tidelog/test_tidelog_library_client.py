"""Requests that are on their way at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import BrokerNotAvailableError, NodeNotReadyError
from kafka.future import Future
from kafka.net.selector import NetworkSelector

from tidelog.admin.library_client import AT_ONCE_MAX, answered


class Cluster:
    """Answers each request with itself, later; an odd one of a broker that is out with an error. Like the library by
    its default it fails what a connection would have beyond five."""

    def __init__(self, out: set[int]) -> None:
        self.out = out
        self.under_way: Counter[int | None] = Counter()
        self.most = 0

    def send(self, request: int, broker: int | None) -> Awaitable[int]:
        if self.under_way[broker] >= 5:
            raise NodeNotReadyError(broker)
        if broker in self.out and request % 2:
            raise BrokerNotAvailableError
        self.under_way[broker] += 1
        self.most = max(self.most, sum(self.under_way.values()))
        return asyncio.ensure_future(self._answer(request, broker))

    async def _answer(self, request: int, broker: int | None) -> int:
        await asyncio.sleep(0)
        self.under_way[broker] -= 1
        if broker in self.out:
            raise BrokerNotAvailableError
        return request


@given(st.lists(st.sampled_from([None, 0, 1, 2]), max_size=60), st.sets(st.sampled_from([0, 1, 2])))
def test_however_many_requests_a_broker_gets_each_has_its_answer_in_order(
    brokers: list[int | None], out: set[int]
) -> None:
    cluster = Cluster(out)
    found = asyncio.run(answered(cluster.send, asyncio.ensure_future, list(enumerate(brokers))))
    expected = [None if broker in out else at for at, broker in enumerate(brokers)]
    assert [None if isinstance(one, BrokerNotAvailableError) else one for one in found] == expected


def test_brokers_are_asked_at_the_same_time() -> None:
    cluster = Cluster(set())
    requests = [(number, number // 20) for number in range(60)]
    assert asyncio.run(answered(cluster.send, asyncio.ensure_future, requests)) == list(range(60))
    assert cluster.most == 3 * AT_ONCE_MAX


def test_a_broker_that_does_not_answer_holds_up_no_other() -> None:
    """In the library's own loop."""
    loop = NetworkSelector()
    heard = list[int]()
    last = Future()

    async def answer(request: int, broker: int | None) -> int:
        if broker == 0:
            await last
        heard.append(request)
        if len(heard) == 40:
            last.success(None)
        return request

    def send(request: int, broker: int | None) -> Awaitable[int]:
        return cast(Awaitable[int], loop.call_soon_with_future(answer, request, broker))

    requests = [(number, number % 3) for number in range(60)]
    found = loop.call_soon_with_future(answered, send, loop.call_soon_with_future, requests)
    loop.poll(timeout_ms=10_000, future=found)
    assert found.value == list(range(60))
    assert len(heard) == 60
    loop.close()


def test_a_mistake_ends_the_question_for_all_brokers() -> None:
    sent = list[int]()

    def send(request: int, broker: int | None) -> Awaitable[int]:
        if broker == 0:
            raise TypeError("a mistake")
        sent.append(request)
        return asyncio.ensure_future(asyncio.sleep(0, request))

    requests = [(number, number % 2) for number in range(60)]
    with pytest.raises(TypeError, match="a mistake"):
        asyncio.run(answered(send, asyncio.ensure_future, requests))
    assert len(sent) <= AT_ONCE_MAX
