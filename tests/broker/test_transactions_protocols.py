"""Whole transactions of both protocols, and what follows from epochs that are used up, timeouts and reloads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordination.packed_records import read_runs
from broker.coordination.transactions.config import TransactionConfig, TransactionLimits
from broker.coordination.transactions.records import transaction_record
from broker.coordination.transactions.values import (
    LAST_EPOCH,
    AddPartitions,
    MarkersToWrite,
    Producer,
    Transaction,
    TransactionFilter,
    TransactionState,
)
from common.errors import ErrorCode, ProtocolError
from kraft.image.key_ranges import Keeping
from tests.broker.transaction_driver import START_MS, TransactionDriver
from tests.common.call_count import counted_calls

NONE, CONCURRENT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS
State = TransactionState
PLACE = ("flights", 0)


def begun(driver: TransactionDriver, *, new_protocol: bool = True, timeout_ms: int = 60_000) -> Producer:
    code, producer = driver.init("t", timeout_ms=timeout_ms)
    assert code is NONE
    assert driver.add("t", producer, PLACE, new_protocol=new_protocol) is NONE
    return producer


def exhausted(driver: TransactionDriver, state: State = State.ONGOING, epoch: int = LAST_EPOCH) -> Producer:
    partitions = {"flights": (0,)} if state.is_open else {}
    transaction = Transaction(7, epoch, 60_000, state, partitions, START_MS, START_MS, 7, version=2)
    driver.put("t", transaction)
    return Producer(7, epoch)


def test_old_protocol_keeps_the_epoch() -> None:
    driver = TransactionDriver()
    producer = begun(driver, new_protocol=False)
    assert driver.end("t", producer, commit=True, new_protocol=False) == (NONE, Producer())
    assert driver.acts == [MarkersToWrite("t", *producer, True, {"flights": (0,)}, False)]
    assert driver.end("t", producer, commit=True, new_protocol=False)[0] is CONCURRENT
    driver.write_markers()
    assert driver.state("t").state is State.COMPLETE_COMMIT
    assert driver.end("t", producer, commit=True, new_protocol=False) == (NONE, Producer())
    assert driver.add("t", producer, PLACE, new_protocol=False) is NONE
    assert driver.state("t").producer == producer


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=6), st.data())
def test_markers_end_their_own_transaction_alone_however_late_and_often(
    rounds: list[list[int]], data: st.DataObject
) -> None:
    """All transactions of a producer have the same id and epoch. A round repeats completions of earlier ones, and takes
    some decisions back."""
    driver = TransactionDriver()
    producer = begun(driver, new_protocol=False)
    asked = list[MarkersToWrite]()
    for number, repeated in enumerate(rounds):
        partition = ("flights", number)
        assert driver.add("t", producer, partition, new_protocol=False) is NONE
        assert driver.end("t", producer, commit=data.draw(st.booleans()), new_protocol=False)[0] is NONE
        asked += driver.acts
        for at in repeated:
            if at < len(asked) - 1:
                driver.decided(driver.shard.complete([asked[at]], driver.now))
                assert driver.state("t").state.is_prepared
        driver.write_markers()
        assert not driver.state("t").state.is_open
        if data.draw(st.booleans()):
            taken_back = driver.log.pop()
            driver.shard.undo([driver.log[-1]], driver.now)
            assert taken_back.key == driver.log[-1].key
            driver.apply([])
            driver.decided(driver.shard.complete(asked, driver.now))
            assert driver.state("t").state.is_prepared, "its markers are asked for again"
            asked += driver.acts
            driver.write_markers()
            assert not driver.state("t").state.is_open


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_init_is_repeated_whose_answer_was_lost(version: int) -> None:
    driver = TransactionDriver(version=version)
    _, producer = driver.init("t")
    code, following = driver.init("t", producer)
    assert (code, following) == (NONE, Producer(producer.producer_id, producer.producer_epoch + 1))
    assert driver.init("t", producer) == (NONE, following)
    assert driver.init("t", following)[1].producer_epoch == following.producer_epoch + 1
    assert driver.init("t", producer)[0] is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("commit", [True, False])
def test_a_fenced_producer_does_not_get_the_epoch_of_one_that_speaks_the_old_protocol(commit: bool) -> None:
    driver = TransactionDriver()
    fenced = begun(driver)
    code, fenced = driver.end("t", fenced, commit=True)
    assert code is NONE
    driver.write_markers()

    successor = begun(driver, new_protocol=False)
    assert successor.producer_epoch == fenced.producer_epoch + 1
    assert driver.end("t", successor, commit=commit, new_protocol=False)[0] is NONE
    assert driver.end("t", fenced, commit=commit)[0] is CONCURRENT
    driver.write_markers()

    assert driver.end("t", fenced, commit=commit) == (ErrorCode.PRODUCER_FENCED, Producer())


def test_new_protocol_has_an_epoch_per_transaction() -> None:
    driver = TransactionDriver()
    producer = begun(driver)
    bumped = Producer(producer.producer_id, producer.producer_epoch + 1)
    assert driver.end("t", producer, commit=False) == (NONE, bumped)
    assert driver.acts == [MarkersToWrite("t", *bumped, False, {"flights": (0,)}, True)]
    assert driver.add("t", bumped, PLACE) is CONCURRENT
    assert driver.end("t", producer, commit=False)[0] is CONCURRENT
    driver.write_markers()
    assert driver.end("t", producer, commit=False) == (NONE, bumped), "the answer got lost"
    assert driver.add("t", bumped, PLACE) is NONE
    assert driver.end("t", producer, commit=False)[0] is ErrorCode.PRODUCER_FENCED


def test_abort_without_partitions_bumps_at_once() -> None:
    driver = TransactionDriver()
    _, producer = driver.init("t")
    code, bumped = driver.end("t", producer, commit=False)
    assert (code, bumped.producer_epoch) == (NONE, 1)
    assert not driver.acts
    assert driver.state("t").state is State.COMPLETE_ABORT
    assert driver.end("t", bumped, commit=False)[1].producer_epoch == 2


def test_producer_changes_protocol_between_transactions() -> None:
    driver = TransactionDriver()
    producer = begun(driver, new_protocol=False)
    driver.end("t", producer, commit=True, new_protocol=False)
    driver.write_markers()
    assert driver.add("t", producer, PLACE) is NONE
    code, bumped = driver.end("t", producer, commit=True)
    assert (code, bumped.producer_epoch) == (NONE, producer.producer_epoch + 1)
    assert [act.new_protocol for act in driver.acts] == [True]


def test_last_epoch_brings_the_next_producer_id() -> None:
    driver = TransactionDriver()
    producer = exhausted(driver)
    code, following = driver.end("t", producer, commit=True)
    assert (code, following) == (NONE, Producer(101, 0))
    assert driver.acts == [MarkersToWrite("t", 7, LAST_EPOCH + 1, True, {"flights": (0,)}, True)]
    assert driver.end("t", producer, commit=True)[0] is CONCURRENT
    driver.reload()
    driver.write_markers()
    assert driver.state("t").producer == following
    assert driver.end("t", producer, commit=True) == (NONE, following), "the answer got lost"
    assert driver.end("t", producer, commit=False)[0] is ErrorCode.INVALID_TXN_STATE
    assert driver.add("t", following, PLACE) is NONE
    assert driver.end("t", producer, commit=True)[0] is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("epoch", [4, LAST_EPOCH], ids=["same id", "next id"])
@pytest.mark.parametrize("commit", [True, False])
def test_the_next_transaction_may_be_faster_than_the_markers(epoch: int, commit: bool) -> None:
    """Its client did nothing wrong, whatever it asks for: it comes again."""
    driver = TransactionDriver()
    _, following = driver.end("t", exhausted(driver, epoch=epoch), commit=commit)
    assert driver.add("t", following, PLACE) is CONCURRENT
    assert driver.verify("t", following, PLACE) == (CONCURRENT,)
    assert driver.end("t", following, commit=False)[0] is CONCURRENT, "without any partition"
    assert driver.init("t", following)[0] is CONCURRENT
    driver.write_markers()
    assert driver.end("t", following, commit=False)[0] is NONE
    assert driver.state("t").state is State.COMPLETE_ABORT


def test_init_bumps_remembers_and_rotates() -> None:
    driver = TransactionDriver()
    _, first = driver.init("t")
    _, second = driver.init("t", first)
    assert second == Producer(first.producer_id, 1)
    assert driver.init("t", first) == (NONE, second), "the answer got lost"
    driver.reload()
    assert driver.init("t", first) == (NONE, second), "and the coordinator changed"
    _, third = driver.init("t")
    assert third == Producer(first.producer_id, 2)
    assert driver.init("t", second)[0] is ErrorCode.PRODUCER_FENCED
    last = exhausted(driver, State.COMPLETE_COMMIT)
    _, rotated = driver.init("t", last)
    assert rotated == Producer(101 + 1, 0)
    assert driver.init("t", last) == (NONE, rotated)
    assert driver.init("t", last) == (NONE, rotated)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_init_over_an_open_transaction_fences_first(version: int) -> None:
    driver = TransactionDriver(version=version)
    producer = begun(driver, new_protocol=version == 2)
    assert driver.init("t")[0] is CONCURRENT
    assert driver.state("t").state is State.PREPARE_ABORT
    assert driver.init("t")[0] is CONCURRENT
    (markers,) = driver.write_markers()
    assert (markers.producer_epoch, markers.commit) == (producer.producer_epoch + 1, False)
    assert driver.init("t") == (NONE, Producer(producer.producer_id, producer.producer_epoch + 2))
    assert driver.add("t", producer, PLACE) is ErrorCode.PRODUCER_FENCED


def test_timeout_fences_and_aborts() -> None:
    driver = TransactionDriver()
    producer = begun(driver, timeout_ms=20_000)
    driver.pass_ms(19_999)
    assert driver.state("t").state is State.ONGOING
    driver.pass_ms(driver.config.timeouts_interval_ms)
    assert driver.state("t").state is State.PREPARE_ABORT
    assert driver.end("t", producer, commit=True)[0] is CONCURRENT
    (markers,) = driver.write_markers()
    assert driver.end("t", producer, commit=True)[0] is ErrorCode.PRODUCER_FENCED, "clients go on after that"
    assert (markers.producer_epoch, markers.new_protocol) == (producer.producer_epoch + 1, True)
    assert driver.add("t", producer, PLACE) is ErrorCode.PRODUCER_FENCED


def test_timeout_at_the_last_epoch_rotates() -> None:
    driver = TransactionDriver()
    producer = exhausted(driver)
    driver.pass_ms(80_000)
    driver.run_timers()
    assert [act.producer_epoch for act in driver.acts] == [LAST_EPOCH + 1]
    driver.write_markers()
    assert driver.state("t").producer == Producer(101, 0)
    assert driver.end("t", producer, commit=True)[0] is ErrorCode.PRODUCER_FENCED
    assert driver.end("t", producer, commit=False) == (NONE, Producer(101, 0))


def test_old_fence_at_the_last_epoch_is_never_answered() -> None:
    driver = TransactionDriver(version=1)
    producer = exhausted(driver)
    assert driver.init("t")[0] is CONCURRENT
    driver.write_markers()
    driver.version = 2
    assert driver.end("t", producer, commit=False)[0] is ErrorCode.PRODUCER_FENCED
    assert driver.init("t", producer)[0] is ErrorCode.PRODUCER_FENCED
    assert driver.init("t") == (NONE, Producer(101, 0))


def test_reload_asks_for_the_markers_again_and_keeps_timeouts() -> None:
    driver = TransactionDriver()
    producer = begun(driver)
    driver.end("t", producer, commit=True)
    asked = list(driver.acts)
    driver.put("u", Transaction(9, 0, 20_000, State.ONGOING, {"flights": (1,)}, START_MS, START_MS))
    driver.reload()
    assert driver.acts == asked
    driver.pass_ms(30_000)
    assert driver.state("u").state is State.PREPARE_ABORT


def test_a_load_takes_transactions_up_in_turns() -> None:
    driver = TransactionDriver(TransactionConfig(transactions_per_turn_max=10))
    for index in range(35):
        driver.put(f"t{index}", Transaction(index, 1, 60_000, State.PREPARE_COMMIT, {"flights": (0,)}, version=2))
    driver.acts.clear()
    driver.shard = driver.loaded(driver.log)
    sizes = []
    while len(driver.acts) < 35:
        before = len(driver.acts)
        driver.apply(driver.shard.expire(driver.now))
        sizes.append(len(driver.acts) - before)
        driver.ms += 2
    assert sizes == [10, 10, 10, 5]


def test_prepared_without_partitions_is_completed_by_a_load() -> None:
    """Apache Kafka's coordinator records it so."""
    driver = TransactionDriver()
    driver.put("t", Transaction(7, 5, 60_000, State.PREPARE_ABORT, {}, START_MS, START_MS, 7, version=2))
    driver.reload()
    assert not driver.acts
    assert driver.state("t").state is State.COMPLETE_ABORT


