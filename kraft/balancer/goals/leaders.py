"""Goal 13: a cell's brokers lead about as many partitions as each other. By leader moves alone."""

from __future__ import annotations

from kraft.balancer.goal import LevelGoal
from kraft.balancer.layout import LEADERS


class LeadersGoal(LevelGoal):
    name, measure, is_count = "leaders", LEADERS, True
    moves_leaders, moves_replicas = True, False
