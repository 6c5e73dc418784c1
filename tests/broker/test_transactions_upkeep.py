"""What a shard of transactions does by itself: little at a time, and no more than there is."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordination.transactions.config import TransactionConfig
from broker.coordination.transactions.expiry import LOOKS_PER_REMOVAL, ExpiryBuckets
from broker.coordination.transactions.values import Transaction
from broker.coordination.transactions.values import TransactionState as State
from broker.deadlines import DueHeap
from common.errors import ErrorCode
from kraft.topic_names import TRANSACTION_TOPIC
from tests.broker.coordinated_partition import MemoryPartition
from tests.broker.test_transactions_coordinator import World
from tests.broker.transaction_driver import START_MS, TransactionDriver
from tests.common.call_count import counted_calls

WIDTH_MS = 10


def test_an_id_that_was_removed_and_made_again_is_looked_at_once() -> None:
    buckets = ExpiryBuckets(WIDTH_MS, lambda _: True)
    for _ in range(2):
        buckets.add("t", 5)
        buckets.add("u", 7)
    assert sorted(buckets.take_until(20, 10)) == ["t", "u"]
    assert buckets.take_until(20, 10) == []


STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 60)),
    st.tuples(st.just("remove"), st.integers(0, 1 << 16)),
    st.tuples(st.just("take"), st.integers(0, 60)),
)


@given(st.lists(STEPS, max_size=200))
def test_every_id_that_exists_is_taken_when_it_is_due(steps: list[tuple[str, int]]) -> None:
    known: dict[str, int] = {}  # not taken yet, with their times
    buckets = ExpiryBuckets(WIDTH_MS, lambda name: name in known)
    for number, (step, value) in enumerate(steps):
        if step == "add":
            known[f"t{number}"] = value
            buckets.add(f"t{number}", value)
        elif step == "remove" and known:
            del known[list(known)[value % len(known)]]
            buckets.removed()
        elif step == "take":
            due = {name for name, at in known.items() if (at // WIDTH_MS + 1) * WIDTH_MS <= value}
            taken: list[str] = []
            while some := buckets.take_until(value, 3):
                assert len(some) <= 3
                taken += some
            assert max(Counter(taken).values(), default=1) == 1
            assert due <= set(taken) and set(taken) & known.keys() == due
            for name in due:
                del known[name]
    assert set(buckets.take_until(1_000, 1_000)) & known.keys() == known.keys()


@pytest.mark.parametrize("width_ms", [1, 100, 1_000_000])
def test_removed_ids_are_forgotten_where_none_is_ever_taken(width_ms: int) -> None:
    """As in a standby, whose shard does not serve."""
    known: dict[str, None] = {}
    buckets = ExpiryBuckets(width_ms, known.__contains__)
    lasting = 200
    for number in range(20_000):
        name = f"t{number}"
        known[name] = None
        buckets.add(name, number)
        if len(known) > lasting:
            del known[next(iter(known))]
            buckets.removed()
        assert len(buckets) <= 3 * lasting + 10
    for name in list(known):
        del known[name]
        buckets.removed()
    assert len(buckets) <= 2 * lasting
    with counted_calls(of=ExpiryBuckets.removed) as calls:
        while len(buckets):
            buckets.removed()
    assert calls.calls * LOOKS_PER_REMOVAL <= 3 * lasting * 2


def test_a_follower_keeps_nothing_of_ids_that_are_gone() -> None:
    driver = TransactionDriver()
    for number in range(2_000):
        driver.put(f"t{number}", Transaction(number, 0, 60_000, State.EMPTY, {}, -1, START_MS))
    records = [*driver.log, *(record._replace(value=None) for record in driver.log)]
    standby = driver.loading(records)
    with counted_calls() as counted:
        standby.loaded(driver.now)
        driver.ms += 30 * 86_400_000
        for _ in range(8):
            assert not standby.expire(driver.now)
    assert counted.calls < 1_000, "there is hardly anything left to look at"


def test_timeouts_of_ended_transactions_are_passed_over_some_at_a_time() -> None:
    driver = TransactionDriver(TransactionConfig(transactions_per_turn_max=10))
    for number in range(1_000):
        producer = driver.init(f"t{number}")[1]
        assert producer is not None
        driver.add(f"t{number}", producer, ("flights", 0))
        if number % 100:
            driver.end(f"t{number}", producer, commit=True)
    driver.write_markers()
    driver.ms += 70_000
    turns = 0
    while sum(driver.state(f"t{number}").state is State.PREPARE_ABORT for number in range(0, 1_000, 100)) < 10:
        with counted_calls(of=DueHeap.pop_due) as looks:
            driver.apply(driver.shard.expire(driver.now))
        assert looks.calls <= 2 * 10 + 2
        driver.ms += 2
        turns += 1
    assert turns < 120, "one turn follows another"


@pytest.mark.virtual_time
async def test_markers_of_loaded_transactions_go_out_while_their_coordinator_can_append_nothing() -> None:
    """They need no room in its log: only the record of the end does."""
    world = World()
    await world.elected()
    await world.coordinator.stop()
    for name, partitions in (("a", {"flights": (0,)}), ("none", {}), ("b", {"flights": (1,)})):
        transaction = Transaction(7, 1, 60_000, State.PREPARE_COMMIT, partitions, START_MS, START_MS, 7, version=2)
        await world.put(0, name, transaction)
    world.acts()
    log = world.partition.log
    follower = MemoryPartition(TRANSACTION_TOPIC, log=log, high_watermark=log.log_end_offset)
    follower.leader_epoch = world.partition.leader_epoch + 1
    world.runtime.resigned(TRANSACTION_TOPIC, 0)
    follower.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    await world.serves(follower)
    await asyncio.sleep(2)
    assert [act.transactional_id for act in world.acts()] == ["a", "b"]
    assert world.shards[-1].open.keys() == {"a", "none", "b"}
    follower.refuse = None
    await asyncio.sleep(2)
    assert not world.acts() and world.shards[-1].open.keys() == {"a", "b"}
    await world.runtime.stop()
