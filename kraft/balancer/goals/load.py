"""Goal 11: a cell's brokers have about the same load."""

from __future__ import annotations

from kraft.balancer.goal import LevelGoal
from kraft.balancer.layout import LOAD


class LoadGoal(LevelGoal):
    name, measure, moves_leaders = "load", LOAD, True
    floor = 0.1