def test_completion_taken_back_asks_for_the_markers_again() -> None:
    driver = TransactionDriver()
    driver.end("t", begun(driver), commit=True)
    asked = list(driver.acts)
    decision = driver.shard.complete(asked, driver.now)
    before = [driver.shard.before(record) for record in decision.records]
    driver.apply(decision.records)
    driver.acts.clear()
    driver.shard.undo(before, driver.now)
    (again,) = driver.shard.take_acts()
    assert isinstance(again, MarkersToWrite)
    assert [again._replace(serial=asked[0].serial)] == asked
    driver.decided(driver.shard.complete([again], driver.now))
    assert driver.state("t").state is State.COMPLETE_COMMIT


def test_late_completion_of_another_transaction_is_passed_over() -> None:
    driver = TransactionDriver()
    producer = begun(driver)
    _, bumped = driver.end("t", producer, commit=True)
    (markers,) = driver.write_markers()
    driver.add("t", bumped, PLACE)
    driver.end("t", bumped, commit=False)
    assert driver.shard.complete([markers], driver.now).records == []


def test_ids_expire_without_a_transaction() -> None:
    config = TransactionConfig(id_expiration_ms=7_200_000)
    driver = TransactionDriver(config)
    driver.init("idle")
    driver.init("busy", timeout_ms=900_000)
    driver.put("open", Transaction(9, 0, 2_000_000_000, State.ONGOING, {"flights": (0,)}, START_MS, START_MS))
    for _ in range(3):
        driver.pass_ms(3_600_000)
        _, producer = driver.init("busy")
    driver.pass_ms(3_600_000)
    assert driver.names(TransactionFilter()) == ["busy", "open"]
    assert driver.add("idle", producer, PLACE) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for _ in range(4):
        driver.pass_ms(3_600_000)
    assert driver.names(TransactionFilter()) == ["open"], "an open one never expires"
    assert driver.loading(driver.log).committed.keys() == {"open"}


