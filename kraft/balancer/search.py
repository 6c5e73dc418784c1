"""The search for moves on behalf of a goal. No I/O.

Leader moves are tried before copies, because they cost next to nothing, and what weighs most is tried first, because
load is unevenly spread and few moves then suffice. Each candidate is tried twice: first only moves with which later
goals agree too, then any that no earlier goal rejects. Last come exchanges of a heavy replica for a light one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from common.pacing import Work
from kraft.balancer.attempts import MOVING, ON_APART, Attempts
from kraft.balancer.goal import BandGoal, Goal
from kraft.balancer.layout import LOAD, Layout
from kraft.balancer.model import Standing
from kraft.balancer.move import Limits, MoveKind
from kraft.balancer.ranking import Entry, ranked

FAILURES_MAX = 150
"""Candidates of one broker that are rejected in succession before a goal gives up there."""
LIGHTEST = 20_000.0
"""A replica that weighs less than such a part of what a broker has too much is not worth a move."""
PARTNERS, EXCHANGED_WITH = 8, 4  # light replicas that a heavy one may go for, on each of so many brokers
LOOKED_THROUGH = 50  # light replicas among which these are looked for
CANDIDATE_COST, ATTEMPT_COST = 6, 10  # units of `common.pacing`
YIELD_FROM = 200  # units that are spent between two yields


class MoveSearch:
    """One per plan, as the goals use it (`kraft.balancer.goal.Search`). What it takes is in `attempts`."""

    def __init__(self, layout: Layout, goals: Sequence[Goal], limits: Limits) -> None:
        self.layout = layout
        self.attempts = Attempts(layout, goals, limits)
        self.toward = frozenset(layout.model.slots[b] for b in limits.toward if b in layout.model.slots)
        self._goals = goals
        self._ranked: dict[tuple[str, int], array[int]] = {}
        self._light_left: dict[int, int] = {}  # by slot: where the first light replica stands that may still move
        self._spent = self._attempts_paid = 0

    def begin(self, goal: Goal) -> None:
        """Start looking for moves of a goal. What was rejected before counts no longer."""
        self.attempts.why_not[goal.name].clear()
        self._ranked.clear()
        self._light_left.clear()
        for one in self._goals:
            one.prepare(self.layout)

    def rejected(self, goal: Goal, reason: str) -> None:
        self.attempts.rejected(goal, reason)

    # off a broker ----------------------------------------------------------------------------------------------

    def relieve(self, goal: BandGoal, slot: int) -> Work[None]:
        for considerate in (True, False):
            if goal.moves_leaders:
                yield from self._hand_over(goal, slot, considerate)
            if goal.moves_replicas:
                yield from self._move_off(goal, slot, considerate)
        if goal.moves_replicas and not goal.is_count and not goal.is_hard:
            yield from self._exchange(goal, slot, goal.is_over)

    def _hand_over(self, goal: BandGoal, slot: int, considerate: bool) -> Work[None]:
        """Give leaderships of a broker to other replicas."""
        layout, failures = self.layout, 0
        for replica in (yield from self._leading(goal, slot)):
            if failures > FAILURES_MAX or not goal.is_over(layout, slot):
                return
            if self.attempts.is_used_up(goal, MoveKind.LEADER):
                return
            partition = layout.partition_of[replica]
            if self.attempts.may_move(goal, partition):
                targets = self._by_value(goal, self._successors(goal, partition, slot))
                is_taken = self.attempts.hand_over(goal, replica, targets, considerate=considerate)
                failures = 0 if is_taken else failures + 1
            yield from self._pause()

    def _move_off(self, goal: BandGoal, slot: int, considerate: bool) -> Work[None]:
        """Give replicas of a broker to others."""
        layout, failures = self.layout, 0
        targets = self._by_value(goal, self._takers(goal, slot))
        for replica in (yield from self._ordered(goal, slot, considerate)):
            if failures > FAILURES_MAX or not goal.is_over(layout, slot):
                return
            if self.attempts.is_used_up(goal, MoveKind.REPLICA) or self._is_light(goal, replica, slot):
                return
            if self.attempts.may_move(goal, layout.partition_of[replica]):
                if self.attempts.copy(goal, replica, targets, considerate=considerate):
                    failures = 0
                    targets = self._by_value(goal, targets)
                else:
                    failures += 1
            yield from self._pause()

    def _is_light(self, goal: BandGoal, replica: int, slot: int) -> bool:
        layout = self.layout
        amount = layout.copy_amounts(replica)[goal.measure]
        return not goal.is_count and amount * LIGHTEST < goal.missed(layout, slot)

    # to a broker -----------------------------------------------------------------------------------------------

    def fill(self, goal: BandGoal, slot: int) -> Work[None]:
        for considerate in (True, False):
            if goal.moves_leaders:
                yield from self._take_over(goal, slot, considerate)
            if goal.moves_replicas:
                yield from self._move_on(goal, slot, considerate)
        if goal.moves_replicas and not goal.is_count:
            others = self._by_value(goal, self._takers(goal, slot))
            for other in reversed(others[-EXCHANGED_WITH:]):
                if goal.is_under(self.layout, slot):
                    yield from self._exchange(goal, other, lambda layout, _: goal.is_under(layout, slot), slot)

    def _take_over(self, goal: BandGoal, slot: int, considerate: bool) -> Work[None]:
        """Give a broker leaderships of partitions that it has in-sync replicas of."""
        layout, failures = self.layout, 0
        for replica in (yield from self._following(goal, slot)):
            if failures > FAILURES_MAX or not goal.is_under(layout, slot):
                return
            if self.attempts.is_used_up(goal, MoveKind.LEADER):
                return
            partition = layout.partition_of[replica]
            source = layout.leader[partition]
            if layout.standing[source] is Standing.LIVE and self.attempts.may_move(goal, partition):
                leading = next(r for r in layout.replicas_of(partition) if layout.holder[r] == source)
                is_taken = (
                    layout.model.cell_of[source] == layout.model.cell_of[slot]
                    and layout.model.in_sync[replica] > 0
                    and self.attempts.hand_over(goal, leading, [slot], considerate=considerate)
                )
                failures = 0 if is_taken else failures + 1
            yield from self._pause()

    def _move_on(self, goal: BandGoal, slot: int, considerate: bool) -> Work[None]:
        """Give a broker replicas, each from the one with most that has a candidate left."""
        layout, failures = self.layout, 0
        queues, medians = {}, {}
        for other in self._takers(goal, slot):
            order = yield from self._ordered(goal, other, considerate)
            queues[other] = iter(order)
            medians[other] = layout.copy_amounts(order[len(order) // 2])[LOAD] if order else 0.0
        while queues and goal.is_under(layout, slot) and failures <= FAILURES_MAX:
            if self.attempts.is_used_up(goal, MoveKind.REPLICA):
                return
            source = max(queues, key=lambda one: (layout.value(goal.measure, one), -one))
            is_taken = False
            for replica in queues[source]:
                if self._is_light(goal, replica, slot):
                    break
                if considerate and goal.is_count and not self._is_in_pace(goal, replica, slot, medians[source]):
                    yield from self._pause()
                    continue
                if self.attempts.may_move(goal, layout.partition_of[replica]):
                    is_taken = self.attempts.copy(goal, replica, [slot], considerate=considerate)
                    failures = 0 if is_taken else failures + 1
                yield from self._pause()
                if is_taken or failures > FAILURES_MAX:
                    break
            if not is_taken:
                del queues[source]

    def _is_in_pace(self, goal: BandGoal, replica: int, slot: int, median: float) -> bool:
        """Whether a broker that gets many replicas may have a heavy one, so that with all others to come, of a median
        weight, its load will be fair."""
        layout = self.layout
        still = max(goal.missed(layout, slot) - 1.0, 0.0) * median
        fair = layout.fair(LOAD)[slot] * layout.sizes[LOAD][slot]
        weight = layout.copy_amounts(replica)[LOAD]
        return weight <= median or layout.amounts[LOAD][slot] + weight + still <= fair

    # between two brokers ---------------------------------------------------------------------------------------

    def _exchange(
        self, goal: BandGoal, slot: int, goes_on: Callable[[Layout, int], bool], target: int | None = None
    ) -> Work[None]:
        """Exchange heavy replicas of a broker for light ones of others."""
        layout, failures = self.layout, 0
        others = self._by_value(goal, self._takers(goal, slot)) if target is None else [target]
        for replica in (yield from self._held(goal, slot)):
            if failures > FAILURES_MAX or not goes_on(layout, slot):
                return
            if self.attempts.is_used_up(goal, MoveKind.REPLICA) or self._is_light(goal, replica, slot):
                return
            yield from self._pause()
            if not self.attempts.may_move(goal, layout.partition_of[replica]):
                continue
            targets = self.attempts.possible(goal, replica, others)
            is_taken = False
            for other in targets[:EXCHANGED_WITH]:
                if is_taken := (yield from self._exchange_with(goal, replica, other)):
                    others = self._by_value(goal, others)
                    break
            failures = 0 if is_taken else failures + 1

    def _exchange_with(self, goal: BandGoal, replica: int, other: int) -> Work[bool]:
        layout, attempts = self.layout, self.attempts
        light = yield from self._light(goal, other)
        begin = self._light_left.get(other, 0)
        while begin < len(light) and not attempts.may_move(goal, layout.partition_of[light[begin]]):
            begin += 1
        self._light_left[other] = begin
        some = light[begin : begin + LOOKED_THROUGH]
        movable = (one for one in some if attempts.may_move(goal, layout.partition_of[one]))
        return any(self.attempts.exchange(goal, replica, partner) for partner in islice(movable, PARTNERS))

    # one replica -----------------------------------------------------------------------------------------------

    def rehouse(self, goal: Goal, replica: int, *, within_cell: bool = False) -> Work[bool]:
        layout, partition = self.layout, self.layout.partition_of[replica]
        yield from self._pause()
        if not layout.may_move(partition):
            self.rejected(goal, MOVING)
            return False
        if not self.attempts.may_move(goal, partition) or self.attempts.is_used_up(goal, MoveKind.REPLICA):
            return False
        source = layout.holder[replica]
        if layout.standing[source] is Standing.APART:
            self.rejected(goal, ON_APART)
            return False
        home = layout.model.cell_of[source]
        targets = list(layout.live[home] if within_cell else layout.live_for(partition))
        targets.sort(key=lambda slot: (layout.model.cell_of[slot] != home, layout.fullness(slot), slot))
        self._spent += CANDIDATE_COST * len(targets)
        return self.attempts.copy(goal, replica, targets, considerate=True) or self.attempts.copy(
            goal, replica, targets, considerate=False
        )

    # candidates and targets ------------------------------------------------------------------------------------

    def _held(self, goal: BandGoal, slot: int) -> Work[array[int]]:
        """Replicas of a broker, the heaviest first."""
        layout, measure, size = self.layout, goal.measure, self.layout.model.size

        def entry(replica: int) -> Entry | None:
            if layout.holder[replica] != slot or not layout.may_move(layout.partition_of[replica]):
                return None
            amounts = layout.copy_amounts(replica)
            return (-amounts[measure], -amounts[LOAD], size[replica], replica) if amounts[measure] > 0 else None

        return (yield from self._known("held", slot, layout.held[slot], entry))

    def _ordered(self, goal: BandGoal, slot: int, considerate: bool) -> Work[Sequence[int]]:
        """Replicas of a broker in the order in which they are tried. Where all weigh the same for the goal, and later
        goals did not agree, those come first that matter least to them."""
        held = yield from self._held(goal, slot)
        return held[::-1] if goal.is_count and not considerate else held

    def _light(self, goal: BandGoal, slot: int) -> Work[array[int]]:
        """Replicas of a broker, the lightest first, and of these what is cheap to copy."""
        layout, measure, size = self.layout, goal.measure, self.layout.model.size

        def entry(replica: int) -> Entry | None:
            if layout.holder[replica] != slot or not layout.may_move(layout.partition_of[replica]):
                return None
            return layout.copy_amounts(replica)[measure], size[replica], 0.0, replica

        return (yield from self._known("light", slot, layout.held[slot], entry))

    def _leading(self, goal: BandGoal, slot: int) -> Work[array[int]]:
        """Replicas of a broker that lead, the heaviest leadership first."""
        return (yield from self._by_leadership(goal, slot, "leading"))

    def _following(self, goal: BandGoal, slot: int) -> Work[array[int]]:
        """Replicas of a broker that follow, those of the heaviest leadership first."""
        return (yield from self._by_leadership(goal, slot, "following"))

    def _by_leadership(self, goal: BandGoal, slot: int, which: str) -> Work[array[int]]:
        layout, measure, is_leading = self.layout, goal.measure, which == "leading"

        def entry(replica: int) -> Entry | None:
            partition = layout.partition_of[replica]
            if layout.holder[replica] != slot or not layout.may_move(partition):
                return None
            if (layout.leader[partition] == slot) is not is_leading:
                return None
            amounts = layout.leader_amounts(partition)
            return -amounts[measure], -amounts[LOAD], 0.0, replica

        return (yield from self._known(which, slot, layout.held[slot], entry))

    def _known(
        self, which: str, slot: int, replicas: Iterable[int], entry: Callable[[int], Entry | None]
    ) -> Work[array[int]]:
        """The ranking of one goal, made once; what has moved since is left out where it is used."""
        known = self._ranked.get((which, slot))
        if known is None:
            known = self._ranked[which, slot] = yield from ranked(replicas, entry)
        return known

    def _takers(self, goal: Goal, source: int) -> list[int]:
        """Brokers that may take from another one: soft goals do not leave the cell."""
        layout = self.layout
        cell = layout.model.cell_of[source]
        others = [slot for slot in layout.live[cell] if slot != source]
        if goal.is_hard:
            others += [slot for number, live in enumerate(layout.live) if number != cell for slot in live]
        return others

    def _successors(self, goal: Goal, partition: int, source: int) -> list[int]:
        """Brokers that may lead the partition instead."""
        layout, cell_of = self.layout, self.layout.model.cell_of
        return [
            slot
            for replica in layout.replicas_of(partition)
            if (slot := layout.holder[replica]) != source
            and layout.model.in_sync[replica]
            and layout.standing[slot] is Standing.LIVE
            and (goal.is_hard or cell_of[slot] == cell_of[source])
        ]

    def _by_value(self, goal: BandGoal, slots: Sequence[int]) -> list[int]:
        sums, sizes = self.layout.amounts[goal.measure], self.layout.sizes[goal.measure]
        return sorted(slots, key=lambda slot: (sums[slot] / sizes[slot], slot))

    def _pause(self) -> Work[None]:
        attempts = self.attempts.count
        self._spent += CANDIDATE_COST + ATTEMPT_COST * (attempts - self._attempts_paid)
        self._attempts_paid = attempts
        if self._spent >= YIELD_FROM:
            spent, self._spent = self._spent, 0
            yield spent
