"""What the runtime does for shards with transactions: pending records, markers, and acts after commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordination.acts import ACTS_AT_ONCE
from broker.coordination.runtime import CoordinatorRuntime, RuntimeConfig
from broker.coordination.shard import CoordinatorRecord, Now, Ticket, replay_each
from broker.partitions.transactional_appends import Marker, Permission, Permissions
from common.backoff import Backoff
from common.decision import Decision, ProducerStamp
from common.errors import ErrorCode
from common.pacing import Pacer
from records.batch import read_header
from tests.broker.coordinated_partition import MemoryPartition
from tests.broker.test_coordination_runtime import QUICK, TOPIC, Register, code_of, eventually
from tests.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time

STAMP = ProducerStamp(7, 2)
PERMISSION = Permission("t", 7, 2, Permissions(), adds=True)


class Ledger(Register):
    """A register whose records b"do…" ask for an act until b"done…" is written, that can be taken back, and that keeps
    what transactions write until they commit."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[object] = []
        self.pending: dict[int, list[tuple[bytes, bytes | None]]] = {}
        self.batch = -1
        self.is_loaded = False

    def replay(self, key: bytes, value: bytes | None) -> None:
        super().replay(key, value)
        if key.startswith(b"do-") and value is not None and self.is_loaded:
            self.acts.append(key)

    def replay_all(self, records: list[tuple[bytes, bytes | None]]) -> int:
        return replay_each(self, records)

    def loaded(self, now: Now) -> list[CoordinatorRecord]:
        self.is_loaded = True
        self.acts = [key for key in self.values if key.startswith(b"do-")]
        return super().loaded(now)

    def take_acts(self) -> list[object]:
        acts, self.acts = self.acts, []
        return acts

    def find_acts(self, now: Now) -> None:
        """All of them are found while loading."""

    def put_back(self, acts: list[object]) -> None:
        self.acts += [key for key in acts if key in self.values]

    def before(self, record: CoordinatorRecord) -> Any:
        pending = {producer_id: list(records) for producer_id, records in self.pending.items()}
        return record.key, self.values.get(record.key), pending

    def undo(self, before: list[Any], now: Now) -> None:
        for key, value, pending in before:
            Register.replay(self, key, value)
            self.pending = pending

    @property
    def has_pending(self) -> bool:
        return bool(self.pending)

    @property
    def pending_count(self) -> int:
        return sum(map(len, self.pending.values()))

    def begin_batch(self, offset: int) -> None:
        self.batch = offset

    def before_pending(self, producer: ProducerStamp, record: CoordinatorRecord) -> Any:
        return self.before(record)

    def ending_cost(self, producer: ProducerStamp) -> int:
        return len(self.pending.get(producer.producer_id, []))

    def replay_pending(self, producer: ProducerStamp, records: list[tuple[bytes, bytes | None]]) -> int:
        self.pending.setdefault(producer.producer_id, []).extend((key, value) for key, value in records)
        return 0

    def end_transaction(self, producer: ProducerStamp, *, commit: bool) -> int:
        ended = self.pending.pop(producer.producer_id, [])
        for key, value in ended if commit else ():
            self.replay(key, value)
        return len(ended)


Decide = Callable[[Ledger, Now, Ticket], Decision[CoordinatorRecord, int]]


def put(*keys: bytes, producer: ProducerStamp | None = None) -> Decide:
    records = [CoordinatorRecord(key, b"v") for key in keys]
    return lambda shard, _, __: Decision(len(shard.values), list(records), producer=producer)


def remove(key: bytes) -> Decide:
    return lambda _, __, ___: Decision(0, [CoordinatorRecord(key, None)])


def marker(*, commit: bool, producer_id: int = 7) -> Marker:
    return Marker(producer_id, 3, commit, coordinator_epoch=5, new_protocol=True)


class World:
    def __init__(self) -> None:
        config = RuntimeConfig(QUICK, reload=Backoff(0.01, 5.0))
        self.runtime = CoordinatorRuntime(LoopClock(), config, Pacer())
        self.shards: list[Ledger] = []
        self.begun: list[tuple[int, int, object]] = []
        self.runtime.host(TOPIC, self.make, lambda index, epoch, what: self.begun.append((index, epoch, what)))
        self.partition = MemoryPartition()

    def make(self, index: int) -> Ledger:
        self.shards.append(Ledger())
        return self.shards[-1]

    @property
    def acts(self) -> list[object]:
        return [what for _, _, what in self.begun]

    async def elected(self) -> None:
        self.runtime.elected(self.partition)
        await eventually(lambda: self.runtime.active(TOPIC) == [0])

    async def changes_leader(self) -> None:
        """The same log under the next epoch, loaded anew."""
        self.partition.depose()
        self.runtime.resigned(TOPIC, 0)
        self.partition.is_leader = True
        self.partition.leader_epoch += 1
        await self.elected()

    def write(self, decide: Decide, **options: Any) -> asyncio.Future[int]:
        return asyncio.ensure_future(self.runtime.write(TOPIC, 0, decide, **options))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.elected()
    yield made
    await made.runtime.stop()


