"""Small clusters for tests of the balancer, and what a plan makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.pacing import at_once
from kraft.balancer.goals.in_order import goals
from kraft.balancer.layout import Layout, layout_of
from kraft.balancer.model import ClusterModel, ModelBroker, ModelPartition, Standing, model_of
from kraft.balancer.move import Limits, Move, MoveKind, Plan
from kraft.balancer.planner import plan

MB = 1e6
GB = 10**9


def broker(broker_id: int, rack: str | None = None, cell: str = "default", **fields: object) -> ModelBroker:
    return msgspec.structs.replace(ModelBroker(broker_id, cell, rack), **fields)


def partition(
    number: int,
    replicas: Sequence[int],
    rate: float = 0.0,
    *,
    topic: str = "t",
    size: float = 0.0,
    out_rate: float | None = None,
    leader: int | None = None,
    in_sync: Sequence[int] | None = None,
    cell: str | None = None,
    stays: bool = False,
) -> ModelPartition:
    return ModelPartition(
        topic.encode().ljust(16, b"-"),
        number,
        tuple(replicas),
        replicas[0] if leader is None else leader,
        tuple(replicas if in_sync is None else in_sync),
        rate,
        rate if out_rate is None else out_rate,
        (size,) * len(replicas),
        cell,
        stays,
    )


def moved(partitions: Sequence[ModelPartition], moves: Sequence[Move]) -> list[ModelPartition]:
    """The partitions after all moves are carried out."""
    by_key = {(one.topic_id, one.partition): one for one in partitions}
    for move in moves:
        before = by_key[move.key]
        replicas = move.applied_to(before.replicas)
        assert replicas is not None
        leader, in_sync = before.leader, before.in_sync
        if move.kind is MoveKind.LEADER:
            assert leader == move.source
            assert move.target in in_sync
            leader = move.target
        else:
            leader = move.target if leader == move.source else leader
            in_sync = tuple(move.target if one == move.source else one for one in in_sync)
        by_key[move.key] = msgspec.structs.replace(before, replicas=replicas, leader=leader, in_sync=in_sync)
    return list(by_key.values())


def planned(brokers: Sequence[ModelBroker], partitions: Sequence[ModelPartition], limits: Limits | None = None) -> Plan:
    return plan(model_of(brokers, partitions), Limits() if limits is None else limits)


def layout(brokers: Sequence[ModelBroker], partitions: Sequence[ModelPartition]) -> Layout:
    """Without the loads that the brokers reported when the partitions were elsewhere."""
    silent = [msgspec.structs.replace(one, load=None) for one in brokers]
    return at_once(layout_of(model_of(silent, partitions)))


def worst(model: ClusterModel) -> dict[str, float]:
    """The worst value of each goal."""
    found, values = at_once(layout_of(model)), {}
    for goal in goals():
        goal.prepare(found)
        values[goal.name] = at_once(goal.state(found)).worst
    return values


def held(partitions: Sequence[ModelPartition], broker_id: int) -> int:
    return sum(broker_id in one.replicas for one in partitions)


def led(partitions: Sequence[ModelPartition], broker_id: int) -> int:
    return sum(broker_id == one.leader for one in partitions)


LEAVING, APART, CLOSED = Standing.LEAVING, Standing.APART, Standing.CLOSED
