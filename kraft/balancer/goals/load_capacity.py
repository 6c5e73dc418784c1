"""Goal 6: no broker has a load above 0.8."""

from __future__ import annotations

from kraft.balancer.goal import CapacityGoal
from kraft.balancer.layout import LOAD, Layout


class LoadCapacityGoal(CapacityGoal):
    name, measure, moves_leaders = "load-capacity", LOAD, True

    def capacity(self, layout: Layout, slot: int) -> float:
        """What it would do in a second at a load of 1; unknown while no load is reported."""
        return 0.0 if layout.model.brokers[slot].load is None else layout.sizes[LOAD][slot]
