"""Goal 1: replicas of a partition are in different racks, as far as there are racks with live brokers."""

from __future__ import annotations

from kraft.balancer.goals.placement import PlacementGoal
from kraft.balancer.layout import Layout


class RacksGoal(PlacementGoal):
    name = "racks"

    def excess(self, layout: Layout, partition: int, source: int, target: int) -> int:
        return layout.rack_excess(partition, source, target)

    def sources(self, layout: Layout, partition: int) -> list[int]:
        """Those that share a rack: first what does not lead, then what is cheap to copy."""
        racks = [layout.rack[slot] for slot in layout.holders(partition)]
        leader, size = layout.leader[partition], layout.model.size
        shared = [
            replica for replica, rack in zip(layout.replicas_of(partition), racks, strict=True) if racks.count(rack) > 1
        ]
        return sorted(shared, key=lambda replica: (layout.holder[replica] == leader, size[replica], replica))
