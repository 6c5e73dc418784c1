"""What the balancer plans: moves, each with its reason, and why nothing was planned for the other goals. No I/O.

`kraft.balancer.planner.planning(model, limits)` is a `Work[Plan]` of slices; `plan(model, limits)` is the same at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum

from msgspec import Struct, field

from kraft.image.partition_index import PartitionKey

Replicas = tuple[int, ...]

DRAIN = "drain"
"""Stands for a goal in moves off a broker that is being emptied."""


class MoveKind(IntEnum):
    """LEADER: the leadership goes from `source` to `target`, a replica in the ISR; nothing is copied. REPLICA: the
    replica on `source` is replaced by one on `target`, with its leadership if it leads."""

    LEADER = 0
    REPLICA = 1


class Move(Struct, frozen=True):
    """One change of one partition, and why. Brokers are ids.

    `goal`: name of the goal that asks for it. `before` and `after`: that goal's value of the source, such as its share
    of the disk; `target_before` and `target_after`: of the target. `agreed`: the earlier goals and the hard
    ones, none of which got worse. `bytes_to_copy`: local bytes of the replica, 0 for a leader move.
    """

    topic_id: bytes
    partition: int
    kind: MoveKind
    source: int
    target: int
    goal: str
    before: float
    after: float
    target_before: float
    target_after: float
    agreed: tuple[str, ...] = ()
    bytes_to_copy: int = 0

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition

    def applied_to(self, replicas: Replicas) -> Replicas | None:
        """The replicas after the move, the preferred leader first; None if the move does not fit `replicas`.

        A leader move puts the target first, because otherwise the leadership returned to the preferred leader.
        """
        if self.source not in replicas:
            return None
        if self.kind is MoveKind.LEADER:
            if self.target not in replicas:
                return None
            return self.target, *(replica for replica in replicas if replica != self.target)
        if self.target in replicas:
            return None
        return tuple(self.target if replica == self.source else replica for replica in replicas)


class Limits(Struct, frozen=True):
    """Bounds of one plan.

    `moves_max`: copies, and `leader_moves_max`: leader moves in it. `bytes_max`: to copy; None for any number. A plan
    that reaches one of them is `cut_short`; the next one, computed from the image of then, goes on.
    `resting`: partitions that have moved in the last 30 minutes; they stay. `toward`: if not empty, soft goals only
    move replicas to these brokers (an operation that fills new ones).
    `improvement`: share by which a soft goal's worst broker must come nearer to the mean, otherwise that goal moves
    nothing; 0 for an operation that has begun and shall end.
    """

    moves_max: int = 10_000
    leader_moves_max: int = 10_000
    bytes_max: int | None = None
    resting: Collection[PartitionKey] = frozenset()
    toward: frozenset[int] = frozenset()
    improvement: float = 0.05


class GoalResult(Struct, frozen=True):
    """What a plan does for one goal.

    `before` and `after`: the worst value, such as the largest share of a disk, or of a soft goal the worst broker's
    distance from the mean as a factor (1.2: a fifth above or below). `bound`: what it should be at most. `broken`:
    brokers that are still beyond it. `why_not`: for these, how often which goal or condition rejected a candidate.
    """

    goal: str
    before: float
    after: float
    bound: float
    moves: int = 0
    broken: tuple[int, ...] = ()
    why_not: Mapping[str, int] = field(default_factory=dict)


class Plan(Struct, frozen=True):
    """`moves` in the order in which they may begin: each accepts only those before it. `goals`: in order of
    precedence. `cut_short`: a limit ended the plan before it was complete."""

    moves: tuple[Move, ...] = ()
    goals: tuple[GoalResult, ...] = ()
    cut_short: bool = False

    @property
    def bytes_to_copy(self) -> int:
        return sum(move.bytes_to_copy for move in self.moves)
