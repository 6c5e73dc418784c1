"""The producers of all logs of a broker together: the idlest go first, and what that changes for duplicates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from common.directory_config import DirectoryConfig
from common.pacing import SLICE_COST, at_once
from records.batch import CONTROL, TRANSACTIONAL, BatchHeader, read_header
from records.control import EndMarker, MarkerKind
from storage.producers.producer_bound import TURN_MS, ProducerBound
from storage.producers.producer_state import Duplicate, ProducerStates
from tests.storage.log_workbench import FOREVER, NOW_MS, Workbench, append, produced

BEGUN_MS = 1_000 * TURN_MS
COMMIT = EndMarker(MarkerKind.COMMIT, 3, BEGUN_MS)


def batch(pid: int, sequence: int = 0, *, offset: int = 0, attributes: int = 0, at_ms: int = BEGUN_MS) -> BatchHeader:
    return BatchHeader(offset, 100, 0, 2, 0, attributes, 0, at_ms, at_ms, pid, 0, sequence, 1)


def log_of(bound: ProducerBound | None = None) -> ProducerStates:
    made = ProducerStates(2**60, 1_000_000)
    if bound is not None:
        made.join(bound)
    return made


def ids(log: ProducerStates) -> list[int]:
    return [view.producer_id for view in log.views()]


def test_the_idlest_of_all_logs_goes_first() -> None:
    bound = ProducerBound(3, BEGUN_MS)
    logs = [log_of(bound) for _ in range(3)]
    for turn, (number, pid) in enumerate([(0, 1), (1, 2), (2, 3), (0, 1)]):
        bound.grow_older(BEGUN_MS + turn * TURN_MS)
        logs[number].update(batch(pid))
    bound.grow_older(BEGUN_MS + 4 * TURN_MS)
    logs[0].update(batch(4))
    assert [ids(log) for log in logs] == [[1, 4], [], [3]]
    assert (bound.count, bound.forgotten_count) == (3, 1)


Step = tuple[int, int, bool, int]


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans(), st.integers(0, 2))))
def test_no_idler_one_stays_than_went_unless_it_has_an_open_transaction(most: int, steps: list[Step]) -> None:
    """Against all that was ever appended, remembered by turn."""
    bound = ProducerBound(most, BEGUN_MS)
    logs = [log_of(bound) for _ in range(4)]
    turns: dict[tuple[int, int], int] = {}
    turn, offset = BEGUN_MS // TURN_MS, 0
    for number, pid, is_open, later in steps:
        turn, offset = turn + later, offset + 1
        bound.grow_older(turn * TURN_MS)
        before = {(at, view.producer_id): view for at, log in enumerate(logs) for view in log.views()}
        logs[number].update(batch(pid, offset=offset, attributes=TRANSACTIONAL * is_open))
        turns[number, pid] = turn
        left = {(at, view.producer_id): view for at, log in enumerate(logs) for view in log.views()}
        assert bound.count == len(left) == sum(map(len, logs))
        idle = [turns[key] for key, view in left.items() if view.transaction_start_offset < 0]
        assert bound.count <= most or not idle
        for key in before.keys() - left.keys():
            assert before[key].transaction_start_offset < 0
            assert turns[key] <= min(idle, default=turn)


def test_after_a_transaction_its_producer_may_go() -> None:
    bound = ProducerBound(1, BEGUN_MS)
    first, second = log_of(bound), log_of(bound)
    first.update(batch(1, attributes=TRANSACTIONAL))
    bound.grow_older(BEGUN_MS + TURN_MS)
    second.update(batch(2))
    assert (ids(first), ids(second)) == ([1], [])
    first.update(batch(1, -1, offset=1, attributes=TRANSACTIONAL | CONTROL), COMMIT)
    at_once(first.expire(BEGUN_MS))
    bound.grow_older(BEGUN_MS + 2 * TURN_MS)
    second.update(batch(3))
    assert (ids(first), ids(second), bound.count) == ([], [3], 1)


def test_what_comes_with_a_log_goes_in_slices_the_idlest_by_record_time_first() -> None:
    bound = ProducerBound(5_000, BEGUN_MS)
    live = log_of(bound)
    for pid in range(1_000):
        live.update(batch(pid))
    found = log_of()
    for pid in range(20_000):
        found.update(batch(pid, at_ms=BEGUN_MS - (20_000 - pid) * TURN_MS // 10))
    found.join(bound)
    assert bound.count == 21_000
    costs = list(bound.trim())
    assert max(costs) <= SLICE_COST
    assert (len(live), ids(found)[0], bound.count) == (1_000, 16_000, 5_000)
    live.leave()
    found.reset(0)
    assert bound.count == 0


def test_a_forgotten_producer_goes_on_and_replicas_that_remember_agree_about_what_follows() -> None:
    bound = ProducerBound(1, BEGUN_MS)
    leader, other, follower = log_of(bound), log_of(bound), log_of()
    for log in (leader, follower):
        log.update(batch(7, 0, offset=0))
    bound.grow_older(BEGUN_MS + TURN_MS)
    other.update(batch(8))
    assert ids(leader) == []
    for sequence in (1, 2):
        header = batch(7, sequence, offset=sequence)
        assert follower.check(header) is None
        for log in (leader, follower):
            log.update(header)
    for log in (leader, follower):
        assert log.check(batch(7, 1)) == Duplicate(1, 2, BEGUN_MS)
        assert log.check(batch(7, 3)) is None
    replayed = log_of()
    replayed.load_snapshot(leader.snapshot(), 3, BEGUN_MS)
    assert replayed.check(batch(7, 2)) == Duplicate(2, 3, BEGUN_MS)


async def test_a_broker_keeps_its_bound_over_appends_starts_and_logs_that_go(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, FOREVER, DirectoryConfig(free_bytes_min=0, producers_max=100))
    for partition in range(3):
        log = await bench.log("t", partition)
        for pid in range(60):
            append(log, produced(1, producer_id=pid))
    known = bench.directory.context.producers
    assert (known.count, known.forgotten_count) == (100, 80)
    log, again = await bench.log("t", 0), read_header(produced(1, producer_id=59), 0)
    assert log.find_duplicate(again) is None
    append(log, produced(1, producer_id=59))
    assert log.find_duplicate(again) is not None
    bench.limits = replace(bench.limits, producers_max=50)
    log = await bench.restart(clean=False)
    known = bench.directory.context.producers
    assert known.count == sum(len(one.producers) for one in bench.directory.logs.values()) == 50
    for one in list(bench.directory.logs.values()):
        bench.directory.delete_log(one)
    assert known.count == 0
    assert known.turn == NOW_MS // TURN_MS
    await bench.directory.close()


def test_a_snapshot_that_is_taken_over_counts_its_producers() -> None:
    bound = ProducerBound(100, BEGUN_MS)
    log, other = log_of(bound), log_of(bound)
    for pid in range(10):
        log.update(batch(pid))
    for _ in range(3):
        other.load_snapshot(log.snapshot(), 10, BEGUN_MS)
        assert bound.count == 20
    other.leave()
    assert bound.count == 10
