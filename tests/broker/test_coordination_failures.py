"""Failures that no one expects: each costs one shard of the runtime, which is loaded again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from common.errors import ErrorCode
from tests.broker.coordinated_partition import MemoryPartition
from tests.broker.test_coordination_runtime import TOPIC, World, code_of, eventually, keys, put, wait_for

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.runtime.stop()


async def test_a_timer_that_fails_costs_its_own_shard_alone(world: World) -> None:
    raised: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
    await world.elected()
    other = MemoryPartition(index=1)
    world.runtime.elected(other)
    await eventually(lambda: world.runtime.active(TOPIC) == [0, 1])
    await world.runtime.write(TOPIC, 0, put(b"a"))
    world.shards[0].deadline = world.shards[1].deadline = asyncio.get_running_loop().time() + 0.05
    world.shards[0].fails = True
    waiting = asyncio.ensure_future(world.runtime.write_or_park(TOPIC, 0, wait_for(b"b")))
    await world.runtime.write(TOPIC, 1, put(b"boomerang"))
    assert await code_of(waiting) is ErrorCode.NOT_COORDINATOR
    await eventually(lambda: other.log.log_end_offset == 2)
    await eventually(lambda: world.runtime.active(TOPIC) == [0, 1])
    assert await world.runtime.read(TOPIC, 0, keys) == [b"a"]
    await world.runtime.write(TOPIC, 0, put(b"boom"))
    await eventually(lambda: world.partition.log.log_end_offset == 3)
    assert [str(error) for error in raised] == ["a bug"]


class FailingOnce(MemoryPartition):
    """Its first append after `fails` is set fails in an unknown way."""

    fails = False

    def append_records(self, batch: bytearray, leader_epoch: int, now_ms: int) -> int:
        if self.fails:
            self.fails = False
            raise RuntimeError("a bug")
        return super().append_records(batch, leader_epoch, now_ms)


async def test_an_append_that_fails_as_no_one_expects_drops_what_was_decided(world: World) -> None:
    raised: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
    world.partition = partition = FailingOnce()
    await world.elected()
    await world.runtime.write(TOPIC, 0, put(b"a"))
    partition.fails = True
    assert await code_of(world.runtime.write(TOPIC, 0, put(b"b"))) is ErrorCode.NOT_COORDINATOR
    await eventually(lambda: world.runtime.active(TOPIC) == [0])
    assert await world.runtime.read(TOPIC, 0, keys) == [b"a"]
    assert [str(error) for error in raised] == ["a bug"]
