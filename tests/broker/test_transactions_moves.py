"""Transactional ids that are handed over, in shards: what goes along, what must end first, and what is left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordination.packed_records import read_runs
from broker.coordination.shard import CoordinatorRecord
from broker.coordination.transactions.config import TransactionConfig
from broker.coordination.transactions.coordinator_epochs import coordinator_epoch, raised_floor
from broker.coordination.transactions.moving_ids import LACK_MS, MovingIds
from broker.coordination.transactions.records import EPOCH_FLOOR_KEY, decode_value, epoch_floor_record
from broker.coordination.transactions.values import MarkersToWrite, Producer, TransactionFilter, TransactionState
from common.errors import ErrorCode, ProtocolError
from common.pacing import at_once
from kraft.image.key_ranges import Keeping
from kraft.records import KeysPhase
from kraft.topic_names import GROUP_TOPIC
from tests.broker.transaction_driver import TransactionDriver

TENANT, OTHER = "lkc-aaaaaa", "lkc-bbbbbb"
PREFIX = f"{TENANT}_"
ID = f"{PREFIX}t"
FLIGHTS, OFFSETS = ("flights", 0), (GROUP_TOPIC, 3)
KEYS = MovingIds()


def begun(driver: TransactionDriver, name: str = ID, *partitions: tuple[str, int], new: bool = True) -> Producer:
    code, producer = driver.init(name)
    assert code is ErrorCode.NONE
    assert driver.add(name, producer, *(partitions or (FLIGHTS,)), new_protocol=new) is ErrorCode.NONE
    return producer


def handed_over(old: TransactionDriver, new: TransactionDriver, epochs: tuple[int, int] = (7, 2)) -> None:
    """All of the tenant's ids, from the leader of one partition in an epoch to that of another."""
    old.keeping, new.keeping = Keeping.LEAVING, Keeping.COMING
    at_once(KEYS.check_ready(old.shard, PREFIX, KeysPhase.IDS_COPYING, old.now))
    for name in list(KEYS.names(old.shard, PREFIX)):
        assert name is not None
        records = [*KEYS.introduced(old.shard, epochs[0]), *at_once(KEYS.records_of(old.shard, name))]
        new.apply(KEYS.accepted(new.shard, epochs[1], records, belongs))
    old.keeping, new.keeping = Keeping.FOREIGN, Keeping.SERVED


def belongs(name: str) -> bool:
    return name.startswith(PREFIX)


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ProtocolError) as refused:
        call()
    return refused.value.code


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_an_ongoing_transaction_ends_where_it_has_gone(version: int, new: bool) -> None:
    """Also in records of version 0, which have no tagged fields."""
    new = new and version == 2
    old, there = TransactionDriver(version=version), TransactionDriver(version=version)
    producer = begun(old, ID, FLIGHTS, OFFSETS, new=new)
    handed_over(old, there)
    assert there.state(ID) == decode_value(old.shard.committed[ID])
    there.reload()
    code, _ = there.end(ID, producer, commit=True, new_protocol=new)
    assert code is ErrorCode.NONE
    (markers,) = there.write_markers()
    assert markers.partitions == {FLIGHTS[0]: (0,), OFFSETS[0]: (3,)}
    assert coordinator_epoch(2, markers.epoch_floor) > coordinator_epoch(7, 0)
    assert there.state(ID).state is TransactionState.COMPLETE_COMMIT


