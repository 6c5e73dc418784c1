"""Nothing live is called hanging, whatever happens between the questions; what hangs is, or what has not answered is
named."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tidelog.transaction_world import HUNG, IDS, KEEPERS, PLACES, Happening, Transaction, World
from tidelog.admin.library_client import AdminClient
from tidelog.admin.open_transactions import abort_in, examined, hanging_in
from tidelog.admin.replica_moves import Refused
from tidelog.admin.transaction_doctor import LOOK_INTERVAL_MS, SLACK_MS, Class, Examined, Place, Unanswered

QUIET = (
    st.builds(Happening, st.sampled_from(["begin", "decide", "mark", "run"]), st.integers(0, 2), st.integers(0, 1)),
)
MOVES = (
    st.builds(
        Happening,
        st.sampled_from(["move", "go_on", "lose", "take_over"]),
        st.integers(0, KEEPERS - 1),
        st.integers(0, 2),
    ),
    st.builds(Happening, st.just("lag"), st.integers(0, 2)),
    st.builds(Happening, st.just("silence"), st.integers(0, 2)),
)
Steps = Sequence[Sequence[Happening]]
HUNG_PLACES = st.sets(st.sampled_from(PLACES))


def steps(*kinds: st.SearchStrategy[Happening]) -> st.SearchStrategy[Steps]:
    return st.lists(st.lists(st.one_of(*kinds), max_size=5), max_size=24)


def asked(world: World) -> Examined:
    return examined(cast("AdminClient", world), None, dict)


def hung_rows(where: set[Place]) -> list[tuple[Place, int]]:
    return [(place, HUNG + number) for number, place in enumerate(sorted(where))]


BEGUN = [Happening("begin", 0, 0)]


def hanging(found: Examined) -> list[tuple[Place, int]]:
    return sorted((one.places[0], one.producer_id) for one in found.found if one.kind is Class.HANGING)


@given(steps(*QUIET), HUNG_PLACES)
@settings(max_examples=100)
def test_what_hangs_and_nothing_else_is_hanging_while_transactions_come_and_go(
    schedule: Steps, hung: set[Place]
) -> None:
    found = asked(World(schedule, sorted(hung)))
    assert hanging(found) == hung_rows(hung)
    assert found.unanswered == ()
    assert all(one.kind is not Class.UNKNOWN for one in found.found)


@given(steps(*QUIET, *QUIET, *MOVES), HUNG_PLACES)
@settings(max_examples=200)
def test_nothing_live_is_hanging_while_coordinators_move_and_fall_silent(schedule: Steps, hung: set[Place]) -> None:
    found = asked(World(schedule, sorted(hung)))
    rows = hung_rows(hung)
    assert set(hanging(found)) <= set(rows)
    unknown = [(one.places[0], one.producer_id) for one in found.found if one.kind is Class.UNKNOWN]
    assert set(rows) <= {*hanging(found), *unknown}, "what hangs is not passed over"
    assert found.unanswered or not unknown, "what has not answered is named"


@given(steps(*QUIET, *QUIET, *MOVES), st.sampled_from(PLACES), st.integers(1, len(IDS)))
@settings(max_examples=100)
def test_no_live_transaction_is_given_to_who_aborts_hanging_ones(
    schedule: Steps, place: Place, producer_id: int
) -> None:
    begun = [Happening("begin", producer_id - 1, place.partition)]
    world = World([begun, *schedule])
    with pytest.raises(Refused):
        hanging_in(cast("AdminClient", world), place, producer_id)


def test_a_hanging_transaction_is_given_to_who_aborts_it() -> None:
    world = World(hung=PLACES[:1])
    row = hanging_in(cast("AdminClient", world), PLACES[0], HUNG)
    assert (row.place, row.producer_id) == (PLACES[0], HUNG)
    abort_in(cast("AdminClient", world), row)
    assert world.markers == [(PLACES[0], HUNG)]


def test_a_partition_that_is_not_there_is_no_partition_without_transactions() -> None:
    with pytest.raises(Refused, match="t has no partition 99, it has 2"):
        hanging_in(cast("AdminClient", World()), Place("t", 99), HUNG)


def only(found: Examined) -> tuple[Class, list[str]]:
    """Its class, and what has not answered, with the reason up to an error's name."""
    (one,) = found.found
    return one.kind, [f"{one.who}: {one.why.split(':')[0]}" for one in found.unanswered]


