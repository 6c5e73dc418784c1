"""A log that rejects batches: no transaction is forgotten that such a batch does not concern."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from broker.coordination.transactions.values import EndTransaction, InitProducer
from common.errors import ErrorCode, ProtocolError
from kraft.topic_names import TRANSACTION_TOPIC
from tests.broker.coordinated_partition import MemoryPartition
from tests.broker.test_transactions_coordinator import World, begun

pytestmark = pytest.mark.virtual_time
ROOMY = 1 << 30
TIMEOUT_MS = 30_000
SEEDS = 40


class FillingLog(MemoryPartition):
    """It has room for so many more batches, which shows when one is appended: other partitions take it, too."""

    room = ROOMY

    def append_records(self, batch: bytearray, leader_epoch: int, now_ms: int) -> int:
        if self.room <= 0:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR)
        self.room -= 1
        return super().append_records(batch, leader_epoch, now_ms)


class Filling(World):
    def __init__(self) -> None:
        super().__init__()
        self.log = self.partition = FillingLog(TRANSACTION_TOPIC)

    async def elected_again(self) -> None:
        self.log.depose()
        self.runtime.resigned(TRANSACTION_TOPIC, 0)
        self.acts()
        self.log.is_leader = True
        self.log.leader_epoch += 1
        self.runtime.elected(self.log)
        while not self.runtime.active(TRANSACTION_TOPIC):  # noqa: ASYNC110  a load has no event
            await asyncio.sleep(0)

    async def stop(self) -> None:
        await self.coordinator.stop()
        await self.runtime.stop()

    async def state(self, transactional_id: str) -> str:
        return (await self.coordinator.describe(transactional_id)).state.title


@pytest.fixture
async def world() -> AsyncIterator[Filling]:
    made = Filling()
    await made.elected()
    yield made
    await made.stop()


async def prepared(world: Filling, transactional_id: str) -> None:
    producer = await begun(world, transactional_id)
    await world.coordinator.end(EndTransaction(transactional_id, *producer, commit=True, new_protocol=True))


async def test_markers_are_asked_for_though_the_batch_of_that_turn_is_rejected(world: Filling) -> None:
    """A new leader has them asked for by a request about the transaction, in the turn of another client's."""
    await prepared(world, "decided")
    await begun(world, "other")
    await world.elected_again()
    world.log.room = 0
    other = world.coordinator.init_producer_id(InitProducer("other", 60_000))
    outcomes = await asyncio.gather(other, world.coordinator.describe("decided"), return_exceptions=True)
    assert all(isinstance(outcome, ProtocolError) for outcome in outcomes)
    world.log.room = ROOMY
    await asyncio.sleep(1)
    assert [act.transactional_id for act in world.acts()] == ["decided"]


async def test_an_overdue_transaction_is_aborted_though_batches_before_its_own_were_rejected(world: Filling) -> None:
    """Each record fills a batch."""
    topics = {f"{'x' * 230}{number:05d}": (0,) for number in range(2_400)}
    for name in "abc":
        producer = await world.coordinator.init_producer_id(InitProducer(name, TIMEOUT_MS))
        await world.coordinator.add_partitions(name, *producer, topics, new_protocol=True)
    await asyncio.sleep(TIMEOUT_MS / 1000 - 1)
    world.log.room = 1
    await asyncio.sleep(11.5)
    world.log.room = ROOMY
    await asyncio.sleep(60)
    assert [await world.state(name) for name in "abc"] == ["PrepareAbort"] * 3


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_is_decided_or_overdue_goes_on_when_the_log_has_room_again(seed: int) -> None:
    rng, world = random.Random(seed), Filling()
    await world.elected()
    decided, overdue = [f"d{number}" for number in range(6)], [f"o{number}" for number in range(6)]
    for name in decided:
        await prepared(world, name)
    for name in overdue:
        producer = await world.coordinator.init_producer_id(InitProducer(name, TIMEOUT_MS))
        await world.coordinator.add_partitions(name, *producer, {"flights": (0,)}, new_protocol=True)
    await world.elected_again()
    asked = set[str]()

    async def another(name: str) -> None:
        with suppress(ProtocolError):
            if rng.random() < 0.5:
                await world.coordinator.init_producer_id(InitProducer(name, 60_000))
            else:
                await world.coordinator.describe(rng.choice(decided))

    async with asyncio.TaskGroup() as clients:
        for turn in range(60):
            world.log.room = rng.choice((0, 1, ROOMY))
            for _ in range(rng.randint(0, 3)):
                clients.create_task(another(f"c{turn % 5}"))
            await asyncio.sleep(rng.choice((0, 0.001, 1)))
            asked |= {act.transactional_id for act in world.acts()}
        world.log.room = ROOMY
    await asyncio.sleep(120)
    asked |= {act.transactional_id for act in world.acts()}
    assert asked >= {*decided, *overdue}
    assert {await world.state(name) for name in overdue} == {"PrepareAbort"}
    await world.stop()


async def test_a_read_in_slices_shows_nothing_that_is_taken_back(world: Filling) -> None:
    await begun(world, "t")
    before = await world.coordinator.describe("t")

    def slowly(shard, now):  # type: ignore[no-untyped-def]
        found = shard.committed.get("t")
        yield 1_000_000
        return found

    held = await world.runtime.read_slowly(TRANSACTION_TOPIC, 0, slowly, "test")
    world.log.room = 0
    fencing = asyncio.ensure_future(world.coordinator.init_producer_id(InitProducer("t", 60_000)))
    reading = asyncio.ensure_future(world.runtime.read_slowly(TRANSACTION_TOPIC, 0, slowly, "test"))
    outcomes = await asyncio.gather(fencing, reading, return_exceptions=True)
    assert all(isinstance(outcome, ProtocolError) for outcome in outcomes)
    world.log.room = ROOMY
    assert await world.coordinator.describe("t") == before
    assert await world.runtime.read_slowly(TRANSACTION_TOPIC, 0, slowly, "test") == held
