"""Goals about which brokers hold a partition's replicas: each partition is judged by itself. Hard."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from common.pacing import Work
from kraft.balancer.goal import Goal, Search, State, Trial, Values
from kraft.balancer.layout import Layout
from kraft.balancer.model import NO_SLOT
from kraft.balancer.move import MoveKind

LOOKED_AT_ONCE, LOOK_COST = 100, 4  # partitions looked at between two yields, and units of `common.pacing` of each


class PlacementGoal(Goal):
    """Its value is the number of replicas that should be elsewhere: of one partition in moves, else of all."""

    is_hard = True
    bound = 0.0

    @abstractmethod
    def excess(self, layout: Layout, partition: int, source: int, target: int) -> int:
        """How many replicas of the partition should be elsewhere, if the one on `source` were on `target`."""

    @abstractmethod
    def sources(self, layout: Layout, partition: int) -> list[int]:
        """Replicas that may be moved to mend it, the best choice first."""

    def __init__(self) -> None:
        self._suspects: Sequence[int] | None = None

    def prepare(self, layout: Layout) -> None:
        pass

    def accepts(self, layout: Layout, trial: Trial) -> bool:
        if trial.kind is MoveKind.LEADER:
            return True
        now = self.excess(layout, trial.partition, NO_SLOT, NO_SLOT)
        return self.excess(layout, trial.partition, trial.source, trial.target) <= now

    def improves(self, layout: Layout, trial: Trial) -> bool:
        if trial.kind is MoveKind.LEADER:
            return False
        now = self.excess(layout, trial.partition, NO_SLOT, NO_SLOT)
        return self.excess(layout, trial.partition, trial.source, trial.target) < now

    def values(self, layout: Layout, trial: Trial) -> Values:
        now = self.excess(layout, trial.partition, NO_SLOT, NO_SLOT)
        return Values(now, self.excess(layout, trial.partition, trial.source, trial.target))

    def _broken_partitions(self, layout: Layout) -> Work[Sequence[int]]:
        """Partitions to mend. They only get fewer, because no goal's move makes one worse."""
        suspects = range(layout.model.partition_count) if self._suspects is None else self._suspects
        found = []
        for number, partition in enumerate(suspects, 1):
            if self.excess(layout, partition, NO_SLOT, NO_SLOT):
                found.append(partition)
            if number % LOOKED_AT_ONCE == 0:
                yield LOOKED_AT_ONCE * LOOK_COST
        self._suspects = found
        return found

    def pursue(self, search: Search) -> Work[None]:
        layout = search.layout
        for partition in (yield from self._broken_partitions(layout)):
            for replica in self.sources(layout, partition):
                if (yield from search.rehouse(self, replica)):
                    break

    def state(self, layout: Layout) -> Work[State]:
        broken = yield from self._broken_partitions(layout)
        slots: dict[int, None] = {}
        total = 0
        for number, partition in enumerate(broken, 1):
            total += self.excess(layout, partition, NO_SLOT, NO_SLOT)
            for replica in self.sources(layout, partition)[:1]:
                slots[layout.holder[replica]] = None
            if number % LOOKED_AT_ONCE == 0:
                yield LOOKED_AT_ONCE * LOOK_COST
        return State(float(total), float(total), tuple(sorted(slots)))
