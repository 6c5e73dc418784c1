"""Goal 7: a cell's brokers have about as many replicas as each other."""

from __future__ import annotations

from kraft.balancer.goal import LevelGoal
from kraft.balancer.layout import REPLICAS


class ReplicasGoal(LevelGoal):
    name, measure, is_count = "replicas", REPLICAS, True
