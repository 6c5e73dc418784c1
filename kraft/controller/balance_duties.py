"""The active controller's work on balance: the steps of operations, which it begins itself or is asked for.

Everything that a step needs is in the image or in the brokers' reports, so any controller goes on with an operation. A
controller that was deposed cannot commit, so its moves do not happen.
"""

from __future__ import annotations

import logging
from collections import Counter

from common.pacing import Work
from common.ports import Ports
from kraft.controller.balance_cells import beginning_moves, looking_at_cells
from kraft.controller.balance_levelling import Inputs, beginning, levelling, looking
from kraft.controller.balance_status import BalanceStatus, CellsLook, Look
from kraft.controller.balance_steps import BalanceStep, draining, settled, undoing
from kraft.controller.broker_loads import BrokerLoads
from kraft.controller.policy import ControllerPolicy
from kraft.controller.reported_usage import ReportedUsage
from kraft.controller.stepper import Act
from kraft.features import FLEET_LEVEL, TIDELOG_VERSION
from kraft.fleet_records import BalanceMoveRecord, BalanceOperationRecord, MoveOutcome, OperationKind, OperationState
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage

log = logging.getLogger(__name__)

LOOK, CELLS = "look", "cells"
LOOK_S = 1.0  # interval of steps of an operation when nothing reports a change


