"""What waits for the commit of a shard's batches: who is answered when, and what it costs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.coordination.acts import Acts
from broker.coordination.awaiting_commit import NEVER, AwaitingCommit
from common.errors import ErrorCode, ProtocolError
from tests.broker.coordinated_partition import MemoryPartition
from tests.common.call_count import counted_calls

pytestmark = pytest.mark.virtual_time

TIMEOUT_S = 5.0


class World:
    def __init__(self) -> None:
        self.partition = MemoryPartition(auto_commit=False)
        self.awaiting = AwaitingCommit(self.partition, TIMEOUT_S, Acts(lambda _: None), lambda: None)

    def append(self, end_offset: int, now_s: float) -> asyncio.Future[Any]:
        future = self.waiter()
        self.awaiting.add(end_offset, 100, [], [(future, end_offset)], now_s)
        return future

    def join(self, now_s: float) -> asyncio.Future[Any]:
        future = self.waiter()
        self.awaiting.join([(future, "joined")], now_s)
        return future

    @staticmethod
    def waiter() -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()


def is_late(future: asyncio.Future[Any]) -> bool:
    if not future.done():
        return False
    error = future.exception()
    assert isinstance(error, ProtocolError)
    return error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_deadline_that_passes_costs_as_much_as_what_is_late() -> None:
    world = World()
    waiting = [world.append(number + 1, number / 1000) for number in range(20_000)]
    with counted_calls() as count:
        world.awaiting.expire(TIMEOUT_S + 0.002)
    assert count.calls < 50
    assert [is_late(future) for future in waiting[:5]] == [True] * 3 + [False] * 2
    assert world.awaiting.deadline_s == pytest.approx(TIMEOUT_S + 0.003)
    world.awaiting.close()


async def test_each_waiter_has_its_own_time_and_is_answered_with_the_batch_that_it_waits_for() -> None:
    world = World()
    first = world.append(1, 0.0)
    early, late = world.join(1.0), world.join(4.0)
    second = world.append(2, 4.5)
    world.awaiting.expire(TIMEOUT_S)
    assert [is_late(one) for one in (first, early, late, second)] == [True, False, False, False]
    world.awaiting.expire(TIMEOUT_S + 1.0)
    assert [is_late(one) for one in (early, late, second)] == [True, False, False]
    world.partition.log.log_end_offset = 2
    world.partition.commit(1)
    assert (late.result(), second.done()) == ("joined", False)
    assert world.awaiting.deadline_s == TIMEOUT_S + 4.5
    world.partition.commit(2)
    assert second.result() == 2
    assert world.awaiting.deadline_s == NEVER
    assert world.awaiting.bytes == 0
    assert world.join(6.0).result() == "joined"


async def test_who_comes_late_for_an_earlier_batch_is_answered_with_that_and_has_its_own_time() -> None:
    world = World()
    first, second = world.append(1, 0.0), world.append(2, 1.0)
    early, late = world.waiter(), world.waiter()
    world.awaiting.join_at(1, [(early, "first")], 2.0)
    world.awaiting.join_at(2, [(late, "second")], 2.0)
    world.awaiting.expire(TIMEOUT_S)
    assert is_late(first)
    world.partition.log.log_end_offset = 2
    world.partition.commit(1)
    assert (early.result(), second.done(), late.done()) == ("first", False, False)
    assert world.awaiting.deadline_s == TIMEOUT_S + 1.0
    world.awaiting.expire(TIMEOUT_S + 1.0)
    assert [is_late(second), is_late(late)] == [True, False]
    world.awaiting.expire(TIMEOUT_S + 2.0)
    assert is_late(late)
    assert world.awaiting.deadline_s == NEVER
    behind = world.waiter()
    world.awaiting.join_at(1, [(behind, "committed")], 9.0)
    assert behind.result() == "committed"
    world.awaiting.close()
