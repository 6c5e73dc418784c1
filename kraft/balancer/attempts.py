"""Moves that are tried, judged by all goals, and taken or not. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from common.pacing import Work
from kraft.balancer.goal import BandGoal, Goal, Trial
from kraft.balancer.goals.racks import RacksGoal
from kraft.balancer.layout import Amounts, Layout
from kraft.balancer.model import NO_SLOT
from kraft.balancer.move import Limits, Move, MoveKind

AGAINST_LIMITS, NO_TARGET, NOT_BETTER, RESTING, MOVING, ON_APART = (
    "limits of the plan",
    "no target",
    "no improvement",
    "moved of late",
    "being moved",
    "on a broker that takes no part",
)
"""Reasons beside the names of goals."""
UNDONE_AT_ONCE, UNDO_COST = 20, 20  # moves taken back between two yields, and units of `common.pacing` of each


class Attempts:
    """One per plan. `done`: trials that were taken, with their moves, in order; `why_not`: by goal, how often a goal or
    a condition rejected a candidate. `count`: attempts so far.

    An attempt must not make an earlier goal or a hard one worse, and if it is considerate no later one either.
    """

    def __init__(self, layout: Layout, goals: Sequence[Goal], limits: Limits) -> None:
        self.layout = layout
        self.done: list[tuple[Trial, Move]] = []
        self.cut_short = False
        self.count = 0
        self.why_not: dict[str, Counter[str]] = {goal.name: Counter() for goal in goals}
        self._limits = limits
        self._others = {
            goal.name: (
                [one for at, one in enumerate(goals) if at != number and (at < number or one.is_hard)],
                [one for at, one in enumerate(goals) if at > number and not one.is_hard],
            )
            for number, goal in enumerate(goals)
        }
        """By goal: those that must be heeded, earlier ones and hard ones, and those that need not."""
        self._agreed = {name: tuple(one.name for one in heeded) for name, (heeded, _) in self._others.items()}
        self._copies = self._leader_moves = 0
        self._bytes = 0.0

    def rejected(self, goal: Goal, reason: str) -> None:
        self.why_not[goal.name][reason] += 1

    def may_move(self, goal: Goal, partition: int) -> bool:
        """Whether a move of the partition may be tried for the goal."""
        layout = self.layout
        if not layout.may_move(partition):
            return False
        if goal.heeds_rest and self._limits.resting and layout.model.key(partition) in self._limits.resting:
            self.rejected(goal, RESTING)
            return False
        return True

    def is_used_up(self, goal: Goal, kind: MoveKind) -> bool:
        """Whether the plan may have no further move of that kind."""
        limits = self._limits
        used_up = (
            self._leader_moves >= limits.leader_moves_max
            if kind is MoveKind.LEADER
            else self._copies >= limits.moves_max
        )
        if used_up:
            self.cut_short = True
            self.rejected(goal, AGAINST_LIMITS)
        return used_up

    # leader moves and copies -----------------------------------------------------------------------------------

    def hand_over(self, goal: Goal, replica: int, targets: Sequence[int], *, considerate: bool) -> bool:
        """Give the leadership of a leading replica to the first of the targets that the goals accept."""
        partition = self.layout.partition_of[replica]
        amounts = self.layout.leader_amounts(partition)
        return self._first(goal, MoveKind.LEADER, replica, targets, amounts=amounts, considerate=considerate)

    def copy(self, goal: Goal, replica: int, targets: Sequence[int], *, considerate: bool) -> bool:
        """Move a replica to the first of the targets that the goals accept; those come first that suit `goal` best."""
        possible = self.possible(goal, replica, targets)
        amounts = self.layout.copy_amounts(replica)
        return self._first(goal, MoveKind.REPLICA, replica, possible, amounts=amounts, considerate=considerate)

    def possible(self, goal: Goal, replica: int, targets: Sequence[int]) -> list[int]:
        """The targets that hold no replica of the partition, nor share a rack with one if that can be avoided."""
        layout = self.layout
        partition = layout.partition_of[replica]
        holders, rack, source = layout.holders(partition), layout.rack, layout.holder[replica]
        found = [target for target in targets if target not in holders]
        if not found:
            self.rejected(goal, NO_TARGET)
        elif layout.are_racks_enough(partition):
            others = {rack[slot] for slot in holders if slot != source}
            others.discard(rack[source])
            if others:
                found = [target for target in found if rack[target] not in others]
                if not found:
                    self.rejected(goal, RacksGoal.name)
        return found

    def _first(
        self, goal: Goal, kind: MoveKind, replica: int, targets: Sequence[int], *, amounts: Amounts, considerate: bool
    ) -> bool:
        layout = self.layout
        trial = self._trial(kind, replica, NO_SLOT, amounts)
        for target in targets:
            trial.redirect(target)
            self.count += 1
            if not goal.improves(layout, trial):
                self.rejected(goal, NOT_BETTER)
                if isinstance(goal, BandGoal):
                    return False  # the other targets have more already
                continue
            against = self._against(goal, trial, considerate)
            if against is not None:
                self.rejected(goal, against)
            elif self._fits(goal, kind, amounts[1]):
                self._take(goal, trial)
                return True
        return False

    def _trial(self, kind: MoveKind, replica: int, target: int, amounts: Amounts) -> Trial:
        layout = self.layout
        return Trial(
            kind=kind,
            partition=layout.partition_of[replica],
            replica=replica,
            source=layout.holder[replica],
            target=target,
            amounts=amounts,
        )

    def _against(self, goal: Goal, trial: Trial, considerate: bool) -> str | None:
        """Name of the first goal that must be heeded and gets worse."""
        layout = self.layout
        heeded, later = self._others[goal.name]
        for other in heeded:
            if not other.accepts(layout, trial):
                return other.name
        if considerate:
            for other in later:
                if not other.accepts(layout, trial):
                    return other.name
        return None

    # exchanges -------------------------------------------------------------------------------------------------

    def exchange(self, goal: BandGoal, replica: int, partner: int) -> bool:
        """Move two replicas to each other's broker for a soft goal: it helps where brokers may have neither more nor
        fewer replicas. Hard goals agree to each of the two by itself, because one is carried out first."""
        layout = self.layout
        source, target = layout.holder[replica], layout.holder[partner]
        first, second = layout.partition_of[replica], layout.partition_of[partner]
        if target in layout.holders(first) or source in layout.holders(second):
            return False
        given, taken = layout.copy_amounts(replica), layout.copy_amounts(partner)
        to = self._trial(MoveKind.REPLICA, replica, target, given)
        fro = self._trial(MoveKind.REPLICA, partner, source, taken)
        net = self._trial(MoveKind.REPLICA, replica, target, _difference(given, taken))
        self.count += 1
        if not goal.improves(layout, net):
            self.rejected(goal, NOT_BETTER)
            return False
        for other in self._others[goal.name][0]:
            trials = (to,) if other.is_hard else (net,) if isinstance(other, BandGoal) else (to, fro)
            if not all(other.accepts(layout, trial) for trial in trials):
                self.rejected(goal, other.name)
                return False
        if self._copies + 2 > self._limits.moves_max or not self._fits(goal, MoveKind.REPLICA, given[1] + taken[1]):
            self.cut_short = True
            return False
        self._take(goal, to)
        for other in self._others[goal.name][0]:
            if other.is_hard and not other.accepts(layout, fro):
                self.rejected(goal, other.name)
                self._undo_last()
                return False
        self._take(goal, fro)
        return True

    # taking ----------------------------------------------------------------------------------------------------

    def _fits(self, goal: Goal, kind: MoveKind, size: float) -> bool:
        """Whether the plan may copy so much more. One replica may be copied however large it is."""
        limits = self._limits
        if kind is MoveKind.LEADER or limits.bytes_max is None or not self._copies:
            return True
        if self._bytes + size <= limits.bytes_max:
            return True
        self.cut_short = True
        self.rejected(goal, AGAINST_LIMITS)
        return False

    def _take(self, goal: Goal, trial: Trial) -> None:
        layout, brokers = self.layout, self.layout.model.brokers
        values = goal.values(layout, trial)
        topic_id, index = layout.model.key(trial.partition)
        move = Move(
            topic_id=topic_id,
            partition=index,
            kind=trial.kind,
            source=brokers[trial.source].broker_id,
            target=brokers[trial.target].broker_id,
            goal=goal.name,
            before=values.before,
            after=values.after,
            target_before=values.target_before,
            target_after=values.target_after,
            agreed=self._agreed[goal.name],
            bytes_to_copy=int(trial.amounts[1]),
        )
        if trial.kind is MoveKind.LEADER:
            layout.move_leader(trial.partition, trial.target, trial.amounts)
            self._leader_moves += 1
        else:
            layout.move_replica(trial.replica, trial.target, trial.amounts)
            self._copies += 1
            self._bytes += move.bytes_to_copy
        layout.moved[trial.partition] = 1
        self.done.append((trial, move))

    def undo(self, length: int) -> Work[None]:
        """Take back all moves but the first `length`."""
        while len(self.done) > length:
            self._undo_last()
            if len(self.done) % UNDONE_AT_ONCE == 0:
                yield UNDONE_AT_ONCE * UNDO_COST

    def _undo_last(self) -> None:
        layout = self.layout
        trial, move = self.done.pop()
        if trial.kind is MoveKind.LEADER:
            layout.move_leader(trial.partition, trial.source, trial.amounts)
            self._leader_moves -= 1
        else:
            layout.move_replica(trial.replica, trial.source, trial.amounts)
            self._copies -= 1
            self._bytes -= move.bytes_to_copy
        layout.moved[trial.partition] = 0


def _difference(first: Amounts, second: Amounts) -> Amounts:
    return (
        first[0] - second[0],
        first[1] - second[1],
        first[2] - second[2],
        first[3] - second[3],
        first[4] - second[4],
        first[5] - second[5],
        first[6] - second[6],
    )
