"""Goal 2: no broker has more replicas than its cell allows (`replicas.per.broker.max`)."""

from __future__ import annotations

from kraft.balancer.goal import CapacityGoal
from kraft.balancer.layout import REPLICAS, Layout


class ReplicaCapacityGoal(CapacityGoal):
    name, measure, bound, is_count = "replica-capacity", REPLICAS, 1.0, True

    def capacity(self, layout: Layout, slot: int) -> float:
        return layout.model.brokers[slot].replicas_max
