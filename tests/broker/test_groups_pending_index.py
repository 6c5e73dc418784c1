"""Pending offsets are found by their place: what is found is what a look at all of them finds, and it costs no more
where a group has thousands of producers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordination.groups.pending_group import UNKNOWN, Pending, Place
from broker.coordination.groups.pending_offsets import PENDING_BYTES, PendingOffsets
from common.decision import ProducerStamp
from tests.common.call_count import counted_calls

NAMES = [b"\0\1g", b"\0\1h"]
PLACES = [b"\0\1t\0\0\0" + bytes((number,)) for number in range(3)]
PRODUCERS = [1, 2, 3]
ELSEWHERE = b"\0\1u\0\0\0\0"

NAME, PLACE, PRODUCER = st.sampled_from(NAMES), st.sampled_from(PLACES), st.sampled_from(PRODUCERS)
STEPS = st.one_of(
    st.tuples(st.just("put"), NAME, PLACE, PRODUCER),
    st.tuples(st.just("put"), NAME, PLACE, PRODUCER),
    st.tuples(st.just("overtaken"), NAME, PLACE, st.booleans()),
    st.tuples(st.just("end"), PRODUCER, st.booleans(), st.none()),
    st.tuples(st.just("remember"), NAME, PLACE, st.none()),
    st.tuples(st.just("restore"), st.none(), st.none(), st.none()),
)
Step = tuple[str, Any, Any, Any]
Key = tuple[bytes, bytes]


class Scanned:
    """The same by a look at all that is pending, of a log that is replayed once and in order."""

    def __init__(self) -> None:
        self.pending: dict[Key, dict[int, Pending]] = {}
        self.newest: dict[Key, int] = {}

    def put(self, name: bytes, place: bytes, pending: Pending) -> None:
        self.pending.setdefault((name, place), {})[pending.producer.producer_id] = pending

    def overtaken(self, name: bytes, place: bytes, offset: int, *, removed: bool) -> None:
        if (name, place) in self.pending:
            self.newest[name, place] = offset
        if removed:
            self.set_place(name, place, None)

    def end(self, producer_id: int, *, commit: bool) -> tuple[int, dict[Key, bytes]]:
        ended, counting = 0, dict[Key, bytes]()
        for key, of_producers in list(self.pending.items()):
            mine = of_producers.pop(producer_id, None)
            if mine is not None:
                ended += 1
                if commit and mine.offset >= self.newest.get(key, UNKNOWN):
                    counting[key] = mine.value
                    self.newest[key] = mine.offset
            if not of_producers:
                self.set_place(*key, None)
        return ended, counting

    def place_of(self, name: bytes, place: bytes) -> Place | None:
        found = self.pending.get((name, place))
        return Place(self.newest.get((name, place), UNKNOWN), tuple(sorted(found.values()))) if found else None

    def set_place(self, name: bytes, place: bytes, state: Place | None) -> None:
        self.pending.pop((name, place), None)
        self.newest.pop((name, place), None)
        if state is not None:
            self.pending[name, place] = {one.producer.producer_id: one for one in state.pending}
            if state.newest > UNKNOWN:
                self.newest[name, place] = state.newest


def taken(pending: PendingOffsets, step: Step, at: int, kept: list[tuple[Key, Place | None]]) -> Any:
    """Take the step at the offset `at`; `kept` is what steps remember for later ones."""
    kind, first, second, third = step
    if kind == "put":
        pending.put(first, second, Pending(at, ProducerStamp(third, 0), b"%d" % at))
    elif kind == "overtaken":
        pending.overtaken(first, second, at, removed=third)
    elif kind == "end":
        return pending.end(first, at, commit=second)
    elif kind == "remember":
        kept.append(((first, second), pending.place_of(first, second)))
    elif kept:
        pending.set_place(*kept[-1][0], kept.pop()[1])
    return None


def check_found(pending: PendingOffsets) -> None:
    """What is found by place is what a look at all producers finds: their places, and how many offsets they have."""
    found = 0
    for name in NAMES:
        group_id = name[2:].decode()
        here = {place for place in PLACES if pending.place_of(name, place) is not None}
        assert here == set(pending.places(group_id)) == {one for one in PLACES if pending.holds(group_id, one)}
        assert pending.has(group_id) is bool(here)
        assert set[bytes]().union(*(pending.places_of(one, group_id) for one in PRODUCERS)) == here
        found += sum(len(list(pending.values(group_id, place))) for place in here)
    names = sum(len(name) - 2 for name in NAMES if pending.has(name[2:].decode()))
    assert pending.held_bytes() == found * PENDING_BYTES + 2 * names
    for one in PRODUCERS:
        groups, offsets = pending.size_of(one)
        assert groups == sum(bool(pending.places_of(one, name[2:].decode())) for name in NAMES) <= offsets
    assert sum(pending.size_of(one)[1] for one in PRODUCERS) == found
    assert bool(pending) is bool(found)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_what_is_found_by_place_is_what_a_look_at_all_finds(steps: list[Step]) -> None:
    pending, scanned, kept = PendingOffsets(), Scanned(), list[tuple[Key, Place | None]]()
    for at, step in enumerate(steps):
        kind, first, second, third = step
        if kind == "put":
            scanned.put(first, second, Pending(at, ProducerStamp(third, 0), b"%d" % at))
        elif kind == "overtaken":
            scanned.overtaken(first, second, at, removed=third)
        elif kind == "restore" and kept:
            scanned.set_place(*kept[-1][0], kept[-1][1])
        found = taken(pending, step, at, kept)
        if kind == "end":
            ended, counting = found
            values = {(one.name, place): value for one in counting for place, value in one.values.items()}
            assert (ended, values) == scanned.end(first, commit=second)
        for name in NAMES:
            for place in PLACES:
                assert pending.place_of(name, place) == scanned.place_of(name, place)
        check_found(pending)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(0, 10)), max_size=40))
def test_they_agree_in_any_order_of_a_log(steps: list[tuple[Step, int]]) -> None:
    """As a load replays records from before its snapshot: a producer has several offsets of one place then."""
    pending, kept = PendingOffsets(), list[tuple[Key, Place | None]]()
    for step, at in steps:
        taken(pending, step, at, kept)
        check_found(pending)
    for producer_id in PRODUCERS:
        pending.end(producer_id, 10, commit=True)
    check_found(pending)
    assert not pending


class Sought(bytes):
    """A place of which each search in a table is a call."""

    def __hash__(self) -> int:
        return super().__hash__()


SOUGHT = Sought(PLACES[0])
STAMP = ProducerStamp(1, 0)
KEPT = Place(3, (Pending(4, STAMP, b"v"), Pending(5, ProducerStamp(2, 0), b"v")))


@pytest.mark.parametrize(
    "ask",
    [
        lambda pending: pending.place_of(NAMES[0], SOUGHT),
        lambda pending: pending.place_of(NAMES[0], Sought(PLACES[1])),
        lambda pending: pending.holds("g", SOUGHT),
        lambda pending: pending.values("g", SOUGHT),
        lambda pending: pending.overtaken(NAMES[0], SOUGHT, 10, removed=False),
        lambda pending: pending.overtaken(NAMES[0], SOUGHT, 10, removed=True),
        lambda pending: pending.set_place(NAMES[0], SOUGHT, None),
        lambda pending: pending.set_place(NAMES[0], SOUGHT, KEPT),
        lambda pending: pending.end(1, 10, commit=True),
        lambda pending: pending.end(1, 10, commit=False),
    ],
)
def test_a_place_costs_nothing_for_the_producers_of_others(ask: Callable[[PendingOffsets], object]) -> None:
    spent = []
    for producers in (10, 2_000):
        pending = PendingOffsets()
        for number in range(3, producers):
            pending.put(NAMES[0], ELSEWHERE, Pending(1, ProducerStamp(number, 0), b"v"))
        for number in (1, 2):
            pending.put(NAMES[0], SOUGHT, Pending(2, ProducerStamp(number, 0), b"v"))
        with counted_calls() as count:
            ask(pending)
        spent.append(count.calls)
    assert spent[0] == spent[1]


def test_a_marker_costs_nothing_for_the_other_producers_of_its_places() -> None:
    spent = []
    for producers in (10, 2_000):
        pending = PendingOffsets()
        for number in range(producers):
            pending.put(NAMES[0], SOUGHT, Pending(number, ProducerStamp(number, 0), b"v"))
        with counted_calls() as count:
            pending.end(1, producers, commit=True)
        spent.append(count.calls)
    assert spent[0] == spent[1]
