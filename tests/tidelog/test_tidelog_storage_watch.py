"""When a node's storage counts as stuck, by values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.disk_operations import DiskOperations
from tidelog.nodes.storage_watch import LOOP_RUNS_S, TURN, StorageWatch, Stuck

STUCK_S, INTERVAL_S = 10.0, 0.5
NOTHING: dict[int, str] = {}


@pytest.fixture
def watch() -> StorageWatch:
    return StorageWatch(STUCK_S, INTERVAL_S)


def looks_until_stuck(
    watch: StorageWatch,
    running: dict[int, str],
    *,
    is_answered: bool = True,
    busy_s: float = 0.0,
    passed_s: float = INTERVAL_S,
    most: int = 100,
) -> tuple[int, Stuck | None]:
    for number in range(1, most + 1):
        if (stuck := watch.look(passed_s, is_answered, busy_s, running)) is not None:
            return number, stuck
    return most, None


def test_a_thread_that_does_not_come_back_is_found_while_the_loop_runs(watch: StorageWatch) -> None:
    looks, stuck = looks_until_stuck(watch, {7: "flush a.log"})
    assert (looks - 1) * INTERVAL_S == STUCK_S
    assert stuck == Stuck("flush a.log", STUCK_S, loop_runs=True)


def test_a_turn_that_waits_is_found(watch: StorageWatch) -> None:
    looks, stuck = looks_until_stuck(watch, NOTHING, is_answered=False)
    assert looks * INTERVAL_S == STUCK_S
    assert stuck == Stuck(TURN, STUCK_S, loop_runs=False)


def test_a_turn_that_works_is_no_stuck_disk(watch: StorageWatch) -> None:
    assert looks_until_stuck(watch, NOTHING, is_answered=False, busy_s=INTERVAL_S) == (100, None)
    assert watch.oldest_s == 0.0


def test_a_turn_that_mostly_waits_is_found_later(watch: StorageWatch) -> None:
    looks, stuck = looks_until_stuck(watch, NOTHING, is_answered=False, busy_s=INTERVAL_S / 2)
    assert stuck is not None
    assert looks == 2 * STUCK_S / INTERVAL_S


def test_operations_that_follow_each_other_are_not_one(watch: StorageWatch) -> None:
    for number in range(200):
        assert watch.look(INTERVAL_S, True, 0.0, {number // 15: "write"}) is None


def test_the_oldest_operation_is_named(watch: StorageWatch) -> None:
    watch.look(INTERVAL_S, True, 0.0, {1: "old"})
    _, stuck = looks_until_stuck(watch, {2: "young", 1: "old"})
    assert stuck is not None
    assert stuck.what == "old"


def test_a_loop_that_is_silent_too_is_not_asked(watch: StorageWatch) -> None:
    for _ in range(int((STUCK_S - LOOP_RUNS_S) / INTERVAL_S)):
        assert watch.look(INTERVAL_S, True, 0.0, {1: "write"}) is None
    _, stuck = looks_until_stuck(watch, {1: "write"}, is_answered=False)
    assert stuck is not None
    assert stuck.what == "write"
    assert not stuck.loop_runs


def test_a_stopped_process_finds_nothing_when_it_goes_on(watch: StorageWatch) -> None:
    watch.look(INTERVAL_S, True, 0.0, {1: "flush"})
    assert watch.look(3_600.0, False, 0.0, {1: "flush"}) is None
    assert watch.oldest_s <= INTERVAL_S
    assert watch.look(INTERVAL_S, True, 0.0, NOTHING) is None
    assert watch.oldest_s == 0.0


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans(), st.floats(0, 100)), max_size=60))
def test_no_age_exceeds_the_time_for_which_the_watch_ran(steps: list[tuple[float, bool, float]]) -> None:
    watch, ran_s = StorageWatch(STUCK_S, INTERVAL_S), 0.0
    for passed_s, is_answered, busy_s in steps:
        ran_s += min(passed_s, INTERVAL_S)
        stuck = watch.look(passed_s, is_answered, busy_s, {1: "flush"})
        assert watch.oldest_s <= ran_s + 1e-9
        assert (stuck is not None) == (watch.oldest_s >= STUCK_S)


def test_operations_are_known_while_they_last() -> None:
    operations = DiskOperations()
    with operations.operation("a"), operations.operation("b"):
        assert sorted(operations.running().values()) == ["a", "b"]
        with pytest.raises(OSError, match="failed"), operations.operation("c"):
            raise OSError("failed")
        assert len(operations.running()) == 2
    first, second = DiskOperations(), DiskOperations()
    with first.operation("a"):
        before = first.running()
    with first.operation("a"):
        assert not before.keys() & first.running().keys(), "another operation of the same name is another one"
        assert second.running() == {}
