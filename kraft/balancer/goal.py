"""What a goal of the balancer is: it judges any move, and looks for moves of its own. No I/O.

Goals have an order. A move that one goal looks for is taken only if no earlier goal and no hard one gets worse by it;
later goals are spared where that is possible.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Protocol

from common.pacing import Work
from kraft.balancer.layout import Amounts, Layout
from kraft.balancer.model import Standing
from kraft.balancer.move import MoveKind

AIM = 1.1
"""Plans level brokers to this factor of their cell's mean, above and below."""
ROUNDING = 1e-9  # relative; sums of floats that differ by less are equal
PROGRESS = 1e-6  # relative to the fair value; a move that brings less is none


class Trial:
    """A move that is being judged. `replica` is a number, `source` and `target` are slots."""

    __slots__ = ("amounts", "kind", "partition", "replica", "source", "target")

    def __init__(
        self, kind: MoveKind, partition: int, replica: int, source: int, target: int, amounts: Amounts
    ) -> None:
        self.kind = kind
        self.partition = partition
        self.replica = replica
        self.source = source
        self.target = target
        self.amounts = amounts

    def redirect(self, target: int) -> None:
        """Judge another target next."""
        self.target = target


class State(NamedTuple):
    """`worst`: the worst value; `distance`: of all brokers from their bounds, added up; `broken`: slots of brokers that
    are beyond their bounds."""

    worst: float
    distance: float
    broken: tuple[int, ...]


class Values:
    """The goal's value of source and target, before and after a move."""

    __slots__ = ("after", "before", "target_after", "target_before")

    def __init__(self, before: float, after: float, target_before: float = 0.0, target_after: float = 0.0) -> None:
        self.before = before
        self.after = after
        self.target_before = target_before
        self.target_after = target_after


class Search(Protocol):
    """What a goal that looks for moves does it with: `kraft.balancer.search.MoveSearch`."""

    @property
    def layout(self) -> Layout: ...

    @property
    def toward(self) -> frozenset[int]:
        """Slots of the only brokers that soft goals may move something to; empty for all."""

    def relieve(self, goal: BandGoal, slot: int) -> Work[None]:
        """Move leaderships and replicas off a broker until it is in the goal's band."""

    def fill(self, goal: BandGoal, slot: int) -> Work[None]:
        """Move leaderships and replicas to a broker until it is in the goal's band."""

    def rehouse(self, goal: Goal, replica: int, *, within_cell: bool = False) -> Work[bool]:
        """Move one replica to the broker that suits best; whether there is one."""

    def rejected(self, goal: Goal, reason: str) -> None:
        """Count a reason why the goal cannot have a move."""


class Goal(ABC):
    """One per plan: it may keep what it has computed for the layout."""

    name: ClassVar[str]
    is_hard: ClassVar[bool] = False
    heeds_rest: ClassVar[bool] = True
    """Whether partitions that have moved of late stay where they are."""
    bound: ClassVar[float]
    """What `worst` should be at most."""

    @abstractmethod
    def prepare(self, layout: Layout) -> None:
        """Compute the bounds again; called at the start, and before the goal looks for moves."""

    @abstractmethod
    def accepts(self, layout: Layout, trial: Trial) -> bool:
        """Whether the goal does not get worse."""

    @abstractmethod
    def improves(self, layout: Layout, trial: Trial) -> bool:
        """Whether the goal gets better."""

    @abstractmethod
    def values(self, layout: Layout, trial: Trial) -> Values: ...

    @abstractmethod
    def pursue(self, search: Search) -> Work[None]:
        """Look for moves and attempt them."""

    @abstractmethod
    def state(self, layout: Layout) -> Work[State]:
        """How well the goal is met; for bounds as of the last `prepare`."""


