"""Goal 3: no disk is fuller than 80 %."""

from __future__ import annotations

from kraft.balancer.goal import CapacityGoal
from kraft.balancer.layout import DISK, Layout


class DiskCapacityGoal(CapacityGoal):
    name, measure = "disk-capacity", DISK

    def capacity(self, layout: Layout, slot: int) -> float:
        return layout.model.brokers[slot].disk_size
