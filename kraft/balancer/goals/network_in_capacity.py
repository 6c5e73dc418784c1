"""Goal 4: no broker receives more than 80 % of what its network can."""

from __future__ import annotations

from kraft.balancer.goal import CapacityGoal
from kraft.balancer.layout import NET_IN, Layout


class NetworkInCapacityGoal(CapacityGoal):
    name, measure = "network-in-capacity", NET_IN

    def capacity(self, layout: Layout, slot: int) -> float:
        return layout.model.brokers[slot].in_capacity