class BandGoal(Goal):
    """A goal about one sum per broker, which should be between `low` and `high`. What is beyond counts in relation to
    the broker's size, and of two brokers the one that is further beyond counts first."""

    measure: ClassVar[int]
    moves_replicas: ClassVar[bool] = True
    moves_leaders: ClassVar[bool] = False
    is_count: ClassVar[bool] = False
    """Whether every replica, or every leadership, weighs the same."""

    def __init__(self) -> None:
        self.fair: list[float] = []
        """By slot: the value that a live broker would have if all were alike."""
        self.low: list[float] = []
        self.high: list[float] = []
        self.sizes: list[float] = []
        self._progress = 0.0

    @abstractmethod
    def bounds(self, layout: Layout, slot: int) -> tuple[float, float, float]:
        """Lowest and highest sum that a broker should have, and its size. Infinite where there is no bound."""

    def prepare(self, layout: Layout) -> None:
        self.fair = layout.fair(self.measure)
        found = [self.bounds(layout, slot) for slot in range(layout.slot_count)]
        slack = [ROUNDING * max(abs(high), size) if math.isfinite(high) else 0.0 for _, high, size in found]
        self.low = [low - more for (low, _, _), more in zip(found, slack, strict=True)]
        self.high = [high + more for (_, high, _), more in zip(found, slack, strict=True)]
        self.sizes = [size for _, _, size in found]
        highs = [high / size for _, high, size in found if math.isfinite(high) and size > 0]
        self._progress = PROGRESS * min(highs, default=1.0)

    def beyond(self, slot: int, amount: float) -> float:
        """How far a broker with `amount` is out of its band."""
        return max(amount - self.high[slot], self.low[slot] - amount, 0.0) / self.sizes[slot]

    def accepts(self, layout: Layout, trial: Trial) -> bool:
        amount, source, target = trial.amounts[self.measure], trial.source, trial.target
        if amount == 0:
            return True
        if amount < 0:  # an exchange that takes more than it gives
            amount, source, target = -amount, target, source
        sums = layout.amounts[self.measure]
        given, taken = sums[source] - amount, sums[target] + amount
        if taken <= self.high[target] and given >= self.low[source]:
            return True
        before = sorted((self.beyond(source, sums[source]), self.beyond(target, sums[target])))
        after = sorted((self.beyond(source, given), self.beyond(target, taken)))
        slack = ROUNDING * before[1]
        return after[1] < before[1] - slack or (after[1] <= before[1] + slack and after[0] <= before[0] + slack)

    def improves(self, layout: Layout, trial: Trial) -> bool:
        amount = trial.amounts[self.measure]
        if amount <= 0:
            return False
        sums, source, target = layout.amounts[self.measure], trial.source, trial.target
        before = sorted((self.beyond(source, sums[source]), self.beyond(target, sums[target])))
        after = sorted((self.beyond(source, sums[source] - amount), self.beyond(target, sums[target] + amount)))
        least = self._progress
        return after[1] < before[1] - least or (after[1] <= before[1] and after[0] < before[0] - least)

    def values(self, layout: Layout, trial: Trial) -> Values:
        amount, sums, sizes = trial.amounts[self.measure], layout.amounts[self.measure], self.sizes
        source, target = trial.source, trial.target
        return Values(
            sums[source] / sizes[source],
            (sums[source] - amount) / sizes[source],
            sums[target] / sizes[target],
            (sums[target] + amount) / sizes[target],
        )

    def is_over(self, layout: Layout, slot: int) -> bool:
        return layout.amounts[self.measure][slot] > self.high[slot]

    def is_under(self, layout: Layout, slot: int) -> bool:
        return layout.amounts[self.measure][slot] < self.low[slot]

    def missed(self, layout: Layout, slot: int) -> float:
        """How much a broker has too much or too little."""
        return self.beyond(slot, layout.amounts[self.measure][slot]) * self.sizes[slot]

    def broken(self, layout: Layout) -> tuple[int, ...]:
        """Slots of brokers outside of their band, the worst first."""
        sums = layout.amounts[self.measure]
        found = [slot for slot in range(layout.slot_count) if self.beyond(slot, sums[slot]) > 0]
        return tuple(sorted(found, key=lambda slot: (-self.beyond(slot, sums[slot]), slot)))


class CapacityGoal(BandGoal):
    """No broker has more of something than a share of its capacity. Hard."""

    is_hard = True
    bound = 0.8

    @abstractmethod
    def capacity(self, layout: Layout, slot: int) -> float:
        """0 if unknown or unlimited."""

    def bounds(self, layout: Layout, slot: int) -> tuple[float, float, float]:
        capacity = self.capacity(layout, slot)
        if capacity <= 0 or layout.standing[slot] is Standing.APART:
            return -math.inf, math.inf, capacity if capacity > 0 else 1.0
        return -math.inf, self.bound * capacity, capacity

    def pursue(self, search: Search) -> Work[None]:
        for slot in self.broken(search.layout):
            yield from search.relieve(self, slot)

    def state(self, layout: Layout) -> Work[State]:
        sums = layout.amounts[self.measure]
        shares = [sums[slot] / self.sizes[slot] for slot in range(layout.slot_count) if math.isfinite(self.high[slot])]
        yield layout.slot_count
        distance = sum(self.beyond(slot, amount) for slot, amount in enumerate(sums))
        return State(max(shares, default=0.0), distance, self.broken(layout))


class LevelGoal(BandGoal):
    """The live brokers of a cell have about as much of something as each other. Soft.

    `floor`: a value up to which a broker is never too high, because so little is not worth a move. The bands of
    counts are widened to whole numbers.
    """

    bound = AIM
    floor: ClassVar[float] = 0.0

    def floor_of(self, layout: Layout) -> float:
        return self.floor

    def bounds(self, layout: Layout, slot: int) -> tuple[float, float, float]:
        size = layout.sizes[self.measure][slot]
        if layout.standing[slot] is not Standing.LIVE:
            return -math.inf, math.inf, size
        fair = self.fair[slot]
        if self.is_count:
            return math.floor(fair * (2 - AIM) + ROUNDING), math.ceil(fair * AIM - ROUNDING), size
        floor = self.floor_of(layout)
        if fair * AIM <= floor:
            return -math.inf, max(floor, fair * AIM) * size, size
        return fair * (2 - AIM) * size, fair * AIM * size, size

    def pursue(self, search: Search) -> Work[None]:
        layout, toward = search.layout, search.toward
        for slot in self.broken(layout):
            if self.is_under(layout, slot) and (not toward or slot in toward):
                yield from search.fill(self, slot)
        for slot in self.broken(layout):
            if self.is_over(layout, slot) and not toward:
                yield from search.relieve(self, slot)

    def state(self, layout: Layout) -> Work[State]:
        worst, distance, sums = 1.0, 0.0, layout.amounts[self.measure]
        for slot in (slot for live in layout.live for slot in live):
            fair = self.fair[slot]
            if fair * AIM > self.floor_of(layout):
                worst = max(worst, 1.0 + abs(layout.value(self.measure, slot) / fair - 1.0))
                distance += self.beyond(slot, sums[slot]) / fair
        yield layout.slot_count
        return State(worst, distance, self.broken(layout))
