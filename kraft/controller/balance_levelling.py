"""Levelling: the next step of an operation that balances or fills brokers, and when one begins by itself. No I/O."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import msgspec
from msgspec import Struct

from common.pacing import Work
from kraft.balancer.goals.in_order import goals
from kraft.balancer.goals.load import LoadGoal
from kraft.balancer.goals.replicas import ReplicasGoal
from kraft.balancer.layout import LOAD, layout_of
from kraft.balancer.model import ClusterModel
from kraft.balancer.move import Limits, Move, Plan
from kraft.balancer.planner import planning, planning_layout
from kraft.balancer.triggers import EMPTY_BROKER, LOOKS, Reason, broken_now
from kraft.batches import MetadataRecord
from kraft.controller.balance_model import modelling
from kraft.controller.balance_moves import MOVE_COST, MoveBatch, PlannedMove, target_of
from kraft.controller.balance_status import Look
from kraft.controller.balance_steps import BalanceStep, in_state, room_for_moves, settled
from kraft.controller.policy import ControllerPolicy
from kraft.controller.reported_usage import ReportedUsage
from kraft.fleet_records import BalanceOperationRecord, OperationKind, OperationState
from kraft.image.metadata import MetadataImage
from kraft.image.partition_index import PartitionKey

MINUTE_MS = 60_000
REASONS_MAX = 5  # that an operation's reason names
REFILL_MS = 30 * MINUTE_MS
FILLED = 0.9
"""Of the fair share of load: what a broker has at least when its filling is complete."""


class Inputs(Struct, frozen=True):
    """What a step needs besides the image. `now_s`: monotonic, of the reports; `now_ms`: wall time, of the moves."""

    policy: ControllerPolicy
    usage: ReportedUsage
    now_s: float
    now_ms: int


def levelling(image: MetadataImage, inputs: Inputs, operation: BalanceOperationRecord) -> Work[BalanceStep]:
    """The next step of BALANCE or ADD: plan for the image of now, begin as much as the budget allows."""
    done = settled(image, inputs.policy, operation, inputs.now_ms)
    if done is not None:
        return done
    obstacle = obstacle_to(image, inputs)
    if obstacle:
        return BalanceStep(waits=obstacle)
    room = room_for_moves(image, inputs.policy, operation)
    if not room:
        return BalanceStep(waits="moves that run")
    toward = frozenset(broker for broker in operation.brokers if broker in image.brokers)
    if operation.kind is OperationKind.ADD and not toward:  # they were removed
        return BalanceStep([in_state(operation, OperationState.DONE, inputs.now_ms)], state=OperationState.DONE)
    # An operation that has begun goes on to its end, however little a step brings.
    limits = limits_of(image, inputs, room, toward=toward, improvement=0.0)
    model = yield from modelling(image, inputs.policy, inputs.usage, inputs.now_s)
    plan = yield from planning(model, limits)
    if not plan.moves:
        step = _without_moves(image, inputs, operation, plan)
        if step.state is OperationState.DONE and toward:
            return (yield from _filled(step, operation, plan, model, toward))
        return step
    batch = MoveBatch(image, inputs.policy, operation, inputs.now_ms)
    for move in plan.moves:
        planned = planned_move(image, move, operation.reason)
        if planned is not None:
            batch.begin(planned)
            yield MOVE_COST
    records = batch.records()
    return BalanceStep(records, batch.problem, begun=tuple(batch.moves), waits="" if records else batch.problem)


def _without_moves(image: MetadataImage, inputs: Inputs, operation: BalanceOperationRecord, plan: Plan) -> BalanceStep:
    if image.balance.running:
        return BalanceStep(waits="moves that run")
    if plan.cut_short:
        return BalanceStep(waits="leaderships move again in less than a minute")
    return BalanceStep([in_state(operation, OperationState.DONE, inputs.now_ms)], state=OperationState.DONE)


def _filled(
    step: BalanceStep, operation: BalanceOperationRecord, plan: Plan, model: ClusterModel, toward: frozenset[int]
) -> Work[BalanceStep]:
    """The last step of ADD, which says for which broker no more was found although it has too little."""
    shares = yield from load_shares(model, toward)
    little = [
        f"broker {broker} has {share:.2f} of its fair share of load"
        for broker, share in shares.items()
        if share < FILLED
    ]
    why = ", ".join(_why_not(plan, LoadGoal.name))
    if not little:
        why = ", ".join(sorted(_why_not(plan, ReplicasGoal.name) & {goal.name for goal in goals() if goal.is_hard}))
        short_of = next((one.broken for one in plan.goals if one.goal == ReplicasGoal.name), ())
        little = [f"broker {broker} has few replicas" for broker in sorted(toward.intersection(short_of)) if why]
    if not little:
        return step
    short = ", ".join(little) + (f" ({why})" if why else "")
    records: list[MetadataRecord] = [
        msgspec.structs.replace(one, reason=f"{operation.reason}; {short}")
        for one in step.records
        if isinstance(one, BalanceOperationRecord)
    ]
    return replace(step, records=records, shortfall=short)


def _why_not(plan: Plan, goal: str) -> Set[str]:
    """What kept a goal from more moves."""
    return next((one.why_not.keys() for one in plan.goals if one.goal == goal), frozenset[str]())


def load_shares(model: ClusterModel, brokers: frozenset[int]) -> Work[dict[int, float]]:
    """The load of these brokers in relation to what is fair, where that is worth a move.

    It is what their replicas cost at the speed of the other brokers: what they report is a mean over a minute, and
    shows what has just come only later.
    """
    layout = yield from layout_of(model, brokers)
    fair, slots = layout.fair(LOAD), sorted(model.slots[broker] for broker in brokers if broker in model.slots)
    return {
        model.brokers[slot].broker_id: layout.value(LOAD, slot) / fair[slot]
        for slot in slots
        if fair[slot] > LoadGoal.floor
    }


def limits_of(
    image: MetadataImage, inputs: Inputs, room: int, *, toward: frozenset[int] = frozenset(), improvement: float = 0.05
) -> Limits:
    """The bounds of a plan: the budget that is left, from the moves in the image."""
    settings, now_ms = inputs.policy.balance, inputs.now_ms
    lately = sum(move.is_of_leader and 0 <= now_ms - move.begun_ms < MINUTE_MS for move in image.balance.moves.values())
    resting: dict[PartitionKey, None] = {
        (move.topic_id, move.partition): None
        for move in image.balance.moves.values()
        if 0 <= now_ms - move.begun_ms < settings.rest_ms
    }
    return Limits(
        moves_max=room,
        leader_moves_max=max(settings.leader_moves_max - lately, 0),
        resting=frozenset(resting),
        toward=toward,
        improvement=improvement,
    )


def obstacle_to(image: MetadataImage, inputs: Inputs) -> str:
    """Why nothing is levelled now; "" if nothing stands in the way."""
    if not inputs.usage.is_known(image, inputs.now_s):
        return "brokers have not reported what they do yet"
    for broker in image.brokers.values():
        if not broker.is_active:
            return f"broker {broker.broker_id} is down or stops"
        if not broker.is_healthy:
            return f"broker {broker.broker_id} is put aside ({broker.health.state.name.lower()})"
    running = image.balance.running
    for topic_id, index in image.topics.index.short:
        if (topic_id, index) not in running:
            name = image.topics.by_id[topic_id].name
            return f"{name}-{index} has replicas that are not in sync, or another request moves it"
    return ""


def _unheard(image: MetadataImage, inputs: Inputs) -> str:
    """A live broker with replicas whose rates are unknown; "" if there is none. Nothing begins by itself meanwhile."""
    for broker in image.unfenced_brokers():
        known = inputs.usage.rates_of(broker.broker_id, inputs.now_s) is not None
        if not known and image.topics.index.with_replica(broker.broker_id):
            return f"broker {broker.broker_id} does not report what it does"
    return ""


def planned_move(image: MetadataImage, move: Move, reason: str) -> PlannedMove | None:
    """None if the partition is not as the plan saw it."""
    topic = image.topics.get_by_id(move.topic_id)
    partition = image.partition(move.topic_id, move.partition)
    if topic is None or partition is None:
        return None
    after = move.applied_to(target_of(partition))
    if after is None:
        return None
    return PlannedMove(
        topic, partition, after, move.goal, reason, move.before, move.after, move.target_before, move.target_after,
        move.agreed, move.bytes_to_copy,
    )  # fmt: skip


# what begins by itself -------------------------------------------------------------------------------------


def looking(image: MetadataImage, inputs: Inputs, before: Look) -> Work[Look]:
    """Look at the loads. `before`: the last look of this leadership."""
    obstacle = obstacle_to(image, inputs) or _unheard(image, inputs)
    if obstacle:
        return Look(obstacle=obstacle)
    model = yield from modelling(image, inputs.policy, inputs.usage, inputs.now_s)
    layout = yield from layout_of(model)
    at_once, lasting = yield from broken_now(layout)
    look = judged(at_once, lasting, before)
    if look.brokers and was_filled(image, look.brokers, inputs.now_ms):
        look = judged([reason for reason in at_once if reason[0] != EMPTY_BROKER], lasting, before)
    if not look.reason or look.brokers:
        return look
    plan = yield from planning_layout(layout, limits_of(image, inputs, inputs.policy.balance.moves_max))
    return msgspec.structs.replace(look, moves=len(plan.moves), reason=look.reason if plan.moves else "")


def judged(at_once: Sequence[Reason], lasting: Sequence[Reason], before: Look) -> Look:
    """What one more look makes of the reasons. An empty broker is filled before anything is levelled."""
    looks = {reason: before.looks.get(reason, 0) + 1 for reason in lasting}
    empty = tuple(sorted(broker for name, broker in at_once if name == EMPTY_BROKER))
    if empty:
        return Look(f"{EMPTY_BROKER} {', '.join(map(str, empty))}", empty, looks)
    due = [*at_once, *(reason for reason, count in looks.items() if count >= LOOKS)]
    return Look(", ".join(f"{name} of broker {broker}" for name, broker in due[:REASONS_MAX]), (), looks)


def was_filled(image: MetadataImage, brokers: tuple[int, ...], now_ms: int) -> bool:
    """Whether an operation that filled these brokers ended a while ago, and brought nothing."""
    return any(
        one.kind is OperationKind.ADD and one.brokers == brokers and 0 <= now_ms - one.ended_ms < REFILL_MS
        for one in image.balance.operations.values()
    )


def beginning(image: MetadataImage, look: Look, now_ms: int) -> BalanceOperationRecord | None:
    """The operation that begins by itself after `look`; None while another has not ended."""
    if not look.reason or any(True for _ in image.balance.current()):
        return None
    kind = OperationKind.ADD if look.brokers else OperationKind.BALANCE
    return BalanceOperationRecord(
        image.balance.next_operation, kind, look.brokers, OperationState.RUNNING, look.reason, now_ms
    )
