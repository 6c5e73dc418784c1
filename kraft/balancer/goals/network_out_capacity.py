"""Goal 5: no broker sends more than 80 % of what its network can."""

from __future__ import annotations

from kraft.balancer.goal import CapacityGoal
from kraft.balancer.layout import NET_OUT, Layout


class NetworkOutCapacityGoal(CapacityGoal):
    name, measure, moves_leaders = "network-out-capacity", NET_OUT, True

    def capacity(self, layout: Layout, slot: int) -> float:
        return layout.model.brokers[slot].out_capacity
