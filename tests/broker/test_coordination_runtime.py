"""The coordinator runtime over a partition in memory: what is told when, and what becomes of a shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.coordination.hosted_shard import HostLimits
from broker.coordination.loading import LoadLimits
from broker.coordination.placement import java_string_hash, partition_for
from broker.coordination.runtime import CoordinatorRuntime, RuntimeConfig
from broker.coordination.shard import PARKED, Answer, CoordinatorRecord, Now, Parked, Ticket, replay_each
from common.backoff import Backoff
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Pacer
from records.builder import build_batch
from records.record import Record
from tests.broker.coordinated_partition import MemoryPartition
from tests.virtual_time import LoopClock, stall

pytestmark = pytest.mark.virtual_time

TOPIC = "__consumer_offsets"
QUICK = HostLimits(
    commit_timeout_s=0.1,
    stale_read_timeout_s=0.1,
    stale_read_poll_s=0.01,
    starved_poll_s=0.01,
    uncommitted_bytes_max=500,
)


class Register:
    """Keys and values; `wait` parks until somebody sets the key; "boom" keys are due for removal after 50 ms."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.parked: list[tuple[bytes, Ticket]] = []
        self.answers: list[Answer] = []
        self.deadline: float | None = None
        self.loads = 0
        self.fails = False
        self.spared_for_s = 0.0
        self.turns: list[int] = []  # shards that did what was due, by turn of the loop
        self.takes_s = 0.0

    def replay(self, key: bytes, value: bytes | None) -> None:
        if key == b"garbled":
            raise ValueError("unreadable")
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def replay_all(self, records: list[tuple[bytes, bytes | None]]) -> int:
        return replay_each(self, records)

    def held_bytes(self) -> int:
        return sum(map(len, self.values.values()))

    def loaded(self, now: Now) -> list[CoordinatorRecord]:
        self.loads += 1
        return []

    def next_deadline(self) -> float | None:
        return self.deadline

    def expire(self, now: Now) -> list[CoordinatorRecord]:
        if self.fails:
            raise RuntimeError("a bug")
        self.spared_for_s = now.spared_until_s - (self.deadline or 0.0)
        self.deadline = None
        if self.turns:
            self.turns[-1] += 1
        stall(self.takes_s)
        return [CoordinatorRecord(key, None) for key in self.values if key.startswith(b"boom")]

    def take_answers(self) -> list[Answer]:
        answers, self.answers = self.answers, []
        return answers

    def put(self, key: bytes, value: bytes, now: Now) -> Decision[CoordinatorRecord, int]:
        if key.startswith(b"boom"):
            self.deadline = now.monotonic_s + 0.05
        for waited, ticket in self.parked:
            if waited == key:
                self.answers.append(Answer(ticket, value))
        self.parked = [entry for entry in self.parked if entry[0] != key]
        return Decision(len(self.values) + 1, [CoordinatorRecord(key, value)])


def put(key: bytes, value: bytes = b"v") -> Callable[[Register, Now, Ticket], Decision[CoordinatorRecord, int]]:
    return lambda shard, now, _: shard.put(key, value, now)


def wait_for(key: bytes) -> Callable[[Register, Now, Ticket], Decision[CoordinatorRecord, bytes | Parked]]:
    def decide(shard: Register, _: Now, ticket: Ticket) -> Decision[CoordinatorRecord, bytes | Parked]:
        shard.parked.append((key, ticket))
        return Decision(PARKED)

    return decide


def keys(shard: Register, _: Now) -> list[bytes]:
    return list(shard.values)


async def code_of(awaitable: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        await awaitable
    return caught.value.code


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.001)


class World:
    def __init__(self, host: HostLimits = QUICK, load: LoadLimits | None = None) -> None:
        self.leased = True
        config = RuntimeConfig(host, load or LoadLimits(), reload=Backoff(0.01, 5.0))
        self.runtime = CoordinatorRuntime(LoopClock(), config, Pacer(), lambda: self.leased)
        self.shards: list[Register] = []
        self.runtime.host(TOPIC, self.make)
        self.partition = MemoryPartition()

    def make(self, index: int) -> Register:
        self.shards.append(Register())
        return self.shards[-1]

    async def elected(self) -> None:
        self.runtime.elected(self.partition)
        await eventually(lambda: self.runtime.active(TOPIC) == [0])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.runtime.stop()


