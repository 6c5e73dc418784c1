"""The next step of an operation of the balancer: which moves begin, end or are undone now. No I/O.

A step is computed from the image of then, so any controller goes on with what another one began. It returns nothing
while it must wait, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from common.pacing import Work
from kraft.balancer.evacuation import Evacuation, NoRoom, PlacedPartition, Room
from kraft.balancer.move import DRAIN
from kraft.batches import MetadataRecord
from kraft.controller.balance_moves import (
    MOVE_COST,
    MoveBatch,
    PlannedMove,
    ended_moves,
    lifted_throttles,
    target_of,
    undone_moves,
)
from kraft.controller.balance_status import CellsLook, Look
from kraft.controller.policy import CORDONED, ControllerPolicy, is_cordoned
from kraft.controller.stepper import Step
from kraft.fleet_records import BalanceMoveRecord, BalanceOperationRecord, OperationKind, OperationState
from kraft.image.cells import brokers_of
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.tenant_usage import home_ids
from kraft.image.topics import TopicImage
from kraft.records import ConfigRecord, ResourceType

LOOKS_PER_YIELD, LOOKS_MAX = 100, 2_000
"""Partitions of a leaving broker that are looked at: between two yields, and in one step."""


@dataclass(frozen=True, slots=True)
class BalanceStep(Step):
    """`begun` and `ended`: records of moves; `waits`: why nothing begins now; `state`: that of the operation after the
    step, if it changes; `look`, `cells`: what a look at brokers, or at cells, found, if the step was one; `looked_to`:
    by leaving broker, where the next step begins to look; `shortfall`: which brokers were filled below their share."""

    begun: tuple[BalanceMoveRecord, ...] = ()
    ended: tuple[BalanceMoveRecord, ...] = ()
    waits: str = ""
    state: OperationState | None = None
    look: Look | None = None
    cells: CellsLook | None = None
    looked_to: Mapping[int, int] = field(default_factory=dict)
    shortfall: str = ""


def in_state(operation: BalanceOperationRecord, state: OperationState, now_ms: int) -> BalanceOperationRecord:
    ended_ms = now_ms if state.has_ended else operation.ended_ms
    return msgspec.structs.replace(operation, state=state, ended_ms=ended_ms)


def room_for_moves(image: MetadataImage, policy: ControllerPolicy, operation: BalanceOperationRecord) -> int:
    """How many copies may begin now: none until half of those that run have ended, so that a plan is worth its cost."""
    most = operation.moves_max or policy.balance.moves_max
    running = len(image.balance.running)
    return most - running if running <= most // 2 else 0


def settled(
    image: MetadataImage, policy: ControllerPolicy, operation: BalanceOperationRecord, now_ms: int
) -> BalanceStep | None:
    """The step in which moves end; None if none has."""
    ended = ended_moves(image, operation, now_ms)
    if not ended:
        return None
    records: list[MetadataRecord] = [*ended, *lifted_throttles(image, policy, ended)]
    return BalanceStep(records, ended=tuple(ended))


def undoing(
    image: MetadataImage, policy: ControllerPolicy, operation: BalanceOperationRecord, now_ms: int
) -> BalanceStep:
    """The next step of an operation that is cancelled."""
    done = settled(image, policy, operation, now_ms)
    if done is not None:
        return done
    records, problem = undone_moves(image, policy, operation, now_ms)
    if records or image.balance.running_moves(operation.id):
        return BalanceStep(records, problem)
    records = [in_state(operation, OperationState.CANCELLED, now_ms)]
    if operation.kind is OperationKind.DRAIN:
        records += cordons(operation.brokers, image, cordoned=False)
    records += lifted_throttles(image, policy, _moves_of(image, operation))
    return BalanceStep(records, state=OperationState.CANCELLED)


def _moves_of(image: MetadataImage, operation: BalanceOperationRecord) -> list[BalanceMoveRecord]:
    return [move for move in image.balance.moves.values() if move.operation == operation.id]


def cordons(brokers: tuple[int, ...], image: MetadataImage, *, cordoned: bool) -> list[MetadataRecord]:
    """Records that keep new replicas away from these brokers, or allow them again."""
    return [
        ConfigRecord(ResourceType.BROKER, str(broker), CORDONED, "true" if cordoned else None)
        for broker in brokers
        if is_cordoned(image, broker) is not cordoned
    ]


# emptying brokers ------------------------------------------------------------------------------------------


def draining(
    image: MetadataImage,
    policy: ControllerPolicy,
    operation: BalanceOperationRecord,
    now_ms: int,
    looked_to: Mapping[int, int] | None = None,
) -> Work[BalanceStep]:
    """The next step of a drain. Brokers may be dead, so it waits for nothing but its own moves.

    `looked_to`: of the step before. A step looks at some of a broker's partitions only, so it begins where that one
    ended: otherwise partitions that find no place would keep it from those behind them.
    """
    done = settled(image, policy, operation, now_ms)
    if done is not None:
        return done
    held = sum(len(image.topics.index.with_replica(broker)) for broker in operation.brokers)
    if not held:
        return BalanceStep([in_state(operation, OperationState.DONE, now_ms)], state=OperationState.DONE)
    room = room_for_moves(image, policy, operation)
    batch = MoveBatch(image, policy, operation, now_ms)
    problem = ""
    ends: dict[int, int] = {}
    for broker in operation.brokers if room else ():
        evacuation: Evacuation | None = None
        begin = (looked_to or {}).get(broker, 0)
        begin = begin if begin < len(image.topics.index.with_replica(broker)) else 0
        ends[broker] = 0
        for number, (topic, partition) in enumerate(_held_by(image, broker)):
            if number % LOOKS_PER_YIELD == 0:
                yield LOOKS_PER_YIELD
            if number < begin:
                continue
            if len(batch.moves) >= room or number >= begin + LOOKS_MAX:
                ends[broker] = number
                break
            if broker not in target_of(partition):
                continue  # it is moving away
            evacuation = evacuation or Evacuation(broker, rooms_of(image), racks_of(image))
            placed = PlacedPartition(topic.name, partition.partition, target_of(partition))
            try:
                (after,) = evacuation.plan([placed], allowed_brokers(image, topic, partition))
            except NoRoom as error:
                problem = f"broker {broker} cannot be emptied: {error}"
                continue
            batch.begin(PlannedMove(topic, partition, after.replicas, DRAIN, f"broker {broker} is emptied", 1.0))
            yield MOVE_COST
    records = batch.records()
    waits = "" if records else "moves that run" if image.balance.running else problem or batch.problem
    return BalanceStep(records, problem or batch.problem, begun=tuple(batch.moves), waits=waits, looked_to=ends)


def checking_drain(image: MetadataImage, brokers: tuple[int, ...]) -> Work[None]:
    """Raises NoRoom unless every replica of these brokers finds another place."""
    rooms = [room for room in rooms_of(image) if room.broker_id not in brokers]
    for broker in brokers:
        evacuation = Evacuation(broker, rooms, racks_of(image))
        for number, (topic, partition) in enumerate(_held_by(image, broker), 1):
            placed = PlacedPartition(topic.name, partition.partition, target_of(partition))
            if broker in placed.replicas:
                evacuation.check([placed], allowed_brokers(image, topic, partition))
            if number % LOOKS_PER_YIELD == 0:
                yield LOOKS_PER_YIELD * 10


def rooms_of(image: MetadataImage) -> list[Room]:
    """Brokers that may take replicas."""
    return [
        Room(broker.broker_id, broker.rack, len(image.topics.index.with_replica(broker.broker_id)))
        for broker in image.brokers.values()
        if broker.may_join and broker.is_healthy and not is_cordoned(image, broker.broker_id)
    ]


def racks_of(image: MetadataImage) -> dict[int, str | None]:
    return {broker.broker_id: broker.rack for broker in image.brokers.values()}


def allowed_brokers(image: MetadataImage, topic: TopicImage, partition: PartitionImage) -> frozenset[int] | None:
    """The only brokers for a partition: of its tenant's cell, or of the cell whose range it is in; None for any."""
    tenant = image.tenants.owner(topic.name)
    if tenant is not None:
        return home_ids(image, tenant)
    held = topic.range_with(partition.partition)
    if held is None:
        return None
    return frozenset(broker.broker_id for broker in brokers_of(held.cell, image.brokers)) or None


def _held_by(image: MetadataImage, broker: int) -> Iterator[tuple[TopicImage, PartitionImage]]:
    for topic_id, index in image.topics.index.with_replica(broker):
        topic = image.topics.by_id[topic_id]
        yield topic, topic.partitions[index]
