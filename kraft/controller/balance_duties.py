"""The active controller's work on balance: the steps of operations, which it begins itself or is asked for.

Everything that a step needs is in the image or in the brokers' reports, so any controller goes on with an operation. A
controller that was deposed cannot commit, so its moves do not happen.
"""

from __future__ import annotations

import logging
from collections import Counter

from common.pacing import Work
from common.ports import Clock
from kraft.controller.balance_status import BalanceStatus
from kraft.controller.balance_steps import BalanceStep, draining, settled, undoing
from kraft.controller.policy import ControllerPolicy
from kraft.controller.stepper import Act
from kraft.fleet_records import BalanceMoveRecord, BalanceOperationRecord, MoveOutcome, OperationState
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage

log = logging.getLogger(__name__)

LOOK_S = 1.0  # interval of steps of an operation when nothing reports a change


class BalanceDuties(Act[BalanceStep]):
    """Its subjects are the operations that run or are being cancelled, by id."""

    name, pause_s = "balance", 0.05

    def __init__(self, policy: ControllerPolicy, clock: Clock, status: BalanceStatus) -> None:
        super().__init__()
        self._policy = policy
        self._clock = clock
        self._status = status
        self.begun: Counter[str] = Counter()
        """Moves that this controller began, by goal."""
        self.ended: Counter[str] = Counter({outcome.name.lower(): 0 for outcome in MoveOutcome if outcome})
        """Moves that ended while this controller was active, by outcome."""
        self.bytes_to_copy = 0

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if not delta.balance.is_empty:
            self.changed.set()
        elif delta.partitions_changed or delta.topics_deleted:
            running = image.balance.running
            if any(key in delta.partitions_changed or key[0] in delta.topics_deleted for key in running):
                self.changed.set()

    def became_active(self, image: MetadataImage) -> None:
        self._status.restart()

    def due(self, image: MetadataImage) -> list[str]:
        return [str(one.id) for one in image.balance.current() if _steps(image, one)]

    def step(self, image: MetadataImage, subject: str) -> Work[BalanceStep]:
        operation = image.balance.operations.get(int(subject))
        if operation is None or not _steps(image, operation):
            return BalanceStep()  # it has ended meanwhile
        now_ms = self._clock.wall_ms()
        if operation.state is OperationState.CANCELLING:
            return undoing(image, self._policy, operation, now_ms)
        if operation.state is OperationState.PAUSED:
            return settled(image, self._policy, operation, now_ms) or BalanceStep(waits="it is paused")
        return (yield from draining(image, self._policy, operation, now_ms))

    def committed(self, subject: str, step: BalanceStep) -> None:
        if subject:
            self._status.waits_for(int(subject), step.waits)
        for move in step.begun:
            self.begun[move.goal] += 1
            self.bytes_to_copy += move.bytes_to_copy
            _log_move("a move begins", move)
        for move in step.ended:
            self.ended[move.outcome.name.lower()] += 1
            _log_move("a move has ended", move)
        if step.state is not None:
            log.info("the balancer's operation changes", extra={"operation": subject, "state": step.state.name.lower()})

    def look_s(self, image: MetadataImage) -> float | None:
        return LOOK_S if any(True for _ in image.balance.current()) else None


def _steps(image: MetadataImage, operation: BalanceOperationRecord) -> bool:
    """Whether the operation may need a step: a paused one only while its last moves run."""
    if operation.state is OperationState.PAUSED:
        return bool(image.balance.running_moves(operation.id))
    return not operation.state.has_ended


def _log_move(message: str, move: BalanceMoveRecord) -> None:
    extra = {
        "operation": move.operation,
        "partition": f"{move.topic}-{move.partition}",
        "replicas": f"{list(move.before)} -> {list(move.after)}",
        "goal": move.goal,
        "reason": move.reason,
        "bytes": move.bytes_to_copy,
    }
    if move.outcome is not MoveOutcome.RUNNING:
        extra["outcome"] = move.outcome.name.lower()
    log.info(message, extra=extra)
