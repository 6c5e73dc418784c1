"""When the balancer begins to move something by itself. No I/O.

A broken hard goal and an empty broker are reasons at once. A broker that has far more than the mean of its cell is one
only after several looks in succession, so that a burst moves nothing. Plans aim closer to the mean than what triggers
them, so that a plan is not followed by the next.
"""

from __future__ import annotations

from common.pacing import Work
from kraft.balancer.goal import Goal, LevelGoal
from kraft.balancer.goals.in_order import goals
from kraft.balancer.layout import DISK, LOAD, NET_IN, NET_OUT, REPLICAS, Layout

BEYOND = 1.2
"""Times the mean; see `kraft.balancer.goal.AIM` for what plans aim at."""
LOOKS = 3
TRIGGERING = (DISK, NET_IN, NET_OUT, LOAD)
EMPTY_BROKER = "empty broker"

Reason = tuple[str, int]
"""Name of a goal, or `EMPTY_BROKER`, and a broker's id."""


def broken_now(layout: Layout) -> Work[tuple[list[Reason], list[Reason]]]:
    """Reasons that count at once, and those that count when they last."""
    at_once: list[Reason] = []
    lasting: list[Reason] = []
    brokers = layout.model.brokers
    for goal in goals():
        goal.prepare(layout)
        if goal.is_hard:
            state = yield from goal.state(layout)
            at_once += [(goal.name, brokers[slot].broker_id) for slot in state.broken]
        else:
            lasting += [(goal.name, brokers[slot].broker_id) for slot in _far_above(goal, layout)]
            yield layout.slot_count
    replicas, fair = layout.amounts[REPLICAS], layout.fair(REPLICAS)
    empty = [slot for live in layout.live for slot in live if replicas[slot] == 0 and fair[slot] >= 1]
    at_once += [(EMPTY_BROKER, brokers[slot].broker_id) for slot in empty]
    return at_once, lasting


def _far_above(goal: Goal, layout: Layout) -> list[int]:
    if not isinstance(goal, LevelGoal) or goal.measure not in TRIGGERING:
        return []
    return [
        slot
        for live in layout.live
        for slot in live
        if goal.is_over(layout, slot) and layout.value(goal.measure, slot) > BEYOND * goal.fair[slot]
    ]


class Looks:
    """What was broken in the last looks, which are made at a fixed interval."""

    def __init__(self) -> None:
        self._seen: dict[Reason, int] = {}

    def take(self, at_once: list[Reason], lasting: list[Reason]) -> list[Reason]:
        """The reasons to plan now, after one more look."""
        self._seen = {reason: self._seen.get(reason, 0) + 1 for reason in lasting}
        return [*at_once, *(reason for reason, count in self._seen.items() if count >= LOOKS)]