async def test_a_write_is_answered_when_it_is_committed(world: World) -> None:
    await world.elected()
    world.partition.auto_commit = False
    write = asyncio.ensure_future(world.runtime.write(TOPIC, 0, put(b"a")))
    await asyncio.sleep(0.01)
    assert world.partition.log.log_end_offset == 1
    read = asyncio.ensure_future(world.runtime.read(TOPIC, 0, keys))
    await asyncio.sleep(0.01)
    assert not write.done()
    assert not read.done()  # it has seen what is not committed
    world.partition.commit()
    assert await write == 1
    assert await read == [b"a"]


async def test_a_read_with_nothing_pending_is_answered_at_once(world: World) -> None:
    await world.elected()
    world.partition.auto_commit = False
    assert await world.runtime.read(TOPIC, 0, keys) == []


async def test_decisions_of_one_turn_share_a_batch_and_see_each_other(world: World) -> None:
    await world.elected()
    counts = await asyncio.gather(*(world.runtime.write(TOPIC, 0, put(b"k%d" % n)) for n in range(20)))
    assert counts == list(range(1, 21))
    assert len(world.partition.log.batches) == 1


async def test_a_batch_never_exceeds_the_limit() -> None:
    world = World(HostLimits(batch_bytes_max=400))
    await world.elected()
    await asyncio.gather(*(world.runtime.write(TOPIC, 0, put(b"k%d" % n, bytes(100))) for n in range(10)))
    assert len(world.partition.log.batches) == 5
    assert len(world.shards) == 1  # nothing was refused, so nothing was loaded again
    await world.runtime.stop()


async def test_a_batch_never_takes_long_to_build() -> None:
    world = World(HostLimits(batch_records_max=4))
    await world.elected()
    await asyncio.gather(*(world.runtime.write(TOPIC, 0, put(b"k%d" % n)) for n in range(10)))
    assert len(world.partition.log.batches) == 3
    await world.runtime.stop()


async def test_a_parked_request_is_answered_by_the_decision_that_settles_it(world: World) -> None:
    await world.elected()
    world.partition.auto_commit = False
    waiting = asyncio.ensure_future(world.runtime.write_or_park(TOPIC, 0, wait_for(b"a")))
    await asyncio.sleep(0.01)
    write = asyncio.ensure_future(world.runtime.write(TOPIC, 0, put(b"a", b"hello")))
    await asyncio.sleep(0.01)
    assert not waiting.done()  # its answer rests on a record that is not committed
    world.partition.commit()
    assert await waiting == b"hello"
    await write


