"""What operators ask of the balancer: begin, pause, resume, cancel, and tell what it does and did. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, TypeVar

import msgspec

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.balancer.evacuation import NoRoom
from kraft.balancer.planner import planning
from kraft.batches import MetadataRecord
from kraft.controller.balance_cells import looking_at_cells, sentences
from kraft.controller.balance_levelling import Inputs, limits_of, planned_move
from kraft.controller.balance_model import modelling
from kraft.controller.balance_moves import PlannedMove, target_of
from kraft.controller.balance_status import BalanceStatus, CellsLook
from kraft.controller.balance_steps import checking_drain, cordons, in_state
from kraft.controller.broker_loads import BrokerLoads
from kraft.controller.features import check_fleet_level
from kraft.controller.policy import ControllerPolicy
from kraft.fleet_records import BalanceMoveRecord, BalanceOperationRecord, OperationKind, OperationState
from kraft.image.metadata import MetadataImage
from wire.messages import (
    AlterBalanceRequest,
    AlterBalanceResponse,
    DescribeBalanceRequest,
    DescribeBalanceResponse,
    ListBalanceMovesRequest,
    ListBalanceMovesResponse,
    PlanBalanceRequest,
    PlanBalanceResponse,
    schema_uuid,
)

BROKERS_MAX = 100
CURRENT_MAX = 20
MOVES_SHOWN_MAX = 1_000
ROWS_AT_ONCE, ROW_COST = 20, 10  # rows of moves made in one go, and units of `common.pacing` of each
ALL = -1
PAUSED_BEFORE = "paused by an operator"
"""The reason of an operation that is there to be paused."""

T = TypeVar("T")
R = TypeVar("R")

_Operation = ListBalanceMovesResponse.ListedOperation
_Move = ListBalanceMovesResponse.ListedMove
_Current = DescribeBalanceResponse.CurrentOperation
_Running = DescribeBalanceResponse.RunningMove


class BalanceAct(IntEnum):
    """What AlterBalance (10024) asks for. RUN: balance now. PAUSE, RESUME and CANCEL concern one operation, or all."""

    RUN = 1
    PAUSE = 2
    RESUME = 3
    CANCEL = 4
    ADD = 5
    DRAIN = 6


_KINDS = {
    BalanceAct.RUN: OperationKind.BALANCE,
    BalanceAct.ADD: OperationKind.ADD,
    BalanceAct.DRAIN: OperationKind.DRAIN,
}


def alter_balance(
    image: MetadataImage, request: AlterBalanceRequest, now_ms: int
) -> Work[Decision[MetadataRecord, AlterBalanceResponse]]:
    """AlterBalance (10024)."""
    try:
        check_fleet_level(image)
        act = _act(request.act)
        if act in _KINDS:
            records = yield from _beginning(image, request, _KINDS[act], now_ms)
        else:
            records = _changed(image, request, act, now_ms)
    except NoRoom as error:
        return Decision(_refused(ErrorCode.POLICY_VIOLATION, f"The broker cannot be drained: {error}."))
    except ProtocolError as error:
        return Decision(_refused(error.code, error.message))
    ids = [record.id for record in records if isinstance(record, BalanceOperationRecord)]
    return Decision(AlterBalanceResponse(error_code=0, error_message=None, operations=ids), records)


def _refused(code: ErrorCode, message: str | None) -> AlterBalanceResponse:
    return AlterBalanceResponse(error_code=int(code), error_message=message, operations=[])


def _act(number: int) -> BalanceAct:
    try:
        return BalanceAct(number)
    except ValueError:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"There is no act {number}.") from None


def _require_all(image: MetadataImage, brokers: Iterable[int]) -> None:
    for broker in brokers:
        if broker not in image.brokers:
            raise ProtocolError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no broker {broker}.")


def _beginning(
    image: MetadataImage, request: AlterBalanceRequest, kind: OperationKind, now_ms: int
) -> Work[list[MetadataRecord]]:
    brokers = tuple(dict.fromkeys(request.brokers))
    if bool(brokers) is (kind is OperationKind.BALANCE):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Brokers are given to fill or to empty them, and only then.")
    if len(brokers) > BROKERS_MAX or request.moves_max < 0 or request.bytes_per_second < -1:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"At most {BROKERS_MAX} brokers, and no negative bounds.")
    _require_all(image, brokers)
    current = list(image.balance.current())
    for one in current:
        if (one.kind, one.brokers) == (kind, brokers) and one.state is not OperationState.CANCELLING:
            return [in_state(one, OperationState.RUNNING, now_ms)]  # the same again: go on
        if set(one.brokers) & set(brokers):
            raise ProtocolError(
                ErrorCode.CONCURRENT_TRANSACTIONS, f"Operation {one.id} concerns the same brokers; cancel it first."
            )
    if len(current) >= CURRENT_MAX:
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"{CURRENT_MAX} operations have not ended yet.")
    operation = BalanceOperationRecord(
        image.balance.next_operation,
        kind,
        brokers,
        OperationState.RUNNING,
        "asked for by an operator",
        now_ms,
        moves_max=request.moves_max,
        bytes_per_second=request.bytes_per_second,
    )
    if kind is OperationKind.DRAIN:
        yield from checking_drain(image, brokers)
        return [operation, *cordons(brokers, image, cordoned=True)]
    if kind is OperationKind.ADD:
        return [operation, *cordons(brokers, image, cordoned=False)]
    return [operation]


def _changed(image: MetadataImage, request: AlterBalanceRequest, act: BalanceAct, now_ms: int) -> list[MetadataRecord]:
    if request.operation == ALL:
        found = list(image.balance.current())
    else:
        one = image.balance.operations.get(request.operation)
        if one is None:
            raise ProtocolError(ErrorCode.RESOURCE_NOT_FOUND, f"There is no operation {request.operation}.")
        if one.state.has_ended:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Operation {one.id} has ended ({one.state.name.lower()}).")
        found = [one]
    if act is BalanceAct.CANCEL:
        return [in_state(one, OperationState.CANCELLING, now_ms) for one in found]
    if act is BalanceAct.PAUSE and not found:
        # With this one, nothing begins by itself until it is resumed or cancelled.
        return [
            BalanceOperationRecord(
                image.balance.next_operation, OperationKind.BALANCE, (), OperationState.PAUSED, PAUSED_BEFORE,
                now_ms,
            )
        ]  # fmt: skip
    old, new = OperationState.RUNNING, OperationState.PAUSED
    if act is BalanceAct.RESUME:
        old, new = new, old
    changed = [in_state(one, new, now_ms) for one in found if one.state is old]
    return [
        msgspec.structs.replace(one, reason="resumed by an operator") if one.reason == PAUSED_BEFORE else one
        for one in changed
    ]


def list_balance_moves(
    image: MetadataImage, request: ListBalanceMovesRequest
) -> Work[Decision[MetadataRecord, ListBalanceMovesResponse]]:
    """ListBalanceMoves (10025): the operations and moves that the image keeps, the newest last."""
    most = min(max(request.limit, 0), MOVES_SHOWN_MAX)
    held = image.balance
    moves = [move for move in held.moves.values() if _asked(move, request)][-most:] if most else []
    yield len(held.moves) // 4
    rows = yield from in_pieces(moves, lambda move: _Move(**move_fields(move)))
    operations = [one for one in held.operations.values() if request.operation in (ALL, one.id)]
    reply = ListBalanceMovesResponse(
        error_code=0,
        error_message=None,
        operations=[_Operation(**operation_fields(image, one)) for one in operations],
        moves=rows,
    )
    return Decision(reply)


def _asked(move: BalanceMoveRecord, request: ListBalanceMovesRequest) -> bool:
    return (
        request.operation in (ALL, move.operation)
        and (request.topic is None or move.topic == request.topic)
        and request.partition_index in (ALL, move.partition)
    )


def describe_balance(
    image: MetadataImage,
    request: DescribeBalanceRequest,
    policy: ControllerPolicy,
    status: BalanceStatus,
    now_s: float,
) -> Work[Decision[MetadataRecord, DescribeBalanceResponse]]:
    """DescribeBalance (10022), from the active controller: what runs now, and what it waits for."""
    held = image.balance
    running = [held.moves[number] for number in held.running.values()] if request.include_moves else []
    rows = yield from in_pieces(running, lambda move: _Running(**move_fields(move)))
    current = list(held.current())
    look = status.look
    waits = [look.obstacle] if look.obstacle and not current else []
    waits += [f"operation {one.id}: {reason}" for one in current if (reason := status.reason(one.id)) is not None]
    reply = DescribeBalanceResponse(
        error_code=0,
        error_message=None,
        enabled=policy.balance.enable,
        dry_run=policy.balance.dry_run,
        waits="; ".join(waits) or None,
        next_look_ms=max(int((status.next_look_s - now_s) * 1000), 0) if policy.balance.enable else -1,
        uneven=[
            DescribeBalanceResponse.UnevenGoal(goal=goal, broker_id=broker, looks=count)
            for (goal, broker), count in look.looks.items()
        ],
        cells=sentences(image, status.cells),
        operations=[_Current(**operation_fields(image, one)) for one in current],
        running=rows,
    )
    return Decision(reply)


def plan_balance(
    image: MetadataImage,
    request: PlanBalanceRequest,
    inputs: Inputs,
    loads: BrokerLoads,
    rng: random.Random,
) -> Work[Decision[MetadataRecord, PlanBalanceResponse]]:
    """PlanBalance (10023): what an operation would move, whatever stands in its way now."""
    try:
        _require_all(image, request.toward)
    except ProtocolError as error:
        return Decision(PlanBalanceResponse(error_code=int(error.code), error_message=error.message))
    limits = limits_of(image, inputs, min(max(request.moves_max, 0), MOVES_SHOWN_MAX), toward=frozenset(request.toward))
    limits = msgspec.structs.replace(limits, leader_moves_max=limits.moves_max, improvement=0.0)
    model = yield from modelling(image, inputs.policy, inputs.usage, inputs.now_s)
    plan = yield from planning(model, limits)
    found = [one for move in plan.moves if (one := planned_move(image, move, "")) is not None]
    moves = yield from in_pieces(found, _planned)
    cells = yield from looking_at_cells(image, inputs, loads, CellsLook(), rng)
    goal = PlanBalanceResponse.PlannedGoal
    reply = PlanBalanceResponse(
        error_code=0,
        error_message=None,
        is_known=inputs.usage.is_known(image, inputs.now_s),
        cut_short=plan.cut_short,
        cells=sentences(image, cells),
        goals=[
            goal(
                goal=one.goal,
                before=one.before,
                after=one.after,
                bound=one.bound,
                moves=one.moves,
                broken=list(one.broken),
                why_not=[goal.PlanObstacle(reason=reason, count=count) for reason, count in one.why_not.items()],
            )
            for one in plan.goals
        ],
        moves=moves,
    )
    return Decision(reply)


def _planned(move: PlannedMove) -> PlanBalanceResponse.PlannedMove:
    return PlanBalanceResponse.PlannedMove(
        topic=move.topic.name,
        topic_id=schema_uuid(move.topic.topic_id),
        partition_index=move.partition.partition,
        replicas_before=list(target_of(move.partition)),
        replicas_after=list(move.after),
        goal=move.goal,
        reason=move.reason,
        source_before=move.source_before,
        source_after=move.source_after,
        target_before=move.target_before,
        target_after=move.target_after,
        agreed=list(move.agreed),
        bytes_to_copy=move.bytes_to_copy,
    )


def in_pieces(items: Sequence[T], row: Callable[[T], R]) -> Work[list[R]]:
    """The rows of a response, made a few at a time."""
    rows = []
    for number, item in enumerate(items, 1):
        rows.append(row(item))
        if number % ROWS_AT_ONCE == 0:
            yield ROWS_AT_ONCE * ROW_COST
    return rows


def operation_fields(image: MetadataImage, operation: BalanceOperationRecord) -> dict[str, Any]:
    """The fields of an operation in responses."""
    left = -1
    if operation.kind is OperationKind.DRAIN and not operation.state.has_ended:
        left = sum(len(image.topics.index.with_replica(broker)) for broker in operation.brokers)
    return {
        "id": operation.id,
        "kind": operation.kind.name.lower(),
        "brokers": list(operation.brokers),
        "state": operation.state.name.lower(),
        "reason": operation.reason,
        "requested_by": operation.actor,
        "begun_ms": operation.begun_ms,
        "ended_ms": operation.ended_ms,
        "moves_max": operation.moves_max,
        "bytes_per_second": operation.bytes_per_second,
        "moves_begun": operation.moves_begun,
        "moves_done": operation.moves_done,
        "moves_running": len(image.balance.running_moves(operation.id)),
        "bytes_to_copy": operation.bytes_to_copy,
        "replicas_left": left,
    }


def move_fields(move: BalanceMoveRecord) -> dict[str, Any]:
    """The fields of a move in responses."""
    return {
        "number": move.number,
        "operation": move.operation,
        "topic": move.topic,
        "topic_id": schema_uuid(move.topic_id),
        "partition_index": move.partition,
        "replicas_before": list(move.before),
        "replicas_after": list(move.after),
        "goal": move.goal,
        "reason": move.reason,
        "source_before": move.source_before,
        "source_after": move.source_after,
        "target_before": move.target_before,
        "target_after": move.target_after,
        "agreed": list(move.agreed),
        "bytes_to_copy": move.bytes_to_copy,
        "begun_ms": move.begun_ms,
        "ended_ms": move.ended_ms,
        "outcome": move.outcome.name.lower(),
    }