def test_expiry_looks_at_few_ids_per_turn() -> None:
    driver = TransactionDriver(TransactionConfig(id_expiration_ms=3_600_000, ids_per_turn_max=10))
    for index in range(25):
        driver.init(f"t{index}")
    driver.ms += 9_000_000
    sizes = []
    while driver.shard.committed:
        before = len(driver.shard.committed)
        driver.apply(driver.shard.expire(driver.now))
        sizes.append(before - len(driver.shard.committed))
        driver.ms += 2
    assert [size for size in sizes if size] == [10, 10, 5]


def test_what_is_served_elsewhere_has_no_timers_here() -> None:
    driver = TransactionDriver(TransactionConfig(id_expiration_ms=3_600_000))
    producer = begun(driver, timeout_ms=20_000)
    driver.init("idle")
    driver.keeping = Keeping.LEAVING
    driver.pass_ms(9_000_000)
    with pytest.raises(ProtocolError) as caught:
        driver.shard.find("t")
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    driver.keeping = Keeping.SERVED
    assert driver.state("t").producer == producer
    assert driver.state("t").state is State.ONGOING
    driver.pass_ms(20_000)
    assert driver.state("t").state is State.PREPARE_ABORT, "the move was cancelled"
    driver.keeping = Keeping.FOREIGN
    for _ in range(3):
        driver.pass_ms(3_600_000)
    assert not driver.shard.committed