def test_at_each_moment_of_a_move_some_coordinator_lists_an_open_transaction() -> None:
    """Also while one of the two has not heard yet how far the move is. What is not served is not described."""
    old, there = TransactionDriver(), TransactionDriver()
    begun(old)

    def lists() -> list[str]:
        return old.names(TransactionFilter()) + there.names(TransactionFilter())

    handed_over(old, there)
    for sides in (
        (Keeping.LEAVING, Keeping.FOREIGN), (Keeping.LEAVING, Keeping.COMING), (Keeping.LEAVING, Keeping.SERVED),
        (Keeping.FOREIGN, Keeping.COMING), (Keeping.FOREIGN, Keeping.SERVED),
    ):  # fmt: skip
        old.keeping, there.keeping = sides
        assert ID in lists()
        for driver in (old, there):
            if driver.keeping is not Keeping.SERVED:
                assert code_of(lambda driver=driver: driver.shard.find(ID)) is ErrorCode.NOT_COORDINATOR  # type: ignore[misc]
    old.keeping = there.keeping = Keeping.FOREIGN
    assert lists() == []


def test_a_prepared_transaction_ends_first() -> None:
    driver = TransactionDriver()
    producer = begun(driver)
    driver.end(ID, producer, commit=False)
    driver.keeping = Keeping.LEAVING
    for call in (
        lambda: at_once(KEYS.check_ready(driver.shard, PREFIX, KeysPhase.IDS_COPYING, driver.now)),
        lambda: at_once(KEYS.records_of(driver.shard, ID)),
    ):
        assert code_of(call) is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.write_markers()
    handed_over(driver, TransactionDriver())


@pytest.mark.parametrize("commit", [True, False])
def test_no_fence_begins_while_a_prepared_transaction_has_lacked_markers_for_long(commit: bool) -> None:
    """As where a partition has no leader, be its coordinator a new one. Those that are under way are waited for behind
    the fence, so a tenant whose transactions end all the time can move; an ongoing one goes along."""
    driver = TransactionDriver()
    begun(driver, f"{PREFIX}ongoing")
    driver.end(ID, begun(driver), commit=commit)

    def look() -> None:
        at_once(KEYS.check_ready(driver.shard, PREFIX, KeysPhase.IDS_CLEARING, driver.now))

    driver.pass_ms(LACK_MS - 1)
    look()
    driver.pass_ms(1)
    assert code_of(look) is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.reload()
    assert code_of(look) is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.write_markers()
    look()
    at_once(KEYS.check_ready(driver.shard, f"{OTHER}_", KeysPhase.IDS_CLEARING, driver.now))


def test_a_prepared_transaction_of_a_clock_ahead_is_not_handed_over() -> None:
    driver = TransactionDriver()
    driver.end(ID, begun(driver), commit=True)
    earlier = driver.now._replace(wall_ms=driver.now.wall_ms - 60_000)
    for phase in (KeysPhase.IDS_CLEARING, KeysPhase.IDS_COPYING):
        check = KEYS.check_ready(driver.shard, PREFIX, phase, earlier)
        if phase is KeysPhase.IDS_COPYING:
            assert code_of(lambda check=check: at_once(check)) is ErrorCode.CONCURRENT_TRANSACTIONS  # type: ignore[misc]
        else:
            at_once(check)


def test_what_does_not_belong_is_not_taken() -> None:
    old, new = TransactionDriver(), TransactionDriver()
    begun(old)
    begun(old, f"{OTHER}_t")
    epoch = KEYS.introduced(old.shard, 3)
    mine, theirs = (at_once(KEYS.records_of(old.shard, name)) for name in (ID, f"{OTHER}_t"))
    old.end(f"{PREFIX}p", begun(old, f"{PREFIX}p"), commit=True)
    prepared = [CoordinatorRecord(record.key, record.value) for record in old.log if record.key.endswith(b"_p")][-1:]
    removed = [mine[0]._replace(value=None)]
    for records in (mine, [], [*epoch, *theirs], [*epoch, *prepared], [*epoch, *removed], [*mine, *epoch]):
        refused = code_of(lambda records=records: KEYS.accepted(new.shard, 1, records, belongs))  # type: ignore[misc]
        assert refused is ErrorCode.INVALID_REQUEST
    assert len(KEYS.accepted(new.shard, 1, [*epoch, *mine], belongs)) == 2


