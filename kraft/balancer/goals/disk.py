"""Goal 8: a cell's disks are about as full as each other."""

from __future__ import annotations

from kraft.balancer.goal import LevelGoal
from kraft.balancer.layout import DISK, Layout

FULL_ENOUGH = 0.2  # share of a disk; emptier ones are not worth a copy
BYTES_ENOUGH = 256 << 20  # the same where the size of a disk is unknown


class DiskGoal(LevelGoal):
    name, measure = "disk", DISK

    def floor_of(self, layout: Layout) -> float:
        return FULL_ENOUGH if max(layout.sizes[DISK], default=1.0) > 1 else BYTES_ENOUGH