class BalanceDuties(Act[BalanceStep]):
    """Its subjects are the operations that run or are being cancelled, by id, LOOK for a look at the loads of brokers,
    and CELLS for one at those of cells."""

    name, pause_s = "balance", 0.05

    def __init__(
        self,
        policy: ControllerPolicy,
        ports: Ports,
        status: BalanceStatus,
        usage: ReportedUsage,
        loads: BrokerLoads,
    ) -> None:
        super().__init__()
        clock = ports.clock
        self._policy = policy
        self._random = ports.random
        self._loads = loads
        self._clock = clock
        self._usage = usage
        self.status = status
        self.begun: Counter[str] = Counter()
        """Moves that this controller began, by goal."""
        self.ended: Counter[str] = Counter({outcome.name.lower(): 0 for outcome in MoveOutcome if outcome})
        """Moves that ended while this controller was active, by outcome."""
        self.bytes_to_copy = 0
        self.tenants_moved = 0
        """Tenants whose move off an overloaded cell this controller began."""

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self.status.cells.overloads and delta.access.tenants.changed:
            self._tenants_moved(delta, image)
        if not delta.balance.is_empty or delta.features_changed:
            self.changed.set()  # with the level that a new cluster gets, or an operator raises, looks begin
        elif delta.partitions_changed or delta.topics_deleted:
            running = image.balance.running
            if any(key in delta.partitions_changed or key[0] in delta.topics_deleted for key in running):
                self.changed.set()

    def _tenants_moved(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Those that have just arrived, perhaps since the last look."""
        cells: dict[str, None] = {}
        for tenant_id in delta.access.tenants.changed:
            before, tenant = delta.base.tenants.get(tenant_id), image.tenants.get(tenant_id)
            if before is not None and (tenant is None or tenant.cell != before.cell):
                cells |= dict.fromkeys([before.cell, before.home if tenant is None else tenant.cell])
        self.status.tenants_moved(cells, self._clock.monotonic())

    def became_active(self, image: MetadataImage) -> None:
        self.status.restart(self._next_look_s())

    def due(self, image: MetadataImage) -> list[str]:
        subjects = [str(one.id) for one in image.balance.current() if _steps(image, one)]
        if self._looks(image) and self._clock.monotonic() >= self.status.next_look_s:
            subjects.append(LOOK)
        if self._looks_at_cells(image) and self._clock.monotonic() >= self.status.next_cells_s:
            subjects.append(CELLS)
        return subjects

    def step(self, image: MetadataImage, subject: str) -> Work[BalanceStep]:
        if subject == LOOK:
            return (yield from self._look(image))
        if subject == CELLS:
            return (yield from self._look_at_cells(image))
        operation = image.balance.operations.get(int(subject))
        if operation is None or not _steps(image, operation):
            return BalanceStep()  # it has ended meanwhile
        now_ms = self._clock.wall_ms()
        if operation.state is OperationState.CANCELLING:
            return undoing(image, self._policy, operation, now_ms)
        if operation.state is OperationState.PAUSED:
            return settled(image, self._policy, operation, now_ms) or BalanceStep(waits="it is paused")
        if operation.kind is OperationKind.DRAIN:
            looked_to = self.status.drain_from(operation.id)
            return (yield from draining(image, self._policy, operation, now_ms, looked_to))
        return (yield from levelling(image, self._inputs(), operation))

    def _look(self, image: MetadataImage) -> Work[BalanceStep]:
        if any(True for _ in image.balance.current()):
            return BalanceStep(look=Look())  # an operation levels already, or is paused
        look = yield from looking(image, self._inputs(), self.status.look)
        operation = None if self._policy.balance.dry_run else beginning(image, look, self._clock.wall_ms())
        return BalanceStep([] if operation is None else [operation], look=look)

    def _look_at_cells(self, image: MetadataImage) -> Work[BalanceStep]:
        inputs = self._inputs()
        look = yield from looking_at_cells(image, inputs, self._loads, self.status.cells, self._random)
        if self._policy.balance.dry_run or any(True for _ in image.balance.current()):
            return BalanceStep(cells=look)
        begun = yield from beginning_moves(image, inputs, self._loads, look, self._random)
        return BalanceStep(begun.records, begun.problem, cells=look)

    def _inputs(self) -> Inputs:
        return Inputs(self._policy, self._usage, self._clock.monotonic(), self._clock.wall_ms())

    def _looks(self, image: MetadataImage) -> bool:
        """Whether the balancer acts by itself."""
        return self._policy.balance.enable and image.features.get(TIDELOG_VERSION, 0) >= FLEET_LEVEL

    def _looks_at_cells(self, image: MetadataImage) -> bool:
        return self._looks(image) and self._policy.balance.cells_enable and len(image.tenants) > 0

    def _next_look_s(self) -> float:
        return self._clock.monotonic() + self._policy.balance.interval_ms / 1000

    def committed(self, subject: str, step: BalanceStep) -> None:
        if step.look is not None:
            self.status.looked(step.look, self._next_look_s())
            if step.look.reason:
                message = "the balancer begins" if step.records else "the balancer would begin"
                log.info(message, extra={"reason": step.look.reason, "moves": step.look.moves})
            return
        if step.cells is not None:
            self._looked_at_cells(step.cells, step)
            return
        self.status.waits_for(int(subject), step.waits)
        self.status.drained_to(int(subject), step.looked_to)
        for move in step.begun:
            self.begun[move.goal] += 1
            self.bytes_to_copy += move.bytes_to_copy
            _log_move("a move begins", move)
        for move in step.ended:
            self.ended[move.outcome.name.lower()] += 1
            _log_move("a move has ended", move)
        if step.state is not None:
            self.status.has_ended(int(subject))
            log.info("the balancer's operation changes", extra={"operation": subject, "state": step.state.name.lower()})
            if step.shortfall:
                extra = {"operation": subject, "reason": step.shortfall}
                log.warning("brokers are filled below their share, and nothing more can move", extra=extra)

    def _looked_at_cells(self, look: CellsLook, step: BalanceStep) -> None:
        before, exhausted = self.status.cells.exhausted, look.exhausted
        were_due = [one.cell for one in self.status.cells.overloads if one.is_due]
        self.status.looked_at_cells(look, self._next_look_s())
        for record in step.records:
            if isinstance(record, BalanceOperationRecord):
                self.tenants_moved += 1
                log.info("a tenant leaves an overloaded cell", extra={"reason": record.reason})
        if self._policy.balance.dry_run:
            for one in look.overloads:
                if one.is_due and one.relief.moves and one.cell not in were_due:
                    tenants = ", ".join(f"{move.tenant} to {move.target}" for move in one.relief.moves)
                    log.info("tenants would leave an overloaded cell", extra={"cell": one.cell, "tenants": tenants})
        if exhausted and exhausted != before:
            cells = ", ".join(f"{one.cell} ({one.load:.2f})" for one in look.overloads if one.cell in exhausted)
            log.error("cells are overloaded, and no other cell can take a tenant: add brokers", extra={"cells": cells})

    def look_s(self, image: MetadataImage) -> float | None:
        left_s = None
        if self._looks(image):
            due_s = self.status.next_look_s
            if self._looks_at_cells(image):
                due_s = min(due_s, self.status.next_cells_s)
            left_s = max(0.0, due_s - self._clock.monotonic())
        if any(_steps(image, one) for one in image.balance.current()):
            return LOOK_S if left_s is None else min(left_s, LOOK_S)
        return left_s


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
