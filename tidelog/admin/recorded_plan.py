"""What the balancer would do with a recorded cluster, in the rows of `BalanceAdmin.plan`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from common.pacing import at_once
from kraft.balancer.move import GoalResult, Limits
from kraft.balancer.recorded import PlannedChange, UnusableRecord, planned, read

__all__ = ["UnusableRecord", "plan_of"]


def plan_of(lines: Iterable[bytes], toward: Sequence[int], most: int) -> dict[str, Any]:
    """Raises UnusableRecord."""
    cluster = read(lines)
    if unknown := [broker for broker in toward if broker not in cluster.brokers]:
        raise UnusableRecord(f"it has no broker {unknown[0]}")
    limits = Limits(moves_max=most, leader_moves_max=most, toward=frozenset(toward), improvement=0.0)
    found, changes = at_once(planned(cluster, limits))
    return {
        "known": cluster.head.known,
        "cut_short": found.cut_short,
        "cells": [],
        "goals": [_goal(one) for one in found.goals],
        "moves": [_move(change) for change in changes],
    }


def _goal(one: GoalResult) -> dict[str, Any]:
    return {
        "goal": one.goal,
        "before": one.before,
        "after": one.after,
        "bound": one.bound,
        "moves": one.moves,
        "broken": list(one.broken),
        "why_not": dict(one.why_not),
    }


def _move(change: PlannedChange) -> dict[str, Any]:
    move = change.move
    return {
        "topic": change.topic,
        "partition": move.partition,
        "replicas_before": list(change.before),
        "replicas_after": list(change.after),
        "goal": move.goal,
        "source_before": move.before,
        "source_after": move.after,
        "target_before": move.target_before,
        "target_after": move.target_after,
        "agreed": list(move.agreed),
        "bytes_to_copy": move.bytes_to_copy,
    }