def test_a_fenced_transaction_does_not_time_out_and_one_that_went_does() -> None:
    old, there = TransactionDriver(), TransactionDriver()
    begun(old)
    old.keeping = Keeping.LEAVING
    old.pass_ms(120_000)
    assert not old.acts
    there.ms = old.ms
    handed_over(old, there)
    there.pass_ms(20_000)
    (markers,) = there.acts
    assert not markers.commit


def test_what_is_left_behind_goes_and_other_tenants_ids_stay() -> None:
    old = TransactionDriver(TransactionConfig(ids_per_turn_max=200))
    begun(old)
    for number in range(450):
        old.init(f"{PREFIX}{number}")
    handed_over(old, TransactionDriver())
    old.shard.keeping_changed(PREFIX, old.now)
    for _ in range(4):
        old.pass_ms(100)
    assert not old.shard.committed
    old.keeping = Keeping.SERVED
    begun(old, f"{OTHER}_t")
    old.shard.keeping_changed(PREFIX, old.now)
    for _ in range(4):
        old.pass_ms(100)
    assert list(old.shard.committed) == [f"{OTHER}_t"]


def test_a_new_leader_finds_leftovers_by_itself() -> None:
    old = TransactionDriver()
    begun(old)
    handed_over(old, TransactionDriver())
    old.reload()
    old.pass_ms(old.config.expired_ids_interval_ms)
    assert not old.shard.committed


def test_deleted_tenants_transactions_are_aborted_where_they_are_served_only() -> None:
    """A copy that a move has left is removed as it is: its transaction goes on, or is aborted, elsewhere."""
    old, there = TransactionDriver(), TransactionDriver()
    begun(old, ID, FLIGHTS, OFFSETS)
    handed_over(old, there)
    assert old.decided(old.shard.remove_ids((PREFIX,), 10, old.now)) == 1
    assert not old.acts
    assert not old.shard.committed
    assert there.decided(there.shard.remove_ids((PREFIX,), 10, there.now)) == 1
    (markers,) = there.acts
    assert not markers.commit
    assert code_of(lambda: there.shard.remove_ids((PREFIX,), 10, there.now)) is ErrorCode.CONCURRENT_TRANSACTIONS
    there.write_markers()
    assert there.decided(there.shard.remove_ids((PREFIX,), 10, there.now)) == 1
    assert not there.shard.committed


def test_while_groups_drain_transactions_with_offsets_end_and_others_wait_with_theirs() -> None:
    driver = TransactionDriver()
    has, lacks = begun(driver, ID, FLIGHTS, OFFSETS), begun(driver, f"{PREFIX}u")
    driver.keys_phase = KeysPhase.DRAINING
    assert driver.add(ID, has, ("more", 1), (GROUP_TOPIC, 5)) is ErrorCode.NONE
    assert driver.add(f"{PREFIX}u", lacks, ("more", 1)) is ErrorCode.NONE
    assert driver.add(f"{PREFIX}u", lacks, OFFSETS, new_protocol=False) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    drained = KEYS.check_ready(driver.shard, PREFIX, KeysPhase.DRAINING, driver.now)
    assert code_of(lambda: at_once(drained)) is ErrorCode.CONCURRENT_TRANSACTIONS
    _, has = driver.end(ID, has, commit=True)
    assert code_of(lambda: at_once(KEYS.check_ready(driver.shard, PREFIX, KeysPhase.DRAINING, driver.now)))
    driver.write_markers()
    at_once(KEYS.check_ready(driver.shard, PREFIX, KeysPhase.DRAINING, driver.now))
    assert driver.add(ID, has, OFFSETS) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    driver.keys_phase = KeysPhase.SETTLED
    assert driver.add(ID, has, OFFSETS) is ErrorCode.NONE


