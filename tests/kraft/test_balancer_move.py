"""A planned move applied to the replicas that a partition has by then."""

from __future__ import annotations

import pytest

from kraft.balancer.move import Move, MoveKind, Plan


def _move(kind: MoveKind, source: int, target: int, size: int = 0) -> Move:
    return Move(b"t" * 16, 3, kind, source, target, "load", 0.9, 0.7, 0.2, 0.4, bytes_to_copy=size)


@pytest.mark.parametrize(
    ("kind", "replicas", "after"),
    [
        (MoveKind.REPLICA, (1, 2, 3), (4, 2, 3)),
        (MoveKind.REPLICA, (3, 2, 1), (3, 2, 4)),
        (MoveKind.REPLICA, (1, 4, 3), None),  # the target holds one by now
        (MoveKind.REPLICA, (2, 3, 5), None),  # the source holds none any more
        (MoveKind.LEADER, (1, 2, 4), (4, 1, 2)),
        (MoveKind.LEADER, (4, 1, 2), (4, 1, 2)),
        (MoveKind.LEADER, (1, 2, 3), None),
    ],
)
def test_a_move_keeps_the_other_replicas_in_their_order(
    kind: MoveKind, replicas: tuple[int, ...], after: tuple[int, ...] | None
) -> None:
    assert _move(kind, 1, 4).applied_to(replicas) == after


def test_a_plan_adds_up_what_it_copies() -> None:
    moves = (_move(MoveKind.REPLICA, 1, 4, 70), _move(MoveKind.LEADER, 1, 4), _move(MoveKind.REPLICA, 2, 4, 5))
    assert Plan(moves).bytes_to_copy == 75