def test_while_a_coordinator_is_missing_what_it_may_know_is_unknown_and_its_partition_is_named() -> None:
    lost = "__transaction_state-1: it has no leader"
    assert only(asked(World([[Happening("begin", 0, 0), Happening("lose", 1)]]))) == (Class.UNKNOWN, [lost])
    assert asked(World([[Happening("lose", 1)]])) == Examined(
        [], (Unanswered("__transaction_state-1", "it has no leader"),)
    )


def test_a_coordinator_that_moves_between_its_list_and_its_description_makes_nothing_hang() -> None:
    """The second look finds it where it is now."""
    moves = {("DescribeTransactions", 0): [Happening("take_over", 1, 2)]}
    kind, unanswered = only(asked(World([BEGUN], when=moves)))
    assert kind is Class.YOUNG
    assert unanswered == [
        "__transaction_state-1: its leader, broker 1, changes or does not answer", "broker 1: NOT_COORDINATOR",
    ]  # fmt: skip


BACK = [Happening("take_over", 1, 1)]
AHEAD = [Happening("take_over", 1, 0)]
AWAY, THERE = [Happening("move", 1, 2)], [Happening("go_on", 1), Happening("go_on", 1)]
ASIDE = [Happening("move", 1, 1)]


@pytest.mark.parametrize(
    "when",
    [
        # from the broker that is asked next to one that was asked before, in both looks
        {("ListTransactions", 1): AHEAD, ("DescribeProducers", 2): BACK, ("ListTransactions", 4): AHEAD},
        # no broker serves it while all are asked, in both looks
        {("Metadata", 1): AWAY, ("ListOffsets", 2): THERE, ("Metadata", 3): ASIDE, ("ListOffsets", 6): THERE},
        # it is being loaded while all are asked, in both looks
        {
            ("Metadata", 1): [*AWAY, *THERE[:1]], ("ListOffsets", 2): THERE,
            ("Metadata", 3): [*ASIDE, *THERE[:1]], ("ListOffsets", 6): THERE,
        },
    ],
)  # fmt: skip
def test_a_coordinator_that_evades_both_looks_makes_nothing_hang(when: dict[tuple[str, int], list[Happening]]) -> None:
    kind, unanswered = only(asked(World([BEGUN], when=when)))
    assert kind is Class.UNKNOWN
    assert unanswered


def test_a_transaction_that_ends_before_each_look_at_coordinators_does_not_hang() -> None:
    """One of the older protocol, whose producer has the same epoch in all of them."""
    ends = [Happening("decide", 0, 0), Happening("mark", 0)]
    when = {("Metadata", 1): ends, ("DescribeProducers", 2): BEGUN, ("Metadata", 3): ends}
    assert asked(World([BEGUN], when=when)) == Examined([])


def test_a_broker_that_does_not_answer_is_named() -> None:
    kind, unanswered = only(asked(World([[Happening("begin", 0, 0), Happening("silence", 1)]])))
    assert kind is Class.UNKNOWN
    assert any(one.startswith("broker 1: ") for one in unanswered)


def test_what_a_leader_does_not_say_the_second_time_is_unknown() -> None:
    world = World(hung=PLACES[:1])
    asked(world)
    second = [number for number, (name, _) in enumerate(world.asked) if name == "DescribeProducersRequest"][1]
    refusing = [Happening("refuse", 0)]
    found = asked(World([*[[]] * second, refusing], PLACES[:1]))
    assert only(found) == (Class.UNKNOWN, ["t-0: NOT_LEADER_OR_FOLLOWER"])


