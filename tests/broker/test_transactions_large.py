"""Transactions of many partitions: what the coordinator does with several of them is spread over turns of the loop."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from broker.coordination.packed_records import PART_BYTES, read_runs
from broker.coordination.transactions.config import TransactionConfig
from broker.coordination.transactions.moving_ids import MovingIds
from broker.coordination.transactions.records import decode_value
from broker.coordination.transactions.values import Transaction, TransactionFilter, TransactionState
from common.errors import ErrorCode, ProtocolError
from common.pacing import SLICE_COST, Work, at_once
from kraft.image.key_ranges import Keeping
from kraft.records import KeysPhase
from tests.broker.transaction_driver import START_MS, TransactionDriver
from tests.common.call_count import counted_calls

State = TransactionState
PREFIX = "lkc-aaaaaa_"
NAMES = [f"{PREFIX}{number}" for number in range(10)]


def large(state: State = State.ONGOING, topics: int = 1_000) -> Transaction:
    partitions = {f"a-topic-with-a-long-name-{number:05}": (0,) for number in range(topics)}
    return Transaction(7, 0, 60_000, state, partitions, START_MS, START_MS, 7, version=2)


def driver_with(
    names: Iterable[str] = NAMES,
    state: State = State.ONGOING,
    topics: int = 1_000,
    config: TransactionConfig | None = None,
) -> TransactionDriver:
    driver = TransactionDriver(config)
    for name in names:
        driver.put(name, large(state, topics))
    driver.acts.clear()
    return driver


def not_taken_up(state: State = State.ONGOING) -> TransactionDriver:
    """As after a load, before the first timer."""
    driver = driver_with(state=state)
    driver.shard = driver.loaded(driver.log)
    return driver


def decoded_by_steps(work: Work[object]) -> list[int]:
    """How many values each step of the work decodes."""
    decoded: list[int] = []
    done = False
    while not done:
        with counted_calls(decode_value) as count:
            done = next(work, None) is None
        decoded.append(count.calls)
    return decoded


# lists -----------------------------------------------------------------------------------------------------


def test_a_list_by_duration_decodes_no_transaction_that_is_known() -> None:
    driver = driver_with()
    driver.ms = 5_000
    with counted_calls(decode_value) as count:
        assert driver.names(TransactionFilter(longer_than_ms=4_999)) == NAMES
        assert driver.names(TransactionFilter(longer_than_ms=5_000)) == []
    assert count.calls == 0


def test_a_list_by_duration_decodes_few_others_in_a_step() -> None:
    driver = not_taken_up()
    driver.ms = 5_000
    wanted = TransactionFilter(longer_than_ms=4_999)
    decoded = decoded_by_steps(driver.shard.list_transactions(wanted, driver.now))
    assert (sum(decoded), max(decoded)) == (len(NAMES), 1)
    assert driver.names(wanted) == NAMES


def test_a_list_decodes_nothing_that_its_other_filters_exclude() -> None:
    driver = not_taken_up()
    with counted_calls(decode_value) as count:
        assert driver.names(TransactionFilter(frozenset(), longer_than_ms=0)) == []
    assert count.calls == 0


def test_ids_that_another_partition_serves_are_passed_over_in_steps() -> None:
    driver = TransactionDriver()
    for number in range(3_000):
        driver.init(f"t{number}")
    driver.keeping = Keeping.FOREIGN
    assert len(list(driver.shard.list_transactions(TransactionFilter(), driver.now))) >= 3_000 / SLICE_COST


# moves and removals ----------------------------------------------------------------------------------------


def test_a_move_decodes_few_transactions_in_a_step() -> None:
    driver = not_taken_up()
    decoded = decoded_by_steps(MovingIds().check_ready(driver.shard, PREFIX, KeysPhase.HOLDING, driver.now))
    assert (sum(decoded), max(decoded)) == (len(NAMES), 1)
    for _ in range(2):
        driver.pass_ms(10)
    with counted_calls(decode_value) as count:
        at_once(MovingIds().check_ready(driver.shard, PREFIX, KeysPhase.HOLDING, driver.now))
    assert count.calls == 0


def test_a_deleted_tenants_transactions_are_aborted_some_at_a_time() -> None:
    driver = driver_with(config=TransactionConfig(partitions_per_turn_max=4_000))
    steps = [driver.decided(driver.shard.remove_ids((PREFIX,), 100, driver.now)) for _ in range(3)]
    assert steps == [4, 4, 2]
    driver.write_markers()
    assert driver.decided(driver.shard.remove_ids((PREFIX,), 100, driver.now)) == len(NAMES)
    assert not driver.shard.committed


def test_a_deleted_tenants_transactions_are_taken_up_first() -> None:
    driver = not_taken_up()
    with counted_calls(decode_value) as count, pytest.raises(ProtocolError) as caught:
        driver.shard.remove_ids((PREFIX,), 100, driver.now)
    assert (count.calls, caught.value.code) == (0, ErrorCode.CONCURRENT_TRANSACTIONS)
    driver.init(f"{PREFIX}idle")
    assert driver.decided(driver.shard.remove_ids((PREFIX,), 100, driver.now)) == 1, "what needs no decoding goes"
    for _ in range(2):
        driver.pass_ms(10)
    assert driver.decided(driver.shard.remove_ids((PREFIX,), 100, driver.now)) > 1


# loads -----------------------------------------------------------------------------------------------------


def taken_up_in_turns(driver: TransactionDriver) -> list[int]:
    driver.shard = driver.loaded(driver.log)
    turns = []
    while any(one is None for one in driver.shard.open.values()):
        with counted_calls(decode_value) as count:
            driver.apply(driver.shard.expire(driver.now))
        turns.append(count.calls)
        driver.ms += 2
    return turns


@pytest.mark.parametrize("state", [State.ONGOING, State.PREPARE_COMMIT])
def test_a_load_takes_few_partitions_up_in_a_turn(state: State) -> None:
    assert taken_up_in_turns(driver_with(state=state)) == [5, 5]


def test_a_load_takes_a_transaction_of_very_many_partitions_up_alone() -> None:
    driver = TransactionDriver()
    for name, topics in (("a", 1), ("b", 1), ("c", 9_000), ("d", 1)):
        driver.put(name, large(topics=topics))
    assert taken_up_in_turns(driver) == [2, 1, 1]


def test_a_request_takes_its_own_transaction_up() -> None:
    driver = not_taken_up(State.PREPARE_COMMIT)
    with counted_calls(decode_value) as count:
        for _ in range(2):
            assert driver.state(NAMES[3]).state is State.PREPARE_COMMIT
    assert count.calls == 1
    driver.apply([])
    assert [act.transactional_id for act in driver.acts] == [NAMES[3]]
    for _ in range(2):
        driver.pass_ms(10)
    assert [act.transactional_id for act in driver.acts] == [NAMES[3], *NAMES[:3], *NAMES[4:]]


# snapshots -------------------------------------------------------------------------------------------------


def test_a_part_of_a_snapshot_is_short_whatever_its_records_are() -> None:
    driver = driver_with((f"t{number}" for number in range(40)), topics=2_000)
    for number in range(2_500):
        driver.init(f"small-{number}")
    longest = max(map(len, driver.shard.committed.values()))
    parts = list(driver.shard.pack())
    assert max(len(data) for data, _ in parts) < PART_BYTES + 2 * longest
    assert max(count for _, count in parts) == 1_000
    copy = driver.loading([])
    for data, _ in parts:
        for run in read_runs(data):
            copy.unpack(run)
    assert copy.committed == driver.shard.committed
    assert sum(count for _, count in parts) == len(copy.committed)
