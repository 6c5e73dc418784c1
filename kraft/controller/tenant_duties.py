"""The active controller's work on tenants that move or are being deleted: one committed step after another."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

from common.decision import Decision
from common.errors import ErrorCode, OutcomeUnknown, ProtocolError
from common.lifecycle import duty, end_task
from common.pacing import Work
from kraft.controller.driver import ControllerDriver
from kraft.controller.key_moves import KeyReports, Report
from kraft.controller.policy import ControllerPolicy
from kraft.controller.tenant_deletion import deletion_step
from kraft.controller.tenant_groups import TenantGroups
from kraft.controller.tenant_moves import MoveStep, moving
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.records import MetadataRecord, TenantState
from wire.messages import (
    TenantGroupsClearedRequest,
    TenantGroupsClearedResponse,
    TenantKeysReadyRequest,
    TenantKeysReadyResponse,
    raw_uuid,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TenantDutiesConfig:
    """Seconds. `look_s`: how often tenants in work are looked at when nothing tells of a change."""

    look_s: float = 1.0
    step_pause_s: float = 0.05


class TenantDuties:
    """Owns one task. Tell it of every change of the metadata, on every controller."""

    def __init__(
        self, driver: ControllerDriver, policy: ControllerPolicy, rng: random.Random, config: TenantDutiesConfig
    ) -> None:
        self._driver = driver
        self._policy = policy
        self._random = rng
        self._config = config
        self._groups = TenantGroups()
        self._keys = KeyReports()
        self._busy: dict[str, None] = {}  # tenants that move or are being deleted, by id
        self._problems: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for tenant_id in delta.access.tenants_changed:
            tenant = image.tenants.get(tenant_id)
            if tenant is not None and tenant.state is not TenantState.ACTIVE:
                self._busy[tenant_id] = None
            else:
                self._busy.pop(tenant_id, None)
                self._problems.pop(tenant_id, None)
                self._groups.forget(tenant_id)
                self._keys.forget(tenant_id)
        if self._busy and not delta.is_empty:
            self._changed.set()

    def became_active(self) -> None:
        self._groups.restart()
        self._keys.restart()
        self._changed.set()

    def groups_cleared(self, request: TenantGroupsClearedRequest) -> TenantGroupsClearedResponse:
        """TenantGroupsCleared (10014), from a broker. Raises NOT_CONTROLLER."""
        self._check_sender(request)
        self._groups.cleared(self._driver.image, request.tenants, request.partitions)
        self._changed.set()
        return TenantGroupsClearedResponse(error_code=0)

    def keys_ready(self, request: TenantKeysReadyRequest) -> TenantKeysReadyResponse:
        """TenantKeysReady (10015), from a broker. Raises NOT_CONTROLLER."""
        self._check_sender(request)
        reports = [
            Report(
                row.tenant,
                row.keys_epoch,
                row.phase,
                tuple((partition.partition_index, partition.leader_epoch) for partition in row.partitions),
            )
            for row in request.tenants
        ]
        self._keys.take(self._driver.image, request.broker_id, raw_uuid(request.topic_id), reports)
        self._changed.set()
        return TenantKeysReadyResponse(error_code=0)

    def _check_sender(self, request: TenantGroupsClearedRequest | TenantKeysReadyRequest) -> None:
        if not self._driver.is_active:
            raise ProtocolError(ErrorCode.NOT_CONTROLLER)
        broker = self._driver.image.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            raise ProtocolError(ErrorCode.STALE_BROKER_EPOCH)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=duty("tenants"))

    async def stop(self) -> None:
        await end_task(self._task)
        self._task = None

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            advanced = False
            if self._driver.is_active:
                for tenant_id in list(self._busy):
                    advanced = await self._advance(tenant_id) or advanced
            if advanced:
                await asyncio.sleep(self._config.step_pause_s)
                continue
            try:
                async with asyncio.timeout(self._config.look_s if self._busy else None):
                    await self._changed.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(self._config.step_pause_s)

    async def _advance(self, tenant_id: str) -> bool:
        """Commit the tenant's next step; False when it has to wait for others, or for a better time."""

        def decide(image: MetadataImage) -> Work[Decision[MetadataRecord, int]]:
            records = yield from self._step(image, tenant_id)
            return Decision(len(records), records)

        try:
            count: int = await self._driver.write(decide)
        except (ProtocolError, OutcomeUnknown):
            return False
        return count > 0

    def _step(self, image: MetadataImage, tenant_id: str) -> Work[list[MetadataRecord]]:
        tenant = image.tenants.get(tenant_id)
        if tenant is None:
            return []
        if tenant.state is TenantState.DELETING:
            return deletion_step(image, tenant, self._groups.are_gone(image, tenant_id))
        if tenant.state is not TenantState.MOVING:
            return []
        step = yield from moving(image, self._policy, tenant, self._random, self._keys)
        self._tell(tenant_id, tenant.home, step)
        return step.records

    def _tell(self, tenant_id: str, cell: str, step: MoveStep) -> None:
        if step.ends:
            log.info("tenant moved", extra={"tenant": tenant_id, "cell": cell})
        if step.problem and self._problems.get(tenant_id) != step.problem:  # once for each reason
            log.warning("tenant cannot move on", extra={"tenant": tenant_id, "cell": cell, "reason": step.problem})
        self._problems[tenant_id] = step.problem
