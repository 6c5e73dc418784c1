"""The coordinator over the real runtime and a partition in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from broker.coordination.runtime import CoordinatorRuntime, RuntimeConfig
from broker.coordination.shard import CoordinatorRecord, Now, Ticket
from broker.coordination.transactions.config import TransactionConfig
from broker.coordination.transactions.coordinator import TransactionCoordinator
from broker.coordination.transactions.records import decode_value, decoding_cost, encode_value, transaction_record
from broker.coordination.transactions.transaction_shard import TransactionShard
from broker.coordination.transactions.values import (
    LAST_EPOCH,
    NO_PRODUCER,
    EndTransaction,
    InitProducer,
    MarkersToWrite,
    Producer,
    Transaction,
    TransactionFilter,
    TransactionState,
)
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import INLINE_COST, Pacer
from kraft.image.metadata import MetadataImage
from kraft.topic_names import GROUP_TOPIC, TRANSACTION_TOPIC
from records.batch import read_header
from tests.broker.coordinated_partition import MemoryPartition
from tests.broker.topic_images import image_of
from tests.common.call_count import counted_calls
from tests.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time
HELD_S = 0.1


class Ids:
    def __init__(self) -> None:
        self.newest = 100

    async def take(self) -> int:
        await asyncio.sleep(0)
        self.newest += 1
        return self.newest


class World:
    def __init__(self) -> None:
        self.image = image_of(TRANSACTION_TOPIC, GROUP_TOPIC, "flights")
        self.runtime = CoordinatorRuntime(LoopClock(), RuntimeConfig(), Pacer())
        self.shards: list[TransactionShard] = []
        self.coordinator = TransactionCoordinator(
            self.runtime, Ids(), TransactionConfig(), lambda: self.image, lambda: 2, held_s=HELD_S
        )
        self._begun: list[object] = []
        self.runtime.host(TRANSACTION_TOPIC, self.make, lambda index, epoch, what: self._begun.append(what))
        self.partition = MemoryPartition(TRANSACTION_TOPIC)

    def make(self, index: int) -> TransactionShard:
        self.shards.append(self.coordinator.make_shard(index))
        return self.shards[-1]

    async def elected(self) -> None:
        await self.serves(self.partition)

    async def serves(self, partition: MemoryPartition) -> None:
        self.runtime.elected(partition)
        async with asyncio.timeout(5):
            while partition.index not in self.runtime.active(TRANSACTION_TOPIC):  # noqa: ASYNC110  a load has no event
                await asyncio.sleep(0.001)

    async def put(self, index: int, transactional_id: str, transaction: Transaction) -> None:
        record = transaction_record(transactional_id, encode_value(transaction, flexible=True))

        def put(_: TransactionShard, __: Now, ___: Ticket) -> Decision[CoordinatorRecord, None]:
            return Decision(None, [record])

        await self.runtime.write(TRANSACTION_TOPIC, index, put)

    def acts(self) -> list[MarkersToWrite]:
        """Those that have begun since the last call."""
        begun, self._begun = self._begun, []
        return [act for act in begun if isinstance(act, MarkersToWrite)]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.elected()
    yield made
    await made.coordinator.stop()
    await made.runtime.stop()


async def code_of(awaitable: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        await awaitable
    return caught.value.code


async def begun(world: World, transactional_id: str = "t") -> Producer:
    producer = await world.coordinator.init_producer_id(InitProducer(transactional_id, 60_000))
    await world.coordinator.add_partitions(transactional_id, *producer, {"flights": (0,)}, new_protocol=True)
    return producer


async def completed(world: World, transactional_id: str, state: TransactionState) -> Transaction:
    async with asyncio.timeout(5):
        while (found := await world.coordinator.describe(transactional_id)).state is not state:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return found


async def test_a_whole_transaction(world: World) -> None:
    producer = await begun(world)
    verify = world.coordinator.verify_partitions
    assert await verify("t", *producer, [("flights", 0), ("flights", 1)]) == (
        ErrorCode.NONE,
        ErrorCode.TRANSACTION_ABORTABLE,
    )
    bumped = await world.coordinator.end(EndTransaction("t", *producer, True, True))
    assert bumped == Producer(producer.producer_id, producer.producer_epoch + 1)
    (markers,) = world.acts()
    add = world.coordinator.add_partitions("t", *bumped, {"flights": (0,)}, new_protocol=True)
    assert await code_of(add) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.coordinator.markers_written(0, 1, markers)
    await completed(world, "t", TransactionState.COMPLETE_COMMIT)
    await world.coordinator.add_partitions("t", *bumped, {"flights": (0,)}, new_protocol=True)


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.09])
async def test_a_client_whose_markers_are_being_written_is_held_until_they_are(world: World, after_s: float) -> None:
    producer = await begun(world)
    await world.coordinator.end(EndTransaction("t", *producer, True, False))
    (markers,) = world.acts()
    clock = asyncio.get_running_loop().time
    began = clock()
    add = world.coordinator.add_partitions("t", *producer, {"flights": (0,)}, new_protocol=False)
    adding = asyncio.ensure_future(add)
    await asyncio.sleep(after_s)
    assert not adding.done()
    world.coordinator.markers_written(0, 1, markers)
    await adding
    assert clock() - began == pytest.approx(after_s, abs=0.005)
    assert (await world.coordinator.describe("t")).state is TransactionState.ONGOING


async def test_a_client_whose_markers_cannot_be_written_is_answered_after_a_short_while(world: World) -> None:
    producer = await begun(world)
    await world.coordinator.end(EndTransaction("t", *producer, True, False))
    clock = asyncio.get_running_loop().time
    began = clock()
    adds = [
        world.coordinator.add_partitions("t", *producer, {"flights": (0,)}, new_protocol=False) for _ in range(3)
    ]  # fmt: skip
    found = await asyncio.gather(*adds, return_exceptions=True)
    codes = [error.code for error in found if isinstance(error, ProtocolError)]
    assert codes == [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
    assert clock() - began == pytest.approx(HELD_S, abs=0.005)


async def test_nothing_is_answered_before_it_is_committed(world: World) -> None:
    producer = await begun(world)
    world.partition.auto_commit = False
    end = asyncio.ensure_future(world.coordinator.end(EndTransaction("t", *producer, True, True)))
    await asyncio.sleep(0.05)
    assert not end.done()
    world.partition.commit()
    assert (await end).producer_epoch == 1


async def test_init_over_an_open_transaction_is_refused_once_its_abort_is_committed(world: World) -> None:
    await begun(world)
    world.partition.auto_commit = False
    init = asyncio.ensure_future(world.coordinator.init_producer_id(InitProducer("t", 60_000)))
    await asyncio.sleep(0.05)
    assert not init.done()
    world.partition.commit()
    assert await code_of(init) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.partition.auto_commit = True
    world.coordinator.markers_written(0, 1, world.acts()[0])
    await completed(world, "t", TransactionState.COMPLETE_ABORT)
    assert (await world.coordinator.init_producer_id(InitProducer("t", 60_000))).producer_epoch == 2


async def test_two_producers_that_begin_at_once_have_one_id_and_two_epochs(world: World) -> None:
    inits = [world.coordinator.init_producer_id(InitProducer("t", 60_000)) for _ in range(2)]
    one, other = await asyncio.gather(*inits)
    assert one.producer_id == other.producer_id
    assert {one.producer_epoch, other.producer_epoch} == {0, 1}


async def test_a_completion_that_the_log_refuses_is_tried_again(world: World) -> None:
    producer = await begun(world)
    await world.coordinator.end(EndTransaction("t", *producer, False, True))
    (markers,) = world.acts()
    world.partition.refuse = ErrorCode.KAFKA_STORAGE_ERROR
    world.coordinator.markers_written(0, 1, markers)
    await asyncio.sleep(0.5)
    assert (await world.coordinator.describe("t")).state is TransactionState.PREPARE_ABORT
    world.partition.refuse = None
    await completed(world, "t", TransactionState.COMPLETE_ABORT)


async def test_a_completion_whose_fate_is_unknown_ends_no_later_transaction(world: World) -> None:
    """It is tried again, and the producer's next transaction, of the same epoch in the older protocol, is prepared
    meanwhile."""
    producer = await world.coordinator.init_producer_id(InitProducer("t", 60_000))

    async def prepared(partition: int) -> list[MarkersToWrite]:
        where = {"flights": (partition,)}
        await world.coordinator.add_partitions("t", *producer, where, new_protocol=False)
        await world.coordinator.end(EndTransaction("t", *producer, True, False))
        return world.acts()

    (first,) = await prepared(0)
    world.partition.auto_commit = False
    world.coordinator.markers_written(0, 1, first)
    await asyncio.sleep(RuntimeConfig().host.commit_timeout_s + 0.05)
    assert "t" not in world.shards[0].open, "its record is in the log"
    world.partition.auto_commit = True
    world.partition.commit()
    (second,) = await prepared(1)
    assert second[1:3] == first[1:3]
    await asyncio.sleep(1.0)
    assert (await world.coordinator.describe("t")).state is TransactionState.PREPARE_COMMIT
    world.coordinator.markers_written(0, 1, second)
    await completed(world, "t", TransactionState.COMPLETE_COMMIT)


async def test_a_completion_of_an_earlier_leader_epoch_is_dropped(world: World) -> None:
    producer = await begun(world)
    await world.coordinator.end(EndTransaction("t", *producer, True, True))
    (markers,) = world.acts()
    world.coordinator.markers_written(0, 0, markers)
    await asyncio.sleep(0.5)
    assert (await world.coordinator.describe("t")).state is TransactionState.PREPARE_COMMIT


async def test_a_partition_that_commits_late_delays_no_completions_of_others(world: World) -> None:
    """Its writes fail after seconds, when followers have been silent for that long."""
    await world.serves(MemoryPartition(TRANSACTION_TOPIC, 1))
    decided = Transaction(7, 1, 60_000, TransactionState.PREPARE_COMMIT, {"flights": (0,)}, 5, 5, version=2)
    for index, name in ((0, "late"), (1, "one"), (1, "other")):
        await world.put(index, name, decided)
    acts = {one.transactional_id: one for one in world.acts()}
    world.partition.auto_commit = False
    end = world.partition.log.log_end_offset
    world.coordinator.markers_written(0, 1, acts["late"])
    for name in ("one", "other"):
        assert name in world.shards[1].open
        world.coordinator.markers_written(1, 1, acts[name])
        await asyncio.sleep(0.05)
        assert name not in world.shards[1].open
    assert world.partition.log.log_end_offset == end + 1, "it waits in the late partition"
    world.partition.auto_commit = True
    world.partition.commit()


async def test_a_partition_that_commits_late_delays_no_fences_and_completions_of_others(world: World) -> None:
    world.image = image_of(TRANSACTION_TOPIC, partitions=2)
    await world.serves(MemoryPartition(TRANSACTION_TOPIC, 1))
    start_ms = LoopClock().wall_ms()
    last = Transaction(7, LAST_EPOCH, 5_000, TransactionState.ONGOING, {"flights": (0,)}, start_ms, start_ms, version=2)
    for index, name in ((0, "late"), (1, "t")):
        await world.put(index, name, last)
    world.partition.auto_commit = False
    end = world.partition.log.log_end_offset
    while world.partition.log.log_end_offset == end:  # noqa: ASYNC110  the shard looks for timeouts from time to time
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    fenced = world.shards[1].open["t"]
    assert fenced is not None and fenced.state is TransactionState.PREPARE_ABORT
    (act,) = [one for one in world.acts() if one.transactional_id == "t"]
    world.coordinator.markers_written(1, 1, act)
    await asyncio.sleep(0.05)
    assert "t" not in world.shards[1].open
    world.partition.auto_commit = True
    world.partition.commit()


async def test_timeout_at_the_last_epoch_draws_an_id(world: World) -> None:
    partitions = {"flights": (0,)}
    start_ms = LoopClock().wall_ms()
    last = Transaction(7, LAST_EPOCH, 20_000, TransactionState.ONGOING, partitions, start_ms, start_ms, version=2)
    await world.put(0, "t", last)
    await asyncio.sleep(40)
    found = await world.coordinator.describe("t")
    assert (found.state, found.producer_epoch) == (TransactionState.PREPARE_ABORT, LAST_EPOCH + 1)
    world.coordinator.markers_written(0, 1, world.acts()[-1])
    assert (await completed(world, "t", TransactionState.COMPLETE_ABORT)).producer == Producer(101, 0)


async def test_a_new_leader_has_it_all_and_asks_for_the_markers(world: World) -> None:
    producer = await begun(world)
    await world.coordinator.end(EndTransaction("t", *producer, True, True))
    asked = world.acts()
    world.partition.leader_epoch = 2
    await world.elected()
    await asyncio.sleep(0.1)
    assert len(world.shards) == 2
    (again,) = world.acts()
    assert [again._replace(serial=asked[0].serial)] == asked
    assert again.serial != asked[0].serial
    assert (await world.coordinator.describe("t")).state is TransactionState.PREPARE_COMMIT


async def test_errors_without_a_shard(world: World) -> None:
    describe = world.coordinator.describe
    assert await code_of(describe("unknown")) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert await code_of(describe("")) is ErrorCode.INVALID_REQUEST
    too_long = InitProducer("t", 900_001)
    world.runtime.resigned(TRANSACTION_TOPIC, 0)
    assert await code_of(describe("t")) is ErrorCode.NOT_COORDINATOR
    assert await code_of(world.coordinator.init_producer_id(too_long)) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    world.image = MetadataImage()
    assert await code_of(describe("t")) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_decisions_about_large_transactions_are_spread_over_turns_of_the_loop(world: World) -> None:
    """However many a leader asks for at a time: each encodes a record with all partitions of its transaction."""
    now_ms = LoopClock().wall_ms()
    partitions = {"gates": tuple(range(10_000))}
    held = Transaction(7, 0, 60_000, TransactionState.ONGOING, partitions, now_ms, now_ms, version=2)
    names = [f"t{number}" for number in range(12)]
    for name in names:
        await world.put(0, name, held)
    begin = len(world.partition.log.batches)
    producer = Producer(7, 0)
    await asyncio.gather(
        *(world.coordinator.add_partitions(name, *producer, {"flights": (0,)}, new_protocol=True) for name in names)
    )
    counts = [read_header(batch, 0).count for batch in world.partition.log.batches[begin:]]
    assert (sum(counts), max(counts)) == (12, counts[0])
    assert counts[0] * 1_000 <= INLINE_COST + 1_000, "each takes about a millisecond"
    for name in names:
        assert (await world.coordinator.describe(name)).partition_count == 10_001
    begin = len(world.partition.log.batches)
    await asyncio.gather(*(world.coordinator.end(EndTransaction(name, *producer, True, True)) for name in names))
    counts = [read_header(batch, 0).count for batch in world.partition.log.batches[begin:]]
    assert (sum(counts), max(counts)) == (12, counts[0])
    assert counts[0] * 1_000 <= INLINE_COST + 1_000


async def test_what_joins_first_is_spread_over_turns_of_the_loop_too(world: World) -> None:
    names = [f"t{number}" for number in range(12)]
    producers = [await world.coordinator.init_producer_id(InitProducer(name, 60_000)) for name in names]
    begin = len(world.partition.log.batches)
    partitions = {f"a-topic-with-a-name-of-30-{topic:04}": (0,) for topic in range(5_000)}
    await asyncio.gather(
        *(
            world.coordinator.add_partitions(name, *producer, partitions, new_protocol=True)
            for name, producer in zip(names, producers, strict=True)
        )
    )
    counts = [read_header(batch, 0).count for batch in world.partition.log.batches[begin:]]
    assert (sum(counts), max(counts)) == (12, 1), "each takes milliseconds"


async def test_partitions_that_waited_for_the_transaction_before_join_in_turns(world: World) -> None:
    """Old clients wait at the coordinator. Markers of many transactions may be written at once."""
    names = [f"t{number}" for number in range(12)]
    producers = [await begun(world, name) for name in names]
    for name, producer in zip(names, producers, strict=True):
        await world.coordinator.end(EndTransaction(name, *producer, True, False))
    acts = world.acts()
    assert len(acts) == len(names)
    begin = len(world.partition.log.batches)
    partitions = {f"a-topic-with-a-name-of-30-{topic:04}": (0,) for topic in range(5_000)}
    joining = [
        asyncio.ensure_future(world.coordinator.add_partitions(name, *producer, partitions, new_protocol=False))
        for name, producer in zip(names, producers, strict=True)
    ]
    await asyncio.sleep(HELD_S / 2)
    for act in acts:
        world.coordinator.markers_written(0, 1, act)
    await asyncio.gather(*joining)
    completions, *counts = [read_header(batch, 0).count for batch in world.partition.log.batches[begin:]]
    assert completions == len(names)
    assert (sum(counts), max(counts)) == (12, 1)


async def test_what_a_load_has_left_is_decoded_in_turns_of_its_own(world: World) -> None:
    now_ms = LoopClock().wall_ms()
    partitions = {"gates": tuple(range(17_000))}
    held = Transaction(7, 0, 60_000, TransactionState.ONGOING, partitions, now_ms, now_ms, version=2)
    names = [f"t{number}" for number in range(12)]
    for name in names:
        await world.put(0, name, held)
    world.partition.leader_epoch = 2
    await world.elected()
    work: list[tuple[int, int]] = [(0, 0)]  # values that were decoded and encoded by the end of each turn

    def look() -> None:
        work.append((decoded.calls, encoded.calls))
        if encoded.calls < len(names):
            asyncio.get_running_loop().call_soon(look)

    with counted_calls(decode_value) as decoded, counted_calls(encode_value) as encoded:
        look()
        await asyncio.gather(
            *(world.coordinator.add_partitions(name, 7, 0, {"flights": (0,)}, new_protocol=True) for name in names)
        )
    work.append((decoded.calls, encoded.calls))
    assert decoded.calls > 6
    assert encoded.calls == len(names)
    turns = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(work)]
    assert max(count for count, _ in turns) <= 2, "one for a request, and one by the shard's own timer"
    assert max(count for _, count in turns) <= 3, "each is worth less than half of a turn"


async def test_list(world: World) -> None:
    await begun(world, "a")
    await begun(world, "lkc-abc123_b")
    found = await world.coordinator.list_transactions(TransactionFilter(prefix="lkc-abc123_"))
    assert [(one.transactional_id, one.state) for one in found] == [("lkc-abc123_b", TransactionState.ONGOING)]
    assert await world.coordinator.end(EndTransaction("a", 101, 0, True, False)) == NO_PRODUCER


async def listed(world: World, wanted: TransactionFilter) -> list[str]:
    return [one.transactional_id for one in await world.coordinator.list_transactions(wanted)]


async def test_a_list_by_pattern(world: World) -> None:
    names = ["orders-1", "orders-2", "lkc-abc123_orders-3"]
    for name in names:
        await world.coordinator.init_producer_id(InitProducer(name, 60_000))
    assert await listed(world, TransactionFilter(pattern="orders")) == [], "the whole id must match"
    assert await listed(world, TransactionFilter(pattern="orders-[13]")) == ["orders-1", "lkc-abc123_orders-3"]
    assert await listed(world, TransactionFilter(pattern="orders-.", prefix="lkc-abc123_")) == ["lkc-abc123_orders-3"]
    assert await listed(world, TransactionFilter(pattern="")) == names
    await world.coordinator.init_producer_id(InitProducer("a" * 30_000, 60_000))
    assert await listed(world, TransactionFilter(pattern="(a*)*(a*)*b")) == [], "in linear time"


async def test_a_list_by_pattern_and_duration_decodes_only_what_matches(world: World) -> None:
    now_ms = LoopClock().wall_ms()
    partitions = {"gates": tuple(range(17_000))}  # the shard itself decodes one in two milliseconds
    held = Transaction(7, 0, 60_000, TransactionState.ONGOING, partitions, now_ms, now_ms - 30_000, version=2)
    for number in range(10):
        await world.put(0, f"t{number}", held)
    world.partition.leader_epoch = 2
    await world.elected()
    with counted_calls(decoding_cost) as decoded:  # asked for each that a list decodes
        assert await listed(world, TransactionFilter(pattern="other.*", longer_than_ms=0)) == []
        assert decoded.calls == 0
        assert await listed(world, TransactionFilter(pattern="t[89]", longer_than_ms=20_000)) == ["t8", "t9"]
        assert decoded.calls == 2
    assert await listed(world, TransactionFilter(pattern="t[13]", longer_than_ms=60_000)) == []


async def test_ids_of_a_deleted_tenant_are_removed_once_their_transactions_have_ended(world: World) -> None:
    gone, stays = "lkc-aaaaaa_t", "lkc-bbbbbb_t"
    producers = {
        name: await world.coordinator.init_producer_id(InitProducer(name, 60_000)) for name in (gone, f"{gone}2", stays)
    }
    await world.coordinator.add_partitions(gone, *producers[gone], {"flights": (0,)}, new_protocol=True)

    def remove() -> Awaitable[int]:
        return world.coordinator.remove_keys(0, ("lkc-aaaaaa_",), 10)

    assert await remove() == 2
    assert (await world.coordinator.describe(gone)).state is TransactionState.PREPARE_ABORT
    assert await code_of(remove()) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.coordinator.markers_written(0, 1, world.acts()[-1])
    await completed(world, gone, TransactionState.COMPLETE_ABORT)
    assert (await remove(), await remove()) == (1, 0)
    assert await code_of(world.coordinator.describe(gone)) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert (await world.coordinator.describe(stays)).producer == producers[stays]


@pytest.mark.parametrize("epoch", [3, LAST_EPOCH])
async def test_a_deleted_tenants_transaction_ends_before_its_timeout(world: World, epoch: int) -> None:
    """Also where its fence needs a new producer id."""
    now_ms = LoopClock().wall_ms()
    held = Transaction(7, epoch, 900_000, TransactionState.ONGOING, {"flights": (0,)}, now_ms, now_ms, version=2)
    await world.put(0, "lkc-aaaaaa_t", held)
    await world.put(0, "lkc-bbbbbb_t", held)
    looks, left = 0, True
    while left:
        looks += 1
        with suppress(ProtocolError):  # it waits for a producer id, and for its markers
            left = await world.coordinator.remove_keys(0, ("lkc-aaaaaa_",), 10) > 0
        for markers in world.acts():
            world.coordinator.markers_written(0, 1, markers)
        await asyncio.sleep(0.1)
        assert looks < 10, "it does not wait for the timeout of 15 minutes"
    assert (await world.coordinator.describe("lkc-bbbbbb_t")).state is TransactionState.ONGOING