async def turns() -> None:
    await asyncio.sleep(0.01)


# acts --------------------------------------------------------------------------------------------------------


async def test_an_act_begins_when_its_record_is_committed(world: World) -> None:
    world.partition.auto_commit = False
    write = world.write(put(b"do-a"))
    await turns()
    assert (world.partition.log.log_end_offset, world.acts) == (1, [])
    world.partition.commit()
    assert await write == 0
    await turns()
    assert world.begun == [(0, 1, b"do-a")]


async def test_acts_begin_in_order_each_with_its_own_batch(world: World) -> None:
    world.partition.auto_commit = False
    writes = []
    for key in (b"do-a", b"do-b"):
        writes.append(world.write(put(key)))
        await turns()
    world.partition.commit(1)
    await turns()
    assert world.acts == [b"do-a"]
    world.partition.commit()
    await asyncio.gather(*writes)
    await turns()
    assert world.acts == [b"do-a", b"do-b"]


async def test_acts_of_records_that_were_taken_back_never_begin(world: World) -> None:
    world.partition.refuse_append = ErrorCode.KAFKA_STORAGE_ERROR
    assert await code_of(world.write(put(b"do-a"))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.partition.refuse_append = None
    await world.write(put(b"other"))
    await turns()
    assert world.acts == []
    assert len(world.shards) == 1


async def test_what_a_load_finds_waits_until_the_loaded_end_is_committed(world: World) -> None:
    world.partition.auto_commit = False
    write = world.write(put(b"do-a"))
    await turns()
    await world.changes_leader()
    assert await code_of(write) is ErrorCode.NOT_COORDINATOR
    await turns()
    assert world.acts == []
    world.partition.commit()
    await turns()
    assert world.begun == [(0, 2, b"do-a")]


async def test_a_dropped_shard_begins_nothing(world: World) -> None:
    world.partition.auto_commit = False
    write = world.write(put(*(b"do-%d" % number for number in range(3))))
    await turns()
    world.partition.commit()
    world.runtime.resigned(TOPIC, 0)  # in the turn of the commit
    await write
    await turns()
    assert world.acts == []


async def test_what_is_asked_for_without_a_record_waits_for_what_the_shard_has_seen(world: World) -> None:
    world.partition.auto_commit = False
    write = world.write(put(b"a"))
    await turns()

    def ask(shard: Ledger, _: Now) -> list[CoordinatorRecord]:
        shard.acts.append("asked")
        return []

    world.runtime.notify(TOPIC, ask)
    await turns()
    assert world.acts == []
    world.partition.commit()
    await write
    await turns()
    assert world.acts == ["asked"]


async def test_many_acts_begin_in_several_turns(world: World) -> None:
    def ask(shard: Ledger, _: Now) -> list[CoordinatorRecord]:
        shard.acts += range(2 * ACTS_AT_ONCE)
        return []

    in_turn: list[int] = []

    def look() -> None:
        in_turn.append(len(world.begun))
        if len(world.begun) < 2 * ACTS_AT_ONCE:
            asyncio.get_running_loop().call_soon(look)

    world.runtime.notify(TOPIC, ask)
    look()
    await turns()
    assert ACTS_AT_ONCE in in_turn
    assert world.acts == list(range(2 * ACTS_AT_ONCE))


STEPS = st.lists(st.sampled_from(["do", "do", "done", "commit", "commit all", "reload", "full"]), max_size=25)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_acts_begin_once_in_each_epoch_and_only_after_their_commit(steps: list[str]) -> None:
    asyncio.run(_acts_begin_once(steps))


async def _acts_begin_once(steps: list[str]) -> None:
    world = World()
    await world.elected()
    world.partition.auto_commit = False
    offsets: dict[bytes, int] = {}
    open_keys: list[bytes] = []
    writes: list[asyncio.Future[int]] = []
    checked = 0

    def check() -> None:
        nonlocal checked
        for _, epoch, what in world.begun[checked:]:
            assert offsets[what] < world.partition.high_watermark  # type: ignore[index]
            assert epoch == world.partition.leader_epoch
        assert len(world.begun) == len(set(world.begun))
        checked = len(world.begun)

    async def settle() -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    for number, step in enumerate(steps):
        before = world.partition.log.log_end_offset
        key = b"do-%d" % number
        if step in ("do", "full"):
            world.partition.refuse_append = ErrorCode.KAFKA_STORAGE_ERROR if step == "full" else None
            writes.append(world.write(put(key)))
            await settle()
            world.partition.refuse_append = None
            if step == "do":
                assert world.partition.log.log_end_offset == before + 1
                offsets[key] = before
                open_keys.append(key)
        elif step == "done" and open_keys:
            writes.append(world.write(remove(open_keys.pop(0))))
            await settle()
        elif step == "commit":
            world.partition.commit(min(world.partition.high_watermark + 1, before))
        elif step == "commit all":
            world.partition.commit()
        elif step == "reload":
            world.begun.clear()
            checked = 0
            await world.changes_leader()
        await settle()
        check()
    world.partition.commit()
    await settle()
    check()
    assert {what for _, _, what in world.begun} >= set(open_keys), "whatever is not done has begun in this epoch"
    await asyncio.gather(*writes, return_exceptions=True)
    await world.runtime.stop()


# pending records and markers -----------------------------------------------------------------------------------


async def test_pending_records_are_a_batch_of_their_producer(world: World) -> None:
    plain = world.write(put(b"a"))
    pending = world.write(put(b"b", producer=STAMP))
    more = world.write(put(b"c", producer=STAMP))
    others = world.write(put(b"d", producer=ProducerStamp(8, 0)))
    last = world.write(put(b"e"))
    await asyncio.gather(plain, pending, more, others, last)
    headers = [read_header(batch, 0) for batch in world.partition.log.batches]
    found = [
        (one.producer_id, one.producer_epoch, one.is_transactional, one.base_sequence, one.count) for one in headers
    ]
    assert found == [(-1, -1, False, -1, 1), (7, 2, True, -1, 2), (8, 0, True, -1, 1), (-1, -1, False, -1, 1)]
    assert list(world.shards[0].values) == [b"a", b"e"]


@pytest.mark.parametrize("commit", [True, False])
async def test_a_marker_decides_what_becomes_of_them_here_and_after_a_load(world: World, commit: bool) -> None:
    await world.write(put(b"a", producer=STAMP))
    world.partition.auto_commit = False
    ended = world.runtime.append_marker(TOPIC, 0, marker(commit=commit))
    assert list(world.shards[0].values) == ([b"a"] if commit else [])
    await turns()
    assert not ended.done()
    world.partition.commit()
    await ended
    await world.changes_leader()
    assert list(world.shards[1].values) == ([b"a"] if commit else [])
    assert not world.shards[1].has_pending


async def test_what_is_open_at_a_load_is_still_pending(world: World) -> None:
    await world.write(put(b"a", producer=STAMP))
    await world.changes_leader()
    assert world.shards[1].pending == {7: [(b"a", b"v")]}
    await world.runtime.append_marker(TOPIC, 0, marker(commit=True))
    assert list(world.shards[1].values) == [b"a"]


async def test_a_marker_comes_behind_everything_that_was_decided_before(world: World) -> None:
    write = world.write(put(b"a", producer=STAMP))
    await asyncio.sleep(0)
    assert world.partition.log.log_end_offset == 0, "the turn has not ended"
    await world.runtime.append_marker(TOPIC, 0, marker(commit=True))
    await write
    control = [read_header(batch, 0).is_control for batch in world.partition.log.batches]
    assert control == [False, True]
    assert list(world.shards[0].values) == [b"a"]


async def test_a_repeated_marker_waits_for_what_it_repeats_and_appends_nothing(world: World) -> None:
    await world.write(put(b"a", producer=STAMP))
    world.partition.auto_commit = False
    first = world.runtime.append_marker(TOPIC, 0, marker(commit=True))
    second = world.runtime.append_marker(TOPIC, 0, marker(commit=True))
    await turns()
    assert (first.done(), second.done(), world.partition.log.log_end_offset) == (False, False, 2)
    world.partition.commit()
    await asyncio.gather(first, second)
    await world.runtime.append_marker(TOPIC, 0, marker(commit=True))
    assert world.partition.log.log_end_offset == 2


async def test_a_repeated_marker_does_not_wait_for_what_came_behind_it(world: World) -> None:
    """Where commits are always late, something newer is always uncommitted."""
    await world.write(put(b"a", producer=STAMP))
    world.partition.auto_commit = False
    first = world.runtime.append_marker(TOPIC, 0, marker(commit=True))
    later = []
    for key in (b"b", b"c", b"d"):
        later.append(world.write(put(key)))
        await turns()
    second = world.runtime.append_marker(TOPIC, 0, marker(commit=True))
    world.partition.commit(1)
    await turns()
    assert (first.done(), second.done()) == (False, False)
    world.partition.commit(2)
    await turns()
    assert (first.done(), second.done(), later[0].done()) == (True, True, False)
    assert world.runtime.append_marker(TOPIC, 0, marker(commit=True)).done(), "it is committed"
    world.partition.commit()
    await asyncio.gather(*later)


async def test_a_repeated_marker_of_an_earlier_leader_waits_for_that(world: World) -> None:
    await world.write(put(b"a", producer=STAMP))
    world.partition.auto_commit = False
    first = world.runtime.append_marker(TOPIC, 0, marker(commit=True))
    await world.changes_leader()
    assert await code_of(first) is ErrorCode.NOT_COORDINATOR
    later = world.write(put(b"b"))
    await turns()
    again = world.runtime.append_marker(TOPIC, 0, marker(commit=True))
    world.partition.commit(1)
    await turns()
    assert not again.done()
    world.partition.commit(2)
    await turns()
    assert (again.done(), later.done(), world.partition.log.log_end_offset) == (True, False, 3)
    world.partition.commit()
    await later


async def test_a_repeated_marker_behind_what_the_shard_knows_waits_for_its_own_commit(world: World) -> None:
    """The tier aborts what a rebuilt partition has open, beside the shard."""
    world.partition.auto_commit = False
    world.partition.open_transactions[7] = 2
    end = world.partition.append_marker(marker(commit=False), 5).end_offset
    again = world.runtime.append_marker(TOPIC, 0, marker(commit=False))
    await turns()
    assert (again.done(), world.partition.log.log_end_offset) == (False, end)
    world.partition.commit()
    await turns()
    assert again.done()


async def test_a_marker_that_the_log_refuses_changes_nothing(world: World) -> None:
    await world.write(put(b"a", producer=STAMP))
    world.partition.refuse_append = ErrorCode.TRANSACTION_COORDINATOR_FENCED

    async def append() -> None:
        await world.runtime.append_marker(TOPIC, 0, marker(commit=True))

    assert await code_of(append()) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert world.shards[0].has_pending
    world.partition.refuse_append = None
    await append()
    assert list(world.shards[0].values) == [b"a"]
    assert len(world.shards) == 1


async def test_a_marker_for_a_shard_that_is_not_here_is_refused(world: World) -> None:
    with pytest.raises(Exception, match="NOT_COORDINATOR"):
        world.runtime.append_marker(TOPIC, 1, marker(commit=True))


async def test_an_uncommitted_marker_ends_with_the_leadership(world: World) -> None:
    await world.write(put(b"a", producer=STAMP))
    world.partition.auto_commit = False
    ended = world.runtime.append_marker(TOPIC, 0, marker(commit=True))
    world.partition.depose()
    assert await code_of(ended) is ErrorCode.NOT_COORDINATOR


async def test_a_void_permission_is_refused_before_the_decision(world: World) -> None:
    world.partition.void = ErrorCode.INVALID_TXN_STATE
    decided: list[Ledger] = []

    def decide(shard: Ledger, _: Now, __: Ticket) -> Decision[CoordinatorRecord, int]:
        decided.append(shard)
        return Decision(0, [CoordinatorRecord(b"a", b"v")], producer=STAMP)

    assert await code_of(world.write(decide, permission=PERMISSION)) is ErrorCode.INVALID_TXN_STATE
    assert not decided
    world.partition.void = None
    assert await world.write(decide, permission=PERMISSION) == 0


async def test_a_batch_of_an_old_epoch_is_taken_back_and_the_shard_stays(world: World) -> None:
    await world.write(put(b"a", producer=STAMP))
    late = world.write(put(b"b", producer=ProducerStamp(7, 1)))
    assert await code_of(late) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.shards[0].pending == {7: [(b"a", b"v")]}
    assert len(world.shards) == 1
