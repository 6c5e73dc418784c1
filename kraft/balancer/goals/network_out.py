"""Goal 10: a cell's brokers send about as much as each other, replication included."""

from __future__ import annotations

from kraft.balancer.goal import LevelGoal
from kraft.balancer.layout import NET_OUT


class NetworkOutGoal(LevelGoal):
    name, measure, moves_leaders = "network-out", NET_OUT, True
    floor = float(1 << 20)
