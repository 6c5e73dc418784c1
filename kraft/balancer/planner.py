"""Plans the moves that level a cluster. No I/O.

Goals look for moves in their order, again and again until a whole round finds none. A partition moves at most once in a
plan, so there is an end, and no move takes back another. The plan is a pure function of model and limits: the same
ones always give the same plan.
"""

from __future__ import annotations

from collections import Counter

from common.pacing import Work, at_once
from kraft.balancer.attempts import Attempts
from kraft.balancer.goal import AIM, Goal
from kraft.balancer.goals.in_order import goals
from kraft.balancer.layout import Layout, layout_of
from kraft.balancer.model import ClusterModel
from kraft.balancer.move import GoalResult, Limits, Move, Plan
from kraft.balancer.search import MoveSearch

MOVES_AT_ONCE = 100
TOO_LITTLE = "improvement too small"
"""Why a soft goal that is broken moves nothing: its worst broker would hardly come nearer to the mean."""


def plan(model: ClusterModel, limits: Limits) -> Plan:
    """As `planning`, at once."""
    return at_once(planning(model, limits))


def planning(model: ClusterModel, limits: Limits) -> Work[Plan]:
    """The moves that bring every goal into its bounds as far as earlier goals allow."""
    layout = yield from layout_of(model)
    return (yield from planning_layout(layout, limits))


def planning_layout(layout: Layout, limits: Limits) -> Work[Plan]:
    """As `planning`; the layout is changed with each move."""
    ordered = goals()
    search = MoveSearch(layout, ordered, limits)
    attempts = search.attempts
    for goal in ordered:
        goal.prepare(layout)
    before = {}
    for goal in ordered:
        before[goal.name] = (yield from goal.state(layout)).worst
    fruitless: dict[str, int] = {}  # with how many moves a goal last found none
    while any(fruitless.get(goal.name) != len(attempts.done) for goal in ordered) and not attempts.cut_short:
        for goal in ordered:
            length = len(attempts.done)
            if fruitless.get(goal.name) != length:
                search.begin(goal)
                yield from _pursue(goal, search, limits.improvement)
            if length == len(attempts.done):
                fruitless[goal.name] = length
    moves: list[Move] = []
    counts: Counter[str] = Counter()
    for _, move in attempts.done:
        moves.append(move)
        counts[move.goal] += 1
        if len(moves) % MOVES_AT_ONCE == 0:
            yield MOVES_AT_ONCE
    results = []
    for goal in ordered:
        goal.prepare(layout)
        results.append((yield from _result(goal, layout, attempts, before[goal.name], counts[goal.name])))
    return Plan(tuple(moves), tuple(results), attempts.cut_short)


def _pursue(goal: Goal, search: MoveSearch, improvement: float) -> Work[None]:
    """Look for moves of one goal. Take them back if they bring a soft goal too little."""
    layout, attempts = search.layout, search.attempts
    if goal.is_hard:
        yield from goal.pursue(search)
        return
    length = len(attempts.done)
    before = yield from goal.state(layout)
    if not before.broken:
        return
    if before.worst * (1 - improvement) < min(goal.bound, AIM):
        search.rejected(goal, TOO_LITTLE)
        return
    yield from goal.pursue(search)
    if len(attempts.done) == length or attempts.cut_short:
        return
    after = yield from goal.state(layout)
    if after.distance > before.distance * (1 - improvement):
        yield from attempts.undo(length)
        search.rejected(goal, TOO_LITTLE)


def _result(goal: Goal, layout: Layout, attempts: Attempts, before: float, moves: int) -> Work[GoalResult]:
    after = yield from goal.state(layout)
    brokers = layout.model.brokers
    return GoalResult(
        goal.name,
        before,
        after.worst,
        goal.bound,
        moves,
        tuple(brokers[slot].broker_id for slot in after.broken),
        dict(sorted(attempts.why_not[goal.name].items())) if after.broken else {},
    )