async def test_who_does_not_lead_is_no_coordinator(world: World) -> None:
    assert await code_of(world.runtime.write(TOPIC, 0, put(b"a"))) is ErrorCode.NOT_COORDINATOR
    world.runtime.elected(world.partition)
    assert await code_of(world.runtime.read(TOPIC, 0, keys)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await world.elected()
    world.runtime.resigned(TOPIC, 0)
    assert await code_of(world.runtime.read(TOPIC, 0, keys)) is ErrorCode.NOT_COORDINATOR


async def test_a_deposed_shard_is_dropped_and_loaded_anew_in_the_next_epoch(world: World) -> None:
    await world.elected()
    await world.runtime.write(TOPIC, 0, put(b"a"))
    world.partition.auto_commit = False
    waiting = asyncio.ensure_future(world.runtime.write_or_park(TOPIC, 0, wait_for(b"x")))
    write = asyncio.ensure_future(world.runtime.write(TOPIC, 0, put(b"lost")))
    await asyncio.sleep(0.01)
    world.partition.depose()
    assert await code_of(write) is ErrorCode.NOT_COORDINATOR
    assert await code_of(waiting) is ErrorCode.NOT_COORDINATOR
    assert await code_of(world.runtime.read(TOPIC, 0, keys)) is ErrorCode.NOT_COORDINATOR
    del world.partition.log.batches[-1]  # the next leader did not have it
    world.partition.log.log_end_offset -= 1
    world.partition.leader_epoch, world.partition.is_leader, world.partition.auto_commit = 3, True, True
    await world.elected()
    assert await world.runtime.read(TOPIC, 0, keys) == [b"a"]
    assert len(world.shards) == 2


async def test_a_new_epoch_replaces_a_shard_that_was_never_deposed(world: World) -> None:
    await world.elected()
    await world.runtime.write(TOPIC, 0, put(b"a"))
    world.runtime.elected(world.partition)  # nothing new
    assert len(world.shards) == 1
    world.partition.leader_epoch = 2
    world.runtime.elected(world.partition)
    assert await code_of(world.runtime.read(TOPIC, 0, keys)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await world.elected()
    assert await world.runtime.read(TOPIC, 0, keys) == [b"a"]


class Revocable(Register):
    """A register that outlives a refused append."""

    def before(self, record: CoordinatorRecord) -> CoordinatorRecord:
        return CoordinatorRecord(record.key, self.values.get(record.key))

    def undo(self, before: list[CoordinatorRecord], now: Now) -> None:
        self.taken_back = len(before)
        for record in before:
            self.replay(*record)


def put_all(*names: bytes) -> Callable[[Register, Now, Ticket], Decision[CoordinatorRecord, int]]:
    return lambda shard, now, _: Decision(len(names), [CoordinatorRecord(name, b"new") for name in names])


async def test_an_append_that_finds_no_room_is_taken_back_and_the_shard_stays(world: World) -> None:
    shard = Revocable()
    world.runtime.host(TOPIC, lambda _: shard)
    await world.elected()
    await world.runtime.write(TOPIC, 0, put(b"a", b"old"))
    waiting = asyncio.ensure_future(world.runtime.write_or_park(TOPIC, 0, wait_for(b"never")))
    await asyncio.sleep(0)
    world.partition.refuse_append = ErrorCode.KAFKA_STORAGE_ERROR
    lost = [world.runtime.write(TOPIC, 0, put_all(b"a", b"b")), world.runtime.write(TOPIC, 0, put_all(b"a", b"c"))]
    for outcome in await asyncio.gather(*lost, return_exceptions=True):
        assert isinstance(outcome, ProtocolError)
        assert outcome.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (shard.values, shard.taken_back, shard.loads) == ({b"a": b"old"}, 4, 1)
    assert world.runtime.active(TOPIC) == [0]
    assert await world.runtime.read(TOPIC, 0, keys) == [b"a"]
    assert not waiting.done()
    world.partition.refuse_append = None
    assert await world.runtime.write(TOPIC, 0, put(b"b")) == 2
    waiting.cancel()


async def test_what_does_not_fit_one_batch_is_refused_as_a_whole_where_the_second_finds_no_room() -> None:
    world, shard = World(replace(QUICK, batch_records_max=10)), Revocable()
    world.runtime.host(TOPIC, lambda _: shard)
    await world.elected()
    world.partition.refuse_append = ErrorCode.KAFKA_STORAGE_ERROR
    assert await code_of(world.runtime.write(TOPIC, 0, put_all(*(b"%d" % at for at in range(25))))) is (
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert (shard.values, world.partition.log.batches) == ({}, [])
    world.partition.refuse_append = None
    assert await world.runtime.write(TOPIC, 0, put(b"b")) == 1
    await world.runtime.stop()


async def test_a_failed_append_drops_what_was_decided(world: World) -> None:
    await world.elected()
    await world.runtime.write(TOPIC, 0, put(b"a"))
    world.partition.refuse_append = ErrorCode.KAFKA_STORAGE_ERROR
    assert await code_of(world.runtime.write(TOPIC, 0, put(b"b"))) is ErrorCode.NOT_COORDINATOR
    world.partition.refuse_append = None
    await eventually(lambda: world.runtime.active(TOPIC) == [0])
    assert await world.runtime.read(TOPIC, 0, keys) == [b"a"]


async def test_nothing_is_decided_while_too_few_replicas_are_in_sync(world: World) -> None:
    await world.elected()
    world.partition.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert await code_of(world.runtime.write(TOPIC, 0, put(b"a"))) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    def beat(shard: Register, _: Now, __: Ticket) -> Decision[CoordinatorRecord, int]:
        return Decision(len(shard.values))

    assert await world.runtime.write(TOPIC, 0, beat, soft=True) == 0  # heartbeats go on
    world.partition.refuse = None
    assert await world.runtime.write(TOPIC, 0, put(b"a")) == 1
    assert len(world.shards) == 1


async def test_a_full_disk_refuses_writes_alone_and_the_shard_stays(world: World) -> None:
    await world.elected()
    await world.runtime.write(TOPIC, 0, put(b"a"))
    world.partition.refuse = ErrorCode.KAFKA_STORAGE_ERROR
    for _ in range(3):
        assert await code_of(world.runtime.write(TOPIC, 0, put(b"b"))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await world.runtime.read(TOPIC, 0, keys) == [b"a"]
    world.partition.refuse = None
    assert await world.runtime.write(TOPIC, 0, put(b"b")) == 2
    assert len(world.shards) == 1


async def test_a_record_that_is_too_long_is_refused_for_that_request_alone(world: World) -> None:
    await world.elected()
    writes = [world.runtime.write(TOPIC, 0, put(name, bytes(size))) for name, size in ((b"a", 9), (b"b", 2 << 20))]
    written, refused = await asyncio.gather(*writes, return_exceptions=True)
    assert written == 1
    assert isinstance(refused, ProtocolError)
    assert refused.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert await world.runtime.read(TOPIC, 0, keys) == [b"a"]
    assert len(world.shards) == 1


async def test_a_lone_replica_shows_nothing_once_the_controllers_may_have_given_it_up(world: World) -> None:
    await world.elected()
    world.partition.is_starved = True  # the ISR is this broker alone, so all of it has been heard
    assert await world.runtime.read(TOPIC, 0, keys) == []
    world.leased = False
    assert await code_of(world.runtime.read(TOPIC, 0, keys)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.partition.is_starved = False
    assert await world.runtime.read(TOPIC, 0, keys) == []


async def test_a_write_that_is_not_confirmed_in_time_is_of_unknown_outcome(world: World) -> None:
    await world.elected()
    world.partition.auto_commit = False
    assert await code_of(world.runtime.write(TOPIC, 0, put(b"a"))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    second = asyncio.ensure_future(world.runtime.write(TOPIC, 0, put(b"b")))
    await asyncio.sleep(0.05)
    world.partition.commit()
    assert await second == 2  # and the shard goes on


async def test_the_bytes_that_wait_for_followers_are_bounded(world: World) -> None:
    await world.elected()
    world.partition.auto_commit = False
    writes = [asyncio.ensure_future(world.runtime.write(TOPIC, 0, put(b"a", bytes(600))))]
    await asyncio.sleep(0.01)
    assert await code_of(world.runtime.write(TOPIC, 0, put(b"b"))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.partition.commit()
    await asyncio.gather(*writes)
    world.partition.auto_commit = True
    await world.runtime.write(TOPIC, 0, put(b"b"))


async def test_reads_wait_for_the_followers_word(world: World) -> None:
    await world.elected()
    world.partition.fresh = False
    read = asyncio.ensure_future(world.runtime.read(TOPIC, 0, keys))
    await asyncio.sleep(0.03)
    assert not read.done()
    world.partition.fresh = True
    assert await read == []
    world.partition.fresh = False
    assert await code_of(world.runtime.read(TOPIC, 0, keys)) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_deadlines_come_true_as_records(world: World) -> None:
    await world.elected()
    await world.runtime.write(TOPIC, 0, put(b"boom"))
    await eventually(lambda: world.partition.log.log_end_offset == 2)
    assert await world.runtime.read(TOPIC, 0, keys) == []


async def test_a_stalled_node_looks_into_its_sockets_and_gives_the_time_back(world: World) -> None:
    await world.elected()
    await world.runtime.write(TOPIC, 0, put(b"boom"))
    stall(0.3)
    heard: list[bool] = []
    asyncio.get_running_loop().call_soon(lambda: heard.append(world.partition.log.log_end_offset == 1))
    await eventually(lambda: world.partition.log.log_end_offset == 2)
    assert heard == [True]
    assert world.shards[0].spared_for_s > 0.4  # as long after the stall as the deadline was before its end


async def test_deadlines_wait_while_nothing_can_be_appended(world: World) -> None:
    await world.elected()
    await world.runtime.write(TOPIC, 0, put(b"boom"))
    world.partition.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    await asyncio.sleep(0.1)
    assert world.partition.log.log_end_offset == 1
    world.partition.refuse = None
    await eventually(lambda: world.partition.log.log_end_offset == 2)


async def test_a_load_reads_everything_in_chunks_and_passes_over_what_it_cannot_read() -> None:
    world = World(load=LoadLimits(chunk_bytes=300, records_at_once=2))
    expected: dict[bytes, bytes] = {}
    for batch in range(20):
        records = [Record(0, 1, b"k%d" % (batch * 3 + n), b"v", ()) for n in range(5)]
        expected.update({record.key or b"": b"v" for record in records})
        world.partition.append_records(build_batch([*records, Record(0, 1, b"garbled", b"", ())]), 1, 0)
    world.partition.append_records(build_batch([Record(0, 1, b"k0", None, ())]), 1, 0)
    del expected[b"k0"]
    await world.elected()
    assert sorted(await world.runtime.read(TOPIC, 0, keys)) == sorted(expected)
    assert len(world.partition.regions) > 5
    assert all(region.released == 1 for region in world.partition.regions)
    await world.runtime.stop()


async def test_what_a_load_found_uncommitted_is_shown_only_when_committed(world: World) -> None:
    world.partition.auto_commit = False
    world.partition.append_records(build_batch([Record(0, 1, b"a", b"v", ())]), 1, 0)
    await world.elected()
    read = asyncio.ensure_future(world.runtime.read(TOPIC, 0, keys))
    await asyncio.sleep(0.02)
    assert not read.done()
    world.partition.commit()
    assert await read == [b"a"]


async def test_a_load_that_fails_is_tried_again(world: World) -> None:
    await world.elected()
    await world.runtime.write(TOPIC, 0, put(b"a"))
    whole_reads = len(world.partition.regions)
    world.partition.failing_reads = 2
    world.partition.leader_epoch = 2
    await world.elected()
    assert (world.partition.failing_reads, len(world.partition.regions)) == (0, whole_reads + 1)
    assert await world.runtime.read(TOPIC, 0, keys) == [b"a"]


async def test_a_caller_that_went_away_harms_nobody(world: World) -> None:
    await world.elected()
    waiting = asyncio.ensure_future(world.runtime.write_or_park(TOPIC, 0, wait_for(b"a")))
    await asyncio.sleep(0.01)
    waiting.cancel()
    assert await world.runtime.write(TOPIC, 0, put(b"a")) == 1


async def test_stopping_tells_whoever_waits(world: World) -> None:
    await world.elected()
    waiting = asyncio.ensure_future(world.runtime.write_or_park(TOPIC, 0, wait_for(b"a")))
    await asyncio.sleep(0.01)
    await world.runtime.stop()
    assert await code_of(waiting) is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(("text", "value"), [("", 0), ("a", 97), ("ab", 3105), ("polygenelubricants", -(1 << 31))])
def test_hashes_are_javas(text: str, value: int) -> None:
    assert java_string_hash(text) == value
    assert partition_for(text, 50) == (0 if value == -(1 << 31) else value % 50)


def test_hashes_run_over_utf_16_units() -> None:
    assert java_string_hash("😀") == 31 * 0xD83D + 0xDE00
    assert all(0 <= partition_for(f"group-{number}", 7) < 7 for number in range(100))


@pytest.mark.parametrize("length", [*range(18), *range(248, 266), *range(510, 522), 1_025])
def test_hashes_of_any_length_are_the_polynomial(length: int) -> None:
    units = [(number * 40_503 + 12_345) & 0xFFFF for number in range(length)]
    text = b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be", "surrogatepass")
    value = sum(unit * 31**power for power, unit in enumerate(reversed(units))) & 0xFFFFFFFF
    assert java_string_hash(text) & 0xFFFFFFFF == value
