"""Goal 12: a topic's replicas are spread over the brokers of a cell."""

from __future__ import annotations

import math
from array import array

from common.pacing import Work
from kraft.balancer.goal import Goal, Search, State, Trial, Values
from kraft.balancer.layout import REPLICAS, Layout
from kraft.balancer.move import MoveKind

GAP = 2  # replicas of one topic that a broker may always have more, or fewer, than its cell's mean
SHARE = 0.1  # of the mean, where that is more
FAILURES_MAX = 300  # replicas of one broker that are rejected in succession before it gives up there
LOOKED_AT_ONCE, LOOK_COST = 100, 2


class TopicReplicasGoal(Goal):
    """Its value is the number of a topic's replicas on a broker, in relation to its cell's mean and the gap."""

    name, bound = "topic-replicas", 1.0

    def __init__(self) -> None:
        self._totals = array("i")
        """By topic and cell: one more than its replicas there; 0 while they are not counted."""
        self._shares: list[float] = []

    def prepare(self, layout: Layout) -> None:
        self._totals = array("i", bytes(4 * len(layout.model.topic_ids) * len(layout.model.cells)))
        self._shares = list(layout.fair(REPLICAS))
        for live in layout.live:
            total = sum(self._shares[slot] for slot in live) or 1.0
            for slot in live:
                self._shares[slot] /= total

    def _mean(self, layout: Layout, topic: int, slot: int) -> tuple[float, float]:
        """How many replicas of a topic a live broker should have, and how many more or fewer it may have. Moves within
        the cell do not change it."""
        cell = layout.model.cell_of[slot]
        place = topic * len(layout.model.cells) + cell
        if not self._totals[place]:
            row = topic * layout.slot_count
            self._totals[place] = 1 + sum([layout.topic_counts[row + one] for one in layout.live[cell]])
        mean = (self._totals[place] - 1) * self._shares[slot]
        return mean, max(GAP, SHARE * mean)

    def _counts(self, layout: Layout, trial: Trial) -> tuple[int, int]:
        row = layout.model.topic[trial.partition] * layout.slot_count
        return layout.topic_counts[row + trial.source], layout.topic_counts[row + trial.target]

    def accepts(self, layout: Layout, trial: Trial) -> bool:
        cell_of = layout.model.cell_of
        if trial.kind is MoveKind.LEADER or cell_of[trial.source] != cell_of[trial.target]:
            return True
        source, target = self._counts(layout, trial)
        if target < source:
            return True
        topic = layout.model.topic[trial.partition]
        mean, gap = self._mean(layout, topic, trial.target)
        if target + 1 > mean + gap:
            return False
        mean, gap = self._mean(layout, topic, trial.source)
        return source - 1 >= mean - gap

    def improves(self, layout: Layout, trial: Trial) -> bool:
        if trial.kind is MoveKind.LEADER:
            return False
        source, target = self._counts(layout, trial)
        return target + 1 < source

    def values(self, layout: Layout, trial: Trial) -> Values:
        source, target = self._counts(layout, trial)
        return Values(source, source - 1, target, target + 1)

    def _over(self, layout: Layout, topic: int) -> list[tuple[int, float]]:
        """Live slots with too many replicas of a topic, and how far beyond the mean in gaps."""
        row = topic * layout.slot_count
        counts = layout.topic_counts[row : row + layout.slot_count]
        if max(counts, default=0) <= GAP:
            return []
        found = []
        for slot in (slot for live in layout.live for slot in live if counts[slot] > GAP):
            mean, gap = self._mean(layout, topic, slot)
            if counts[slot] > mean + gap:
                found.append((slot, (counts[slot] - mean) / gap))
        return sorted(found, key=lambda over: (-over[1], over[0]))

    def pursue(self, search: Search) -> Work[None]:
        if search.toward:
            return
        layout = search.layout
        wanted: dict[int, dict[int, int]] = {}
        for topic in range(len(layout.model.topic_ids)):
            for slot, _ in self._over(layout, topic):
                mean, gap = self._mean(layout, topic, slot)
                count = layout.topic_counts[topic * layout.slot_count + slot]
                wanted.setdefault(slot, {})[topic] = math.ceil(count - mean - gap)
            if topic % LOOKED_AT_ONCE == 0:
                yield LOOKED_AT_ONCE * LOOK_COST
        for slot, topics in wanted.items():
            failures = 0
            for number, replica in enumerate(layout.held[slot], 1):
                topic = layout.model.topic[layout.partition_of[replica]]
                if topics.get(topic, 0) > 0 and failures <= FAILURES_MAX:
                    is_taken = yield from search.rehouse(self, replica, within_cell=True)
                    failures = 0 if is_taken else failures + 1
                    topics[topic] -= is_taken
                if number % LOOKED_AT_ONCE == 0:
                    yield LOOKED_AT_ONCE * LOOK_COST

    def state(self, layout: Layout) -> Work[State]:
        worst, distance, slots = 0.0, 0.0, dict[int, None]()
        for topic in range(len(layout.model.topic_ids)):
            for slot, gaps in self._over(layout, topic):
                worst = max(worst, gaps)
                distance += gaps - 1
                slots[slot] = None
            if topic % LOOKED_AT_ONCE == 0:
                yield LOOKED_AT_ONCE * LOOK_COST
        return State(worst, distance, tuple(sorted(slots)))
