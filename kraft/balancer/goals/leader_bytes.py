"""Goal 14: clients send about as much to each of a cell's brokers. By leader moves alone."""

from __future__ import annotations

from kraft.balancer.goal import LevelGoal
from kraft.balancer.layout import LEADER_BYTES


class LeaderBytesGoal(LevelGoal):
    name, measure = "leader-bytes", LEADER_BYTES
    moves_leaders, moves_replicas = True, False
    floor = float(1 << 20)