def test_while_groups_wait_for_long_transactions_none_begins_and_ongoing_ones_go_on() -> None:
    driver = TransactionDriver()
    has, lacks = begun(driver, ID, FLIGHTS, OFFSETS), begun(driver, f"{PREFIX}u")
    _, next_one = driver.init(f"{PREFIX}v")
    driver.keys_phase = KeysPhase.HOLDING
    for partition in (FLIGHTS, OFFSETS):
        assert driver.add(f"{PREFIX}v", next_one, partition) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.add(f"{PREFIX}u", lacks, ("more", 1), OFFSETS) is ErrorCode.NONE
    for name, producer in ((ID, has), (f"{PREFIX}u", lacks)):
        assert code_of(lambda: at_once(KEYS.check_ready(driver.shard, PREFIX, KeysPhase.HOLDING, driver.now)))
        _, after = driver.end(name, producer, commit=True)
        driver.write_markers()
        assert driver.add(name, after, FLIGHTS) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    at_once(KEYS.check_ready(driver.shard, PREFIX, KeysPhase.HOLDING, driver.now))


# coordinator epochs ----------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=30), st.lists(st.integers(0, 50), min_size=4)
)
def test_a_coordinator_epoch_rises_with_each_move(moves: list[tuple[int, int]], epochs: list[int]) -> None:
    """Between partitions with any leader epochs, and elections meanwhile."""
    floors = [0] * 4
    place, last = 0, coordinator_epoch(epochs[0], 0)
    for target, elections in moves:
        epochs[place] += elections
        assert coordinator_epoch(epochs[place], floors[place]) >= last
        last = coordinator_epoch(epochs[place], floors[place])
        if target != place:
            floors[target] = raised_floor(floors[target], epochs[target], last)
            place = target
            assert coordinator_epoch(epochs[place], floors[place]) > last
            last = coordinator_epoch(epochs[place], floors[place])


@pytest.mark.parametrize("is_known", [True, False])
def test_no_marker_has_a_coordinator_epoch_that_was_taken_back(is_known: bool) -> None:
    """The log rejects a batch: an import has raised the floor in it, and markers were asked for meanwhile, or the end
    of their transaction is in it. A leader that has such an epoch refuses all later markers."""
    driver = TransactionDriver()
    driver.end(ID, begun(driver), commit=True)
    shard = driver.shard if is_known else driver.loaded(driver.log)
    batch = KEYS.accepted(shard, 1, [epoch_floor_record(9)], belongs)
    before = [shard.before(record) for record in batch]
    shard.replay(*batch[0])
    if is_known:
        for record in shard.complete(driver.acts, driver.now).records:
            before.append(shard.before(record))
            shard.replay(*record)
    else:
        shard.find(ID)
    acts = shard.take_acts()
    assert shard.epoch_floor == 9
    shard.undo(before[::-1], driver.now)
    shard.put_back(acts)
    (act,) = shard.take_acts()
    assert isinstance(act, MarkersToWrite)
    assert (act.transactional_id, act.epoch_floor, shard.epoch_floor) == (ID, 0, 0)
    shard.replay(*shard.complete([act], driver.now).records[0])
    assert ID not in shard.open


def test_the_floor_survives_loads_snapshots_and_what_is_taken_back() -> None:
    driver = TransactionDriver()
    driver.apply([epoch_floor_record(5)])
    begun(driver)
    before = driver.shard.before(epoch_floor_record(9))
    driver.shard.replay(*epoch_floor_record(9))
    driver.shard.undo([before], driver.now)
    assert driver.shard.epoch_floor == 5
    driver.reload()
    assert driver.shard.epoch_floor == 5
    unpacked = driver.loading([])
    for data, _ in driver.shard.pack():
        for run in read_runs(data):
            unpacked.unpack(run)
    assert unpacked.epoch_floor == 5
    assert unpacked.committed == driver.shard.committed
    assert unpacked.replay_all([(EPOCH_FLOOR_KEY, b"\0\1\0\0\0\0")]) == 1, "of a version that is not known"
    assert unpacked.epoch_floor == 5
