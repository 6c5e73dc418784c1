"""Shards that wait at followers: what they hold, when they serve, and when they begin anew."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from broker.coordination.standby import StandbyLimits
from records.builder import build_batch
from records.record import Record
from tests.broker.coordinated_partition import MemoryPartition
from tests.broker.test_coordination_runtime import TOPIC, World, eventually, keys, put

pytestmark = pytest.mark.virtual_time


def append(partition: MemoryPartition, *names: bytes, committed: bool = True) -> None:
    """As a follower does; its high watermark follows."""
    partition.auto_commit = committed
    partition.is_leader = True
    partition.append_records(build_batch([Record(0, 1, name, b"v" * 10, ()) for name in names]), 1, 0)
    partition.is_leader = False


class Following(World):
    def __init__(self, bytes_max: int = 1 << 20) -> None:
        super().__init__()
        self.followed = [self.partition]
        self.partition.is_leader = False
        self.runtime.keep_standbys(lambda: list(self.followed), StandbyLimits(bytes_max, 0.005))

    def has(self, *names: bytes) -> bool:
        return bool(self.shards) and sorted(self.shards[-1].values) == sorted(names)

    async def lead(self) -> int:
        """Elected; how many regions of the log it took to serve."""
        before = len(self.partition.regions)
        self.followed.clear()
        self.partition.is_leader = self.partition.auto_commit = True
        self.partition.leader_epoch += 1
        await self.elected()
        return len(self.partition.regions) - before


@pytest.fixture
async def world() -> AsyncIterator[Following]:
    made = Following()
    yield made
    await made.runtime.stop()


async def test_a_follower_serves_without_reading_what_it_has_followed(world: Following) -> None:
    append(world.partition, b"a", b"b")
    await eventually(lambda: world.has(b"a", b"b"))
    append(world.partition, b"c")
    await eventually(lambda: world.has(b"a", b"b", b"c"))
    assert await world.lead() == 0
    assert len(world.shards) == 1
    assert world.shards[0].loads == 1
    assert sorted(await world.runtime.read(TOPIC, 0, keys)) == [b"a", b"b", b"c"]
    assert await world.runtime.write(TOPIC, 0, put(b"d")) == 4


async def test_only_what_is_committed_is_followed_and_the_rest_is_replayed_on_election(world: Following) -> None:
    append(world.partition, b"a")
    append(world.partition, b"late", committed=False)
    await eventually(lambda: world.has(b"a"))
    looks = len(world.partition.regions)
    assert not world.has(b"a", b"late")
    assert await world.lead() == 1
    assert looks >= 1
    world.partition.commit()
    assert sorted(await world.runtime.read(TOPIC, 0, keys)) == [b"a", b"late"]
    assert len(world.shards) == 1


async def test_a_log_that_was_cut_is_followed_anew(world: Following) -> None:
    append(world.partition, b"a", b"b")
    await eventually(lambda: world.has(b"a", b"b"))
    world.partition.log.batches.clear()
    world.partition.log.log_end_offset = world.partition.high_watermark = 0
    world.partition.log.generation += 1
    append(world.partition, b"c", b"d", b"e")
    await eventually(lambda: world.has(b"c", b"d", b"e"))
    world.partition.log.generation += 1  # not seen before the election
    await world.lead()
    assert sorted(await world.runtime.read(TOPIC, 0, keys)) == [b"c", b"d", b"e"]
    assert len(world.shards) == 3


async def test_what_takes_too_much_memory_is_loaded_when_it_is_led() -> None:
    world = Following(bytes_max=15)
    append(world.partition, b"a", b"b")
    await eventually(lambda: len(world.shards) == 1 and world.has(b"a", b"b"))
    append(world.partition, b"c")
    assert await world.lead() > 0
    assert world.runtime.standby_bytes == 0
    assert sorted(await world.runtime.read(TOPIC, 0, keys)) == [b"a", b"b", b"c"]
    assert len(world.shards) == 2
    await world.runtime.stop()


async def test_a_partition_that_went_away_is_forgotten(world: Following) -> None:
    append(world.partition, b"a")
    await eventually(lambda: world.has(b"a") and world.runtime.standby_bytes > 0)
    world.followed.clear()
    await eventually(lambda: world.runtime.standby_bytes == 0)


async def test_an_election_while_the_standby_catches_up_takes_it_over() -> None:
    world = Following()
    for number in range(2_000):
        append(world.partition, b"k%d" % (number % 700))
    await eventually(lambda: bool(world.shards) and len(world.shards[0].values) > 10)
    await world.lead()
    assert len(await world.runtime.read(TOPIC, 0, keys)) == 700
    assert len(world.shards) == 1
    await world.runtime.stop()
