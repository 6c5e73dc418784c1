"""What the balancer does in one go is bounded, however many partitions there are. Counted in lines of Python."""

from __future__ import annotations

import random
from functools import cache

import pytest

from common.pacing import at_once
from kraft.balancer.goals.in_order import goals
from kraft.balancer.goals.replicas import ReplicasGoal
from kraft.balancer.layout import Layout, layout_of
from kraft.balancer.model import ClusterModel, model_of
from kraft.balancer.move import Limits
from kraft.balancer.planner import planning_layout
from kraft.balancer.search import MoveSearch
from kraft.balancer.triggers import broken_now
from tests.kraft.balancer_models import MB, broker, partition
from tests.kraft.line_counts import LineCount

PARTITIONS, TOPICS, BROKERS = 3_000, 600, 8
LINES_MAX = 15_000  # some 2 ms; what looks at each of the partitions with a few lines is more


@cache
def uneven(racks: int) -> ClusterModel:
    """Two thirds of all replicas are on three brokers of one rack, if there are racks."""
    rng = random.Random(1)
    brokers = [broker(number, f"rack-{min(number // 3, racks - 1)}") for number in range(BROKERS)]
    partitions = [
        partition(
            number // TOPICS,
            rng.sample(range(3 if rng.random() < 0.7 else BROKERS), 3),
            rng.paretovariate(1.3) * MB / 100,
            topic=f"t{number % TOPICS}",
        )
        for number in range(PARTITIONS)
    ]
    return model_of(brokers, partitions)


def laid_out(racks: int) -> Layout:
    return at_once(layout_of(uneven(racks)))


def most_lines(count: LineCount) -> None:
    assert count.most <= LINES_MAX, f"{count.most} lines in one go: {count.where}"


@pytest.mark.parametrize("racks", [1, 3])
@pytest.mark.parametrize("most", [2, 40])
def test_no_slice_of_a_plan_is_long(racks: int, most: int) -> None:
    layout, count = laid_out(racks), LineCount()
    plan = count.of(lambda: planning_layout(layout, Limits(moves_max=most, leader_moves_max=most, improvement=0.0)))
    assert plan.moves
    most_lines(count)


def test_no_slice_of_a_look_is_long() -> None:
    model, count = uneven(3), LineCount()
    layout = count.of(lambda: layout_of(model))
    at_once_broken, lasting = count.of(lambda: broken_now(layout))
    assert at_once_broken or lasting
    most_lines(count)


def test_moves_that_bring_too_little_are_taken_back_in_slices() -> None:
    layout = laid_out(1)
    before = list(layout.holder), [list(sums) for sums in layout.amounts]
    search = MoveSearch(layout, goals(), Limits())
    goal = ReplicasGoal()
    search.begin(goal)
    goal.prepare(layout)
    at_once(goal.pursue(search))
    assert len(search.attempts.done) > 1_000
    count = LineCount()
    count.of(lambda: search.attempts.undo(0))
    most_lines(count)
    assert list(layout.holder) == before[0]
    for sums, known in zip(layout.amounts, before[1], strict=True):
        assert sums == pytest.approx(known)
