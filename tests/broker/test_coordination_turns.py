"""What many shards, or many requests to one, want done at the same time: the runtime does it in turns of the loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from broker.coordination.runtime import SHARDS_AT_ONCE, TURN_S
from broker.coordination.shard import Now
from tests.broker.coordinated_partition import MemoryPartition
from tests.broker.test_coordination_runtime import QUICK, TOPIC, Register, World, eventually, put

pytestmark = pytest.mark.virtual_time


async def test_reads_that_wait_are_answered_some_at_a_time() -> None:
    world = World(replace(QUICK, stale_reads_at_once=10))
    await world.elected()
    world.partition.fresh = False
    turn, turns = [0], list[int]()

    def note(shard: Register, _: Now) -> int:
        turns.append(turn[0])
        return len(turns)

    reads = [asyncio.ensure_future(world.runtime.read(TOPIC, 0, note)) for _ in range(35)]
    await asyncio.sleep(0.02)
    assert not turns
    world.partition.fresh = True
    while not all(read.done() for read in reads):
        turn[0] += 1
        await asyncio.sleep(0)
    assert [read.result() for read in reads] == list(range(1, 36)), "in the order in which they came"
    assert sorted(Counter(turns).values()) == [5, 10, 10, 10]
    await world.runtime.stop()


async def test_shards_that_are_due_together_take_turns() -> None:
    """Each may work for milliseconds: a few share a callback, and one whose work takes long has it for itself."""
    world = World()
    count = 3 * SHARDS_AT_ONCE
    partitions = [MemoryPartition(TOPIC, index=index) for index in range(count)]
    for partition in partitions:
        world.runtime.elected(partition)
    await eventually(lambda: len(world.runtime.active(TOPIC)) == count)
    for took_s, most in ((0.0, SHARDS_AT_ONCE), (2 * TURN_S, 1)):
        turns: list[int] = []
        for shard in world.shards:
            shard.turns, shard.takes_s = turns, took_s
        async with asyncio.timeout(5):
            for index in range(count):
                await world.runtime.write(TOPIC, index, put(b"boom"))
            while any(partition.log.log_end_offset % 2 for partition in partitions):
                turns.append(0)
                await asyncio.sleep(0)
        assert sum(turns) == count and max(turns) == most
    assert all(shard.spared_for_s < 0 for shard in world.shards), "no member counts as spared for that"
    await world.runtime.stop()
