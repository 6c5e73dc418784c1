"""Goals of the balancer on fixed clusters: unaware of racks, uneven, over capacity, with dead and new brokers."""

from __future__ import annotations

import pytest

from kraft.balancer.model import ModelPartition
from kraft.balancer.move import DRAIN, GoalResult, Limits, MoveKind, Plan
from tests.kraft.balancer_models import (
    APART,
    CLOSED,
    GB,
    LEAVING,
    MB,
    broker,
    held,
    layout,
    led,
    moved,
    partition,
    planned,
)


def _result(plan: Plan, goal: str) -> GoalResult:
    return next(result for result in plan.goals if result.goal == goal)


def _even(count: int, brokers: int, rate: float = 2 * MB, size: float = GB) -> list[ModelPartition]:
    """Replicas in turn, three each."""
    return [
        partition(number, [(number + offset) % brokers for offset in range(3)], rate, size=size)
        for number in range(count)
    ]


def test_a_level_cluster_has_no_plan() -> None:
    plan = planned([broker(number) for number in range(6)], _even(60, 6))
    assert plan.moves == ()
    assert not any(result.broken for result in plan.goals)


def test_replicas_that_share_a_rack_are_moved_apart() -> None:
    brokers = [broker(0, "a"), broker(1, "a"), broker(2, "b"), broker(3, "c")]
    partitions = [partition(number, [0, 1, 2]) for number in range(4)]
    plan = planned(brokers, partitions)
    after = moved(partitions, plan.moves)
    assert all(3 in one.replicas and 2 in one.replicas for one in after)
    assert {move.goal for move in plan.moves if move.target == 3} == {"racks"}
    assert _result(plan, "racks").before == 4
    assert _result(plan, "racks").after == 0
    assert {move.agreed[:2] for move in plan.moves if move.goal == "racks"} == {("cell", "replica-capacity")}


def test_fewer_racks_than_replicas_are_no_reason_to_move() -> None:
    brokers = [broker(0, "a"), broker(1, "a"), broker(2, "b"), broker(3, "b")]
    partitions = _even(8, 4)
    assert planned(brokers, partitions).moves == ()


def test_a_hot_broker_gives_leaderships_before_replicas() -> None:
    brokers = [broker(number, load=0.7 if number == 0 else 0.4) for number in range(3)]
    partitions = [partition(number, [0, 1, 2], 3 * MB) for number in range(12)]
    plan = planned(brokers, partitions)
    assert plan.moves
    assert {move.kind for move in plan.moves} == {MoveKind.LEADER}
    assert plan.bytes_to_copy == 0
    after = moved(partitions, plan.moves)
    assert [led(after, number) for number in range(3)] == [4, 4, 4]


def test_a_leadership_goes_only_to_a_replica_in_sync() -> None:
    partitions = [partition(number, [0, 1, 2], 3 * MB, in_sync=[0, 2]) for number in range(12)]
    plan = planned([broker(number) for number in range(3)], partitions)
    assert plan.moves
    assert {move.target for move in plan.moves} == {2}


def test_a_new_broker_gets_its_share_and_the_heaviest_first() -> None:
    brokers = [broker(number, load=0.0 if number == 3 else 0.5) for number in range(4)]
    partitions = [
        partition(number, [(number + offset) % 3 for offset in range(3)], MB * (10 if number < 6 else 1), size=GB)
        for number in range(40)
    ]
    plan = planned(brokers, partitions)
    after = moved(partitions, plan.moves)
    assert held(after, 3) >= 27  # 0.9 of 30
    assert next(move for move in plan.moves if move.target == 3).partition < 6
    state = layout(brokers, after)
    fair = state.fair(4)[3]
    assert 0.9 * fair <= state.value(4, 3) <= 1.1 * fair


def test_an_operation_that_fills_brokers_moves_to_these_alone() -> None:
    brokers = [broker(number) for number in range(5)]
    partitions = _even(40, 3)
    plan = planned(brokers, partitions, Limits(toward=frozenset({4})))
    assert plan.moves
    assert {move.target for move in plan.moves} == {4}


