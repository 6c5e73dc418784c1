"""Goal 0: a tenant's replicas are on the brokers of its cell, and those of a cell's range of an internal topic too."""

from __future__ import annotations

from kraft.balancer.goals.placement import PlacementGoal
from kraft.balancer.layout import Layout
from kraft.balancer.model import ANYWHERE


class CellGoal(PlacementGoal):
    name = "cell"

    def excess(self, layout: Layout, partition: int, source: int, target: int) -> int:
        if layout.model.home[partition] == ANYWHERE:
            return 0
        holders = (target if slot == source else slot for slot in layout.holders(partition))
        return sum(not layout.is_home(partition, slot) for slot in holders)

    def sources(self, layout: Layout, partition: int) -> list[int]:
        return [r for r in layout.replicas_of(partition) if not layout.is_home(partition, layout.holder[r])]