def test_a_partition_whose_leader_says_nothing_is_named_and_does_not_pass_for_a_quiet_one() -> None:
    refused = "NOT_LEADER_OR_FOLLOWER"
    world = World([[Happening("refuse", 0)]], PLACES)
    assert only(asked(world)) == (Class.HANGING, [f"t-0: {refused}"])
    with pytest.raises(Refused, match=f"unknown what producer {HUNG} has open in t-0: {refused}"):
        hanging_in(cast("AdminClient", world), PLACES[0], HUNG)


def test_a_leader_that_has_just_changed_is_asked_once_more() -> None:
    """Nothing is known to be missing then."""
    when = {("DescribeProducers", 0): [Happening("refuse", 0)], ("Metadata", 1): [Happening("refuse_no_more")]}
    found = asked(World(hung=PLACES, when=when))
    assert hanging(found) == hung_rows(set(PLACES))
    assert found.unanswered == ()


def test_a_partition_without_a_leader_is_named() -> None:
    world = World([[Happening("orphan", 0)]], PLACES)
    assert only(asked(world)) == (Class.HANGING, ["t-0: it has no leader"])


@pytest.mark.parametrize(
    ("hidden", "named"),
    [
        ("hide_topic", "__transaction_state: this user may not see it"),
        ("hide_tenants_topic", "__transaction_state: this user may not see it"),
        ("hide_ids", "transactional ids: this user may not see all of them"),
    ],
)
def test_who_may_not_see_all_that_coordinators_know_calls_nothing_hanging(hidden: str, named: str) -> None:
    """A transaction of an id that this user may not describe is not listed."""
    assert only(asked(World([[Happening(hidden)]], PLACES[:1]))) == (Class.UNKNOWN, [named])
    assert asked(World([[Happening(hidden)]])) == Examined([])


def test_without_any_transaction_ever_what_is_open_hangs() -> None:
    """`__transaction_state` is not made yet."""
    assert only(asked(World([[Happening("no_topic")]], PLACES[:1]))) == (Class.HANGING, [])


def test_who_may_not_learn_what_the_tier_lacks_gets_all_the_rest() -> None:
    def refused() -> dict[Place, int]:
        raise Refused("not to you")

    def found(blocked: dict[Place, int] | None) -> tuple[list[int | None], str]:
        world = World([BEGUN], PLACES[:1])
        client = cast("AdminClient", world)
        rows, unanswered, tier_unknown = examined(client, None, refused if blocked is None else lambda: blocked)
        assert [one.kind for one in rows] == [Class.HANGING, Class.YOUNG]
        assert not unanswered
        return [one.tier_bytes for one in rows], tier_unknown

    assert found(None) == ([None, None], "not to you")
    assert found({}) == ([0, 0], ""), "nothing is tiered"
    assert found({PLACES[0]: 7}) == ([7, 7], "")
    assert examined(cast("AdminClient", World()), None, refused) == Examined([]), "nobody is asked for nothing"


@pytest.mark.parametrize(("told_ms", "interval_ms"), [(None, LOOK_INTERVAL_MS), (600_000, 600_000), (1, 1)])
def test_how_often_coordinators_look_is_read_from_them_where_it_may_be(told_ms: int | None, interval_ms: int) -> None:
    for past_ms, kind in ((-9_000, Class.YOUNG), (9_000, Class.LATE)):
        world = World([BEGUN])
        world.look_interval_ms = told_ms
        world.started_ms = time.time_ns() // 1_000_000 - 60_000 - interval_ms - SLACK_MS - past_ms
        (one,) = asked(world).found
        assert one.kind is kind


def test_what_is_suggested_in_place_of_a_marker_is_safe_to_paste() -> None:
    world = World()
    world.transactions["a; touch /tmp/x\n"] = Transaction(9, state="Ongoing", partitions={PLACES[0]})
    world.opened[PLACES[0], 9] = (0, 0)
    with pytest.raises(Refused) as refusal:
        hanging_in(cast("AdminClient", world), PLACES[0], 9)
    assert str(refusal.value).endswith(r": tidelog transactions abort -- $'a; touch /tmp/x\012'")