@pytest.mark.parametrize("standing", [APART, CLOSED])
def test_brokers_that_may_take_nothing_get_nothing(standing: int) -> None:
    brokers = [*(broker(number) for number in range(4)), broker(4, standing=standing)]
    partitions = [partition(number, [0, 1, 2], 2 * MB) for number in range(20)]
    plan = planned(brokers, partitions)
    assert plan.moves
    assert 4 not in {move.target for move in plan.moves}
    assert 4 not in {broken for result in plan.goals for broken in result.broken}


def test_a_dead_broker_keeps_its_replicas_until_it_is_emptied() -> None:
    partitions = [
        partition(number, [4, 0, 1] if number % 2 else [0, 1, 4], leader=0, in_sync=[0, 1]) for number in range(10)
    ]
    others = [broker(number) for number in range(4)]
    assert not [m for m in planned([*others, broker(4, standing=APART)], partitions).moves if m.source == 4]
    plan = planned([*others, broker(4, standing=LEAVING)], partitions)
    after = moved(partitions, plan.moves)
    assert held(after, 4) == 0
    emptied = [move for move in plan.moves if move.source == 4]
    assert {move.goal for move in emptied} == {DRAIN}
    assert _result(plan, DRAIN).before == 10


def test_a_broker_that_cannot_be_emptied_says_why() -> None:
    brokers = [broker(0), broker(1), broker(2, standing=LEAVING)]
    plan = planned(brokers, [partition(0, [0, 1, 2])])
    assert plan.moves == ()
    assert _result(plan, DRAIN).broken == (2,)
    assert set(_result(plan, DRAIN).why_not) == {"no target"}


def test_a_disk_beyond_its_bound_gives_what_others_have_room_for() -> None:
    brokers = [broker(number, disk_size=100 * GB) for number in range(3)]
    partitions = [partition(number, [0], size=9 * GB) for number in range(10)]
    plan = planned(brokers, partitions, Limits(improvement=0.0))
    assert plan.moves[0].goal == "disk-capacity"
    assert plan.moves[0].before == pytest.approx(0.9)
    assert plan.moves[0].after == pytest.approx(0.81)
    assert plan.moves[0].bytes_to_copy == 9 * GB
    after = layout(brokers, moved(partitions, plan.moves))
    assert max(after.amounts[1]) <= 0.8 * 100 * GB


def test_a_disk_that_is_full_gives_to_live_brokers_though_it_takes_nothing() -> None:
    brokers = [broker(0, disk_size=100 * GB, standing=CLOSED), broker(1, disk_size=100 * GB)]
    partitions = [partition(number, [0], size=10 * GB) for number in range(9)]
    plan = planned(brokers, partitions)
    assert {(move.source, move.target, move.goal) for move in plan.moves} == {(0, 1, "disk-capacity")}
    assert len(plan.moves) == 1


def test_all_disks_full_is_a_plan_without_moves_that_says_why() -> None:
    brokers = [broker(number, disk_size=10 * GB) for number in range(3)]
    partitions = [partition(number, [number % 3], size=GB) for number in range(27)]
    plan = planned(brokers, partitions)
    assert plan.moves == ()
    result = _result(plan, "disk-capacity")
    assert result.broken == (0, 1, 2)
    assert set(result.why_not) == {"no improvement"}


def test_network_and_load_capacities_are_heeded() -> None:
    brokers = [
        broker(number, in_capacity=10 * MB, out_capacity=30 * MB, load=0.95 if number == 0 else 0.3)
        for number in range(3)
    ]
    partitions = [partition(number, [0], MB, out_rate=2 * MB) for number in range(9)]
    partitions += [partition(number, [1 + number % 2], 0.5 * MB, topic="u") for number in range(6)]
    plan = planned(brokers, partitions)
    after = layout(brokers, moved(partitions, plan.moves))
    assert max(after.amounts[2]) <= 8 * MB
    assert max(after.amounts[3]) <= 24 * MB
    assert "network-in-capacity" in {move.goal for move in plan.moves}


def test_replicas_are_bounded_by_the_cells_limit() -> None:
    brokers = [broker(number, replicas_max=10) for number in range(3)]
    partitions = [partition(number, [0]) for number in range(14)]
    plan = planned(brokers, partitions)
    assert plan.moves[0].goal == "replica-capacity"
    assert held(moved(partitions, plan.moves), 0) <= 10


