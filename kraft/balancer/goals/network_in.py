"""Goal 9: a cell's brokers receive about as much as each other, replication included."""

from __future__ import annotations

from kraft.balancer.goal import LevelGoal
from kraft.balancer.layout import NET_IN


class NetworkInGoal(LevelGoal):
    name, measure = "network-in", NET_IN
    floor = float(1 << 20)