def test_limits_of_one_owner() -> None:
    driver = TransactionDriver(limits=TransactionLimits(ids=2, open=1, partitions=3))
    _, first = driver.init("lkc-abc123_a")
    _, second = driver.init("lkc-abc123_b")
    assert driver.init("lkc-abc123_c")[0] is ErrorCode.POLICY_VIOLATION
    assert driver.init("lkc-abc123_a")[0] is NONE
    first = driver.state("lkc-abc123_a").producer
    assert driver.add("lkc-abc123_a", first, *(("flights", index) for index in range(4))) is (
        ErrorCode.TRANSACTION_ABORTABLE
    )
    assert driver.add("lkc-abc123_a", first, PLACE) is NONE
    assert driver.add("lkc-abc123_b", second, PLACE) is ErrorCode.TRANSACTION_ABORTABLE
    assert driver.init("lkc-zzz999_a")[0] is NONE, "another tenant's"
    assert driver.init("operators")[0] is NONE
    driver.end("lkc-abc123_a", first, commit=True)
    driver.write_markers()
    assert driver.add("lkc-abc123_b", second, PLACE) is NONE


def test_topics_of_one_transaction_are_bounded_and_their_partitions_are_cheap() -> None:
    """A record names each topic once, and is read or written in one turn of the loop."""
    driver = TransactionDriver()
    _, producer = driver.init("t")
    names = [f"t{index}" for index in range(70_000)]
    request = AddPartitions("t", *producer, dict.fromkeys(names, (0,)), new_protocol=True)
    with counted_calls() as count, pytest.raises(ProtocolError) as refused:
        driver.shard.add_partitions(request, driver.now)
    assert (refused.value.code, count.calls < 100) == (ErrorCode.TRANSACTION_ABORTABLE, True)
    assert driver.add("t", producer, *((name, 0) for name in names[:9_999])) is NONE
    assert driver.add("t", producer, *(("many", index) for index in range(90_001))) is NONE
    with counted_calls() as count:
        assert driver.add("t", producer, ("one-more", 0)) is ErrorCode.TRANSACTION_ABORTABLE
    assert count.calls < 200
    assert driver.add("t", producer, ("many", 90_001)) is ErrorCode.TRANSACTION_ABORTABLE
    assert driver.end("t", producer, commit=True)[0] is NONE
    assert sum(map(len, driver.write_markers()[0].partitions.values())) == 100_000


