"""What the doctor says of open transactions: each is named once, and the classes follow from what coordinators and
leaders know."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.node_settings.catalogue import NODE_SETTINGS
from tidelog.admin.transaction_doctor import (
    LOOK_INTERVAL,
    LOOK_INTERVAL_MS,
    SLACK_MS,
    Class,
    Coordinated,
    Held,
    Opened,
    Place,
    Unanswered,
    diagnose,
    reasons,
)

NOW_MS = 1_000_000
A, B = Place("t", 0), Place("t", 1)


def known(state: str = "Ongoing", started_ms: int = NOW_MS, *places: Place, producer_id: int = 1) -> Coordinated:
    return Coordinated("x", 2, state, producer_id, 0, started_ms, 60_000, frozenset(places or (A,)))


def opened(place: Place = A, producer_id: int = 1) -> Opened:
    return Opened(place, producer_id, 0, 0, 5, NOW_MS - 10)


def test_within_its_timeout_a_transaction_is_young_and_then_past_it() -> None:
    (young,) = diagnose([known()], [opened()], {A: Held(1, 7, 100)}, NOW_MS)
    assert (young.kind, young.records_behind, young.tier_bytes) == (Class.YOUNG, 7, 100)
    late_ms = NOW_MS - 60_000 - LOOK_INTERVAL_MS - SLACK_MS
    assert diagnose([known("Ongoing", late_ms)], [], {}, NOW_MS)[0].kind is Class.YOUNG
    assert diagnose([known("Ongoing", late_ms - 1)], [], {}, NOW_MS)[0].kind is Class.LATE
    assert NODE_SETTINGS[LOOK_INTERVAL].default == LOOK_INTERVAL_MS


def test_it_is_young_until_its_coordinator_has_looked_after_the_timeout() -> None:
    late_ms = NOW_MS - 60_000 - 700 - SLACK_MS
    for looks, kind in (({2: 700}, Class.YOUNG), ({2: 699}, Class.LATE), ({3: 699}, Class.YOUNG)):
        assert diagnose([known("Ongoing", late_ms)], [], {}, NOW_MS, (), looks)[0].kind is kind


def test_a_prepared_transaction_names_the_partitions_without_a_leader() -> None:
    held = {A: Held(1, 0, None), B: Held(-1, None, None)}
    (found,) = diagnose([known("PrepareCommit", 0, A, B)], [opened(A)], held, NOW_MS)
    assert (found.kind, found.waits_for) == (Class.PREPARED, (B,))


def test_what_the_coordinator_does_not_know_in_a_partition_hangs() -> None:
    found = diagnose([known("Ongoing", NOW_MS, A)], [opened(A), opened(B), opened(B, 9)], {}, NOW_MS)
    assert [(one.kind, one.producer_id) for one in found] == [
        (Class.HANGING, 1), (Class.HANGING, 9), (Class.YOUNG, 1),
    ]  # fmt: skip
    assert [one.open_in for one in found] == [(opened(B),), (opened(B, 9),), (opened(A),)]


def test_what_a_silent_coordinator_may_know_is_unknown_and_stands_behind_what_hangs() -> None:
    silent = opened(B)
    found = diagnose([known()], [opened(A), silent, opened(B, 9)], {}, NOW_MS, {silent})
    assert [(one.kind, one.producer_id) for one in found] == [
        (Class.HANGING, 9), (Class.UNKNOWN, 1), (Class.YOUNG, 1),
    ]  # fmt: skip


def test_one_reason_is_given_for_all_that_have_it() -> None:
    rows = [Unanswered("s-1", "no leader"), Unanswered("broker 1", "slow"), Unanswered("s-2", "no leader")]
    assert reasons(rows) == ["s-1, s-2: no leader", "broker 1: slow"]
    (many,) = reasons(Unanswered(f"t-{number}", "no leader") for number in range(1_000))
    assert many.startswith("t-0, t-1, ") and many.endswith(", t-19 and 980 more: no leader")


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sets(st.sampled_from([A, B]), min_size=1)), max_size=4, unique_by=lambda
             one: one[0]),
    st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 5)), max_size=8, unique=True),
)  # fmt: skip
def test_every_open_transaction_is_named_exactly_once(
    at_coordinators: list[tuple[int, set[Place]]], at_leaders: list[tuple[Place, int]]
) -> None:
    coordinated = [known("Ongoing", NOW_MS, *places, producer_id=number) for number, places in at_coordinators]
    rows = [opened(place, producer) for place, producer in at_leaders]
    found = diagnose(coordinated, rows, {}, NOW_MS)
    assert sorted(row for one in found for row in one.open_in) == sorted(rows)
    assert sum(one.kind is not Class.HANGING for one in found) == len(coordinated)
