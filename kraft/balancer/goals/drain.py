"""Brokers that are being emptied have no replicas: what an operator asked for, after the hard goals. Hard itself."""

from __future__ import annotations

from common.pacing import Work
from kraft.balancer.goal import Goal, Search, State, Trial, Values
from kraft.balancer.layout import REPLICAS, Layout
from kraft.balancer.model import Standing
from kraft.balancer.move import DRAIN, MoveKind


class DrainGoal(Goal):
    """Its value is the number of replicas that are left. A partition may leave although it has moved before."""

    name, is_hard, bound, heeds_rest = DRAIN, True, 0.0, False

    def prepare(self, layout: Layout) -> None:
        pass

    def accepts(self, layout: Layout, trial: Trial) -> bool:
        return True  # a broker that is emptied is never a target

    def improves(self, layout: Layout, trial: Trial) -> bool:
        return trial.kind is MoveKind.REPLICA and layout.standing[trial.source] is Standing.LEAVING

    def values(self, layout: Layout, trial: Trial) -> Values:
        source, target = (layout.amounts[REPLICAS][slot] for slot in (trial.source, trial.target))
        return Values(source, source - 1, target, target + 1)

    def pursue(self, search: Search) -> Work[None]:
        layout = search.layout
        for slot, standing in enumerate(layout.standing):
            if standing is Standing.LEAVING:
                for replica in layout.held[slot]:
                    if layout.holder[replica] == slot:
                        yield from search.rehouse(self, replica)

    def state(self, layout: Layout) -> Work[State]:
        left = [
            slot
            for slot, standing in enumerate(layout.standing)
            if standing is Standing.LEAVING and layout.amounts[REPLICAS][slot] > 0
        ]
        yield layout.slot_count
        total = sum(layout.amounts[REPLICAS][slot] for slot in left)
        return State(total, total, tuple(left))