def test_bytes_of_one_owners_ids() -> None:
    """However they come and go, and for a new leader too."""
    driver = TransactionDriver(TransactionConfig(id_expiration_ms=1_000), limits=TransactionLimits(ids=200))
    most = TransactionLimits(ids=200).id_bytes
    names = [f"lkc-abc123_{letter}".ljust(most // 4, "x") for letter in "abcd"]
    for name in names:
        assert driver.init(name)[0] is NONE
    for _ in range(2):
        assert driver.init("lkc-abc123_e")[0] is ErrorCode.POLICY_VIOLATION
        assert driver.init(names[0])[0] is NONE, "it has the id"
        assert driver.init("lkc-zzz999_e")[0] is NONE, "another tenant's"
        assert driver.init("operators")[0] is NONE
        driver.reload()
    record = transaction_record(names[0], None)
    before = driver.shard.before(record)
    driver.shard.replay(*record)
    driver.shard.undo([before], driver.now)
    assert driver.init("lkc-abc123_e")[0] is ErrorCode.POLICY_VIOLATION, "the removal was taken back"
    driver.pass_ms(7_200_000)
    assert not driver.shard.committed
    assert driver.init("lkc-abc123_e")[0] is NONE
    assert driver.init("lkc-abc123_" + "ä" * (most // 4))[0] is ErrorCode.POLICY_VIOLATION, "it may take four each"


def test_the_longest_id_has_room_under_a_low_limit() -> None:
    driver = TransactionDriver(limits=TransactionLimits(ids=1))
    assert driver.init("t".ljust(driver.config.id_bytes_max, "x"))[0] is NONE
    assert driver.init("u")[0] is ErrorCode.POLICY_VIOLATION


def test_long_ids_count_where_memory_is_bounded() -> None:
    driver = TransactionDriver()
    driver.init("t" * 30_000)
    longer = driver.shard.held_bytes()
    driver.init("u" * 100)
    assert longer > 30_000
    assert longer + 100 < driver.shard.held_bytes() < longer + 1_000


def test_ten_thousand_partitions_and_absurdly_many() -> None:
    driver = TransactionDriver()
    _, producer = driver.init("t")
    names = [f"topic-{index:05}-of-a-long-name-as-they-are" for index in range(10_000)]
    request = AddPartitions("t", *producer, dict.fromkeys(names, (0,)), new_protocol=True)
    with counted_calls() as count:
        driver.decided(driver.shard.add_partitions(request, driver.now))
    assert count.calls < 7 * len(names), "one decision is one turn of the loop"
    code, bumped = driver.end("t", producer, commit=True)
    assert code is NONE
    assert max(len(record.value or b"") for record in driver.log) < driver.config.record_bytes_max
    driver.reload()
    assert len(driver.write_markers()[0].partitions) == 10_000
    long_names = [f"{index:0200}" for index in range(6_000)]
    assert driver.add("t", bumped, *((name, 0) for name in long_names)) is ErrorCode.TRANSACTION_ABORTABLE
    assert driver.end("t", bumped, commit=False)[0] is NONE


def test_list_filters() -> None:
    driver = TransactionDriver()
    _, first = driver.init("orders-1")
    driver.init("orders-2")
    driver.init("lkc-abc123_orders-3")
    driver.add("orders-1", first, PLACE)
    driver.ms += 5_000
    assert driver.names(TransactionFilter()) == ["orders-1", "orders-2", "lkc-abc123_orders-3"]
    assert driver.names(TransactionFilter(states=frozenset({State.ONGOING}))) == ["orders-1"]
    assert driver.names(TransactionFilter(states=frozenset())) == []
    assert driver.names(TransactionFilter(producer_ids=frozenset({first.producer_id}))) == ["orders-1"]
    assert driver.names(TransactionFilter(frozenset({State.ONGOING}), longer_than_ms=5_000)) == []
    assert driver.names(TransactionFilter(frozenset({State.ONGOING}), longer_than_ms=4_999)) == ["orders-1"]


def test_snapshot_holds_the_whole_shard() -> None:
    driver = TransactionDriver()
    begun(driver)
    driver.init("u")
    pieces = list(driver.shard.pack())
    assert sum(count for _, count in pieces) == 2
    copy = driver.loading([])
    for piece, _ in pieces:
        for run in read_runs(piece):
            copy.unpack(run)
    assert dict(copy.committed) == dict(driver.shard.committed)
