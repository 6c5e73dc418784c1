"""What holds for every plan, whatever the cluster."""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.pacing import at_once
from kraft.balancer.goals.in_order import GOALS
from kraft.balancer.model import ModelBroker, ModelPartition, Standing, model_of
from kraft.balancer.move import DRAIN, Limits, Move, MoveKind, Plan
from kraft.balancer.triggers import broken_now
from tests.kraft.balancer_models import GB, MB, broker, layout, moved, partition, planned, worst

HARD = [goal.name for goal in GOALS if goal.is_hard]
BOUNDS = {goal.name: goal.bound for goal in GOALS}
ROUNDING = 1e-6


class Cluster(NamedTuple):
    brokers: list[ModelBroker]
    partitions: list[ModelPartition]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    count = draw(st.integers(2, 8))
    cells, racks = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    standings = st.sampled_from([Standing.LIVE] * 6 + [Standing.CLOSED, Standing.APART, Standing.LEAVING])
    brokers = [
        broker(
            number,
            f"rack-{number % racks}",
            f"cell-{number % cells}",
            standing=draw(standings),
            disk_size=draw(st.sampled_from([0, 100 * GB])),
            in_capacity=draw(st.sampled_from([0.0, 100 * MB])),
            out_capacity=draw(st.sampled_from([0.0, 150 * MB])),
            replicas_max=draw(st.sampled_from([0, 40])),
        )
        for number in range(count)
    ]
    rng = random.Random(draw(st.integers(0, 1 << 20)))
    skew = draw(st.sampled_from([0.0, 1.0, 3.0]))
    partitions = []
    for number in range(draw(st.integers(1, 60))):
        weights = [1.0 / (1 + slot) ** skew for slot in range(count)]
        replicas: list[int] = []
        while len(replicas) < min(rng.randint(1, 3), count):
            (chosen,) = rng.choices(range(count), weights)
            if chosen not in replicas:
                replicas.append(chosen)
        partitions.append(
            partition(
                number // 3,
                replicas,
                rng.paretovariate(1.3) * MB,
                topic=f"topic-{number % 3}",
                size=rng.random() * 3 * GB,
                in_sync=[one for one in replicas if one == replicas[0] or rng.random() < 0.9],
                cell=rng.choice([None, f"cell-{replicas[0] % cells}"]),
                stays=rng.random() < 0.1,
            )
        )
    return Cluster(brokers, list({(one.topic_id, one.partition): one for one in partitions}.values()))


def _replicas_that_return_to_their_cell() -> Cluster:
    """Each move into a cell changes what its racks must have at least, and so what is fair there."""
    brokers = [broker(number, f"rack-{number % 3}", f"cell-{number % 2}") for number in range(8)]
    brokers[4] = msgspec.structs.replace(brokers[4], standing=Standing.CLOSED)
    partitions = [
        partition(0, (6, 0, 3), 14 * MB, topic="topic-0"),
        partition(1, (7,), 2.6 * MB, topic="topic-0"),
        partition(0, (4, 7), 1.1 * MB, topic="topic-1", cell="cell-0"),
        partition(1, (1, 5), 1.2 * MB, topic="topic-1"),
        partition(0, (2, 4), 13 * MB, topic="topic-2", cell="cell-0", stays=True),
        partition(1, (0, 7), 1.1 * MB, topic="topic-2", cell="cell-0"),
    ]
    return Cluster(brokers, partitions)


@settings(max_examples=80, deadline=None)
@given(clusters())
@example(_replicas_that_return_to_their_cell())
def test_no_hard_goal_gets_worse_and_reports_are_true(cluster: Cluster) -> None:
    before = worst(model_of(*cluster))
    plan = planned(*cluster)
    after = worst(model_of(cluster.brokers, moved(cluster.partitions, plan.moves)))
    for result in plan.goals:
        assert abs(result.before - before[result.goal]) <= ROUNDING * max(before[result.goal], 1)
        assert abs(result.after - after[result.goal]) <= ROUNDING * max(after[result.goal], 1)
        if result.goal in HARD:
            assert after[result.goal] <= max(before[result.goal], result.bound) + ROUNDING


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_no_step_of_a_plan_makes_a_hard_goal_worse(cluster: Cluster) -> None:
    plan = planned(*cluster)
    partitions, before = cluster.partitions, worst(model_of(*cluster))
    for move in plan.moves[:12]:
        partitions = moved(partitions, [move])
        after = worst(model_of(cluster.brokers, partitions))
        for name in HARD:
            assert after[name] <= max(before[name], BOUNDS[name]) + ROUNDING
        before = after


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_a_second_plan_right_after_the_first_is_empty(cluster: Cluster) -> None:
    first = planned(*cluster)
    after = moved(cluster.partitions, first.moves)
    rested = frozenset(move.key for move in first.moves)
    second = planned(cluster.brokers, after, Limits(resting=rested))
    left = next(result for result in first.goals if result.goal == DRAIN)
    if "being moved" not in left.why_not:  # otherwise it has two replicas to move, and they leave one after another
        assert second.moves == ()


@settings(max_examples=60, deadline=None)
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_brokers_and_partitions_does_not_matter(cluster: Cluster, rng: random.Random) -> None:
    brokers, partitions = list(cluster.brokers), list(cluster.partitions)
    rng.shuffle(brokers)
    rng.shuffle(partitions)
    assert planned(brokers, partitions) == planned(*cluster)


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_a_partition_moves_once_and_to_a_live_broker_alone(cluster: Cluster) -> None:
    plan = planned(*cluster)
    keys = [move.key for move in plan.moves]
    assert len(keys) == len(set(keys))
    standing = {one.broker_id: one.standing for one in cluster.brokers}
    kept = {(one.topic_id, one.partition) for one in cluster.partitions if one.stays}
    for move in plan.moves:
        assert standing[move.target] is Standing.LIVE
        assert standing[move.source] is not Standing.APART
        assert move.key not in kept
        assert move.source != move.target
        assert move.kind is MoveKind.REPLICA or move.bytes_to_copy == 0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 20), st.integers(3, 6))
def test_a_load_of_two_phases_does_not_oscillate(seed: int, count: int) -> None:
    """Half of the partitions work by day, the others by night; the plan of each phase is carried out. In the end no
    phase asks for anything: what one of them levels, the other leaves alone."""
    rng = random.Random(seed)
    brokers = [broker(number) for number in range(count)]
    placed = [partition(number, rng.sample(range(count), 2), MB, topic=f"topic-{number % 4}") for number in range(80)]
    rates = [rng.uniform(1, 4) * MB for _ in placed]
    moves: list[tuple[Move, ...]] = []
    for phase in range(12):
        resting = frozenset(move.key for move in moves[-1]) if moves else frozenset()
        busy = [
            partition(
                one.partition,
                one.replicas,
                rates[number] * (1.0 if number % 2 == phase % 2 else 0.02),
                topic=f"topic-{number % 4}",
                leader=one.leader,
            )
            for number, one in enumerate(placed)
        ]
        now, lasting = at_once(broken_now(layout(brokers, busy)))
        plan = planned(brokers, busy, Limits(resting=resting)) if now or lasting else Plan()
        placed = moved(placed, plan.moves)
        moves.append(plan.moves)
    assert sum(len(one) for one in moves[-4:]) == 0, [len(one) for one in moves]