def test_a_tenants_replicas_return_to_its_cell_and_stay_there() -> None:
    brokers = [broker(number, cell="red" if number < 3 else "blue") for number in range(6)]
    astray = partition(0, [0, 1, 3], cell="red")
    heavy = [partition(number, [0, 1, 2], 5 * MB, topic="heavy", cell="red") for number in range(30)]
    plan = planned(brokers, [astray, *heavy])
    after = moved([astray, *heavy], plan.moves)
    assert all(set(one.replicas) == {0, 1, 2} for one in after)
    assert plan.moves[0].goal == "cell"
    assert _result(plan, "cell").after == 0


def test_no_soft_goal_takes_a_replica_into_another_cell() -> None:
    brokers = [broker(number, cell="red" if number < 3 else "blue") for number in range(6)]
    partitions = [partition(number, [0, 1, 2], 5 * MB) for number in range(30)]
    plan = planned(brokers, partitions)
    assert {move.target for move in plan.moves} <= {0, 1, 2}
    assert not [result for result in plan.goals if set(result.broken) & {3, 4, 5}]


def test_what_moves_or_has_moved_of_late_stays() -> None:
    brokers = [broker(number) for number in range(3)]
    partitions = [partition(number, [0], 3 * MB, stays=number < 6) for number in range(12)]
    rested = frozenset((one.topic_id, one.partition) for one in partitions[6:9])
    plan = planned(brokers, partitions, Limits(resting=rested))
    assert {move.partition for move in plan.moves} == {9, 10, 11}
    assert "moved of late" in _result(plan, "replicas").why_not


def test_two_that_carry_different_loads_are_exchanged_where_counts_are_level() -> None:
    """Every broker has one replica: without an exchange one of two would have none."""
    brokers = [broker(number) for number in range(2)]
    heavy = [partition(number, [0], 8 * MB) for number in range(10)]
    light = [partition(number, [1], 2 * MB, topic="u") for number in range(10)]
    plan = planned(brokers, [*heavy, *light])
    after = moved([*heavy, *light], plan.moves)
    state = layout(brokers, after)
    assert max(state.amounts[2]) <= 1.1 * 50 * MB
    assert abs(held(after, 0) - held(after, 1)) <= 2


def test_too_little_to_gain_is_left_alone() -> None:
    brokers = [broker(number) for number in range(2)]
    partitions = [partition(0, [0 if number < 56 else 1], MB, topic=f"t-{number}") for number in range(100)]
    plan = planned(brokers, partitions)
    assert plan.moves == ()
    assert _result(plan, "network-in").broken == (0, 1)
    assert _result(plan, "network-in").why_not == {"improvement too small": 1}
    assert planned(brokers, partitions, Limits(improvement=0.0)).moves


def test_a_topic_is_spread_over_its_cell() -> None:
    brokers = [broker(number) for number in range(4)]
    partitions = [partition(number, [topic], topic=f"topic-{topic}") for topic in range(4) for number in range(12)]
    plan = planned(brokers, partitions)
    after = moved(partitions, plan.moves)
    counts = [held([one for one in after if one.topic_id.startswith(b"topic-0")], number) for number in range(4)]
    assert max(counts) <= 5
    assert {move.goal for move in plan.moves} == {"topic-replicas"}


def test_limits_cut_a_plan_short() -> None:
    brokers = [broker(number, disk_size=1000 * GB) for number in range(4)]
    partitions = [partition(number, [0], MB, size=2 * GB) for number in range(40)]
    plan = planned(brokers, partitions, Limits(moves_max=5))
    assert len(plan.moves) == 5
    assert plan.cut_short
    bounded = planned(brokers, partitions, Limits(bytes_max=7 * GB))
    assert 0 < bounded.bytes_to_copy <= 7 * GB
    assert bounded.cut_short
    huge = planned(brokers, [partition(number, [0], size=450 * GB) for number in range(2)], Limits(bytes_max=1))
    assert len(huge.moves) == 1  # one may be copied however large it is


def test_a_broker_that_is_slower_than_others_gets_less() -> None:
    brokers = [broker(0, load=0.8), broker(1, load=0.4), broker(2, load=0.4), broker(3, load=0.4)]
    partitions = [partition(number, [number % 4], 4 * MB) for number in range(80)]
    plan = planned(brokers, partitions)
    state = layout(brokers, moved(partitions, plan.moves))
    assert state.amounts[4][0] < 0.95 * state.amounts[4][1]
    assert {move.goal for move in plan.moves} == {"load"}
