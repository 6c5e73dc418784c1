"""Buckets, counts, the handshake queue, the failure log and the shared state of workers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.settings import INT_MAX
from proxy.counters import COUNT, add_counters, without_gauges
from proxy.failures import CAUSES, LINES_BURST, LINES_PER_SECOND, LOG_AGAIN_S, REMEMBERED_MAX, Cause, FailureLog
from proxy.handshake_queue import HandshakeQueue
from proxy.limits import Buckets, Counts
from proxy.shared_state import PLACES, SETS, SLOT_BYTES, SharedState

KEY = b"k" * 32


def test_buckets_of_many_keys_are_forgotten() -> None:
    buckets = Buckets(limit=100)
    for number in range(10_000):
        assert buckets.permits(f"address-{number}", 1.0, number * 0.001)
    assert len(buckets) <= 101
    later = Buckets()
    for number in range(1_000):
        later.permits(f"address-{number}", 10.0, float(number))
    assert len(later) <= 3, "those that are full again go"


def test_a_changed_rate_begins_anew_and_no_rate_is_no_limit() -> None:
    buckets = Buckets()
    assert buckets.permits("a", 1.0, 0.0)
    assert not buckets.permits("a", 1.0, 0.0)
    assert buckets.permits("a", 2.0, 0.0)
    assert all(buckets.permits("a", 0.0, 0.0) for _ in range(100))


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([0.0, 1.0, 2.0, 7.5]), st.floats(0, 3)), max_size=40),
)
def test_a_key_keeps_its_bucket_while_its_rate_stays(limit: int, asked: list[tuple[str, float, float]]) -> None:
    """Whichever keys come and whenever their rates change, the one asked for last is there."""
    buckets, now, last = Buckets(limit), 0.0, ("", 0.0)
    for key, rate, pause in asked:
        if (key, rate) != last:
            now += pause
        permitted = buckets.permits(key, rate, now)
        if rate:
            while buckets.permits(key, rate, now):
                pass
            assert not buckets.permits(key, rate, now)
        assert permitted or rate
        assert len(buckets) <= limit + 1
        last = (key, rate)


def test_counts_are_kept_over_all_workers() -> None:
    shared = SharedState(bytearray(SharedState.bytes_for(3)), KEY)
    numbers = [shared.take_slot() for _ in range(3)]
    with pytest.raises(LookupError):
        shared.take_slot()

    def counts(own: int) -> Counts:
        return Counts(lambda key: shared.elsewhere(own, key), shared.slots[own].write)

    workers = [counts(number) for number in numbers]
    assert [workers[number % 3].enter("tenant", 5) for number in range(7)] == [True] * 5 + [False] * 2
    assert workers[2].enter("other", 5)
    workers[0].leave("tenant")
    assert workers[1].enter("tenant", 5)
    assert workers[1].total("tenant") == 5
    shared.slots[1].release()  # its worker died
    assert workers[0].total("tenant") == 2
    assert shared.take_slot() == 1
    assert workers[0].total("tenant") == 2


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 3)), max_size=300))
def test_a_slot_holds_what_was_written_last(changes: list[tuple[int, int, int]]) -> None:
    shared = SharedState(memoryview(bytearray(2 * SLOT_BYTES)), KEY)
    model: dict[tuple[int, str], int] = {}
    for number in (0, 1):
        shared.slots[number].take()
    for slot, key, count in changes:
        shared.slots[slot].write(f"k{key}", count)
        model[slot, f"k{key}"] = count
    for (slot, name), count in model.items():
        assert shared.slots[slot].read(name) == count
        assert shared.elsewhere(1 - slot, name) == count


def test_places_are_used_again_and_counters_are_not_touched() -> None:
    shared = SharedState(bytearray(SLOT_BYTES), KEY)
    slot = shared.slots[shared.take_slot()]
    slot.write_counters(list(range(COUNT)))
    for number in range(3 * SETS * PLACES // 10):
        slot.write(f"address-{number}", 1)
        slot.write(f"address-{number}", 0)
    slot.write("last", 7)
    assert slot.read("last") == 7
    assert slot.read_counters(COUNT) == list(range(COUNT))


def test_a_full_set_leaves_a_key_out_and_harms_none() -> None:
    shared = SharedState(bytearray(SLOT_BYTES), KEY)
    slot = shared.slots[shared.take_slot()]
    keys = [f"address-{number}" for number in range(SETS * PLACES)]
    for key in keys:
        slot.write(key, 1)
    found = sum(slot.read(key) for key in keys)
    assert SETS * PLACES * 0.85 < found <= SETS * PLACES


def test_counters_of_the_dead_stay_counted_and_gauges_do_not() -> None:
    one, two = list(range(COUNT)), [1] * COUNT
    sums = add_counters([without_gauges(one), two])
    assert [index for index in range(COUNT) if sums[index] != one[index] + 1] == [10, 11]


async def test_one_step_runs_in_a_turn_and_traffic_runs_between() -> None:
    loop = asyncio.get_running_loop()
    handshake_queue, order = HandshakeQueue(loop), list[str]()
    done = asyncio.Event()

    def traffic(number: int) -> None:
        order.append("traffic")
        if number:
            loop.call_soon(traffic, number - 1)
        else:
            done.set()

    for number in range(4):
        handshake_queue.enter(lambda number=number: order.append(f"step {number}"))  # type: ignore[misc]
    assert order == [], "what is ready in this turn goes first"
    assert len(handshake_queue) == 4
    loop.call_soon(traffic, 6)
    await done.wait()
    steps = [index for index, what in enumerate(order) if what.startswith("step")]
    assert [order[index] for index in steps] == [f"step {number}" for number in range(4)]
    assert all(later - earlier > 1 for earlier, later in itertools.pairwise(steps))


def test_a_failure_is_logged_once_per_cause_and_address_and_always_counted(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog()
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            failures.note(Cause.UNKNOWN_NAME, "10.0.0.1", 1.0)
            failures.note(Cause.UNKNOWN_NAME, "10.0.0.2", 1.0)
            failures.note(Cause.BAD_HELLO, "10.0.0.1", 1.0)
            failures.note(Cause.GONE, "10.0.0.1", 1.0)
        assert len(caplog.records) == 3
        failures.note(Cause.UNKNOWN_NAME, "10.0.0.1", 2.0 + LOG_AGAIN_S)
        assert vars(caplog.records[-1])["not_logged_before"] == 49
    assert failures.counts[Cause.UNKNOWN_NAME] == 101
    assert failures.counts[Cause.GONE] == 50
    assert set(failures.counts) == set(CAUSES)


def test_a_flood_from_many_addresses_writes_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    failures, rng = FailureLog(), random.Random(1)
    with caplog.at_level(logging.WARNING):
        for number in range(20_000):
            failures.note(Cause.BAD_HELLO, f"10.{rng.randrange(256)}.0.{rng.randrange(256)}", number * 0.0005)
    assert len(caplog.records) <= LINES_BURST + 10 * 20 + 1
    assert failures.counts[Cause.BAD_HELLO] == 20_000
    assert failures.lines_dropped > 0


def test_addresses_that_failed_long_before_many_others_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog()
    with caplog.at_level(logging.WARNING):
        for number in range(REMEMBERED_MAX + 1):
            failures.note(Cause.BAD_HELLO, str(number), number / LINES_PER_SECOND)
        assert len(caplog.records) == REMEMBERED_MAX + 1
        now = (REMEMBERED_MAX + 1) / LINES_PER_SECOND
        assert now < LOG_AGAIN_S
        for number in (1, REMEMBERED_MAX):
            failures.note(Cause.BAD_HELLO, str(number), now)
        assert len(caplog.records) == REMEMBERED_MAX + 1, "these are remembered"
        failures.note(Cause.BAD_HELLO, "0", now)
        assert len(caplog.records) == REMEMBERED_MAX + 2


def test_counts_without_a_limit_are_counted_all_the_same() -> None:
    counts = Counts()
    assert all(counts.enter("a", INT_MAX) for _ in range(3))
    assert not counts.enter("a", 3)
    for _ in range(3):
        counts.leave("a")
    assert len(counts) == 0
