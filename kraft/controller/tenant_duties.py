"""The active controller's work on tenants that move or are being deleted, one committed step after another."""

from __future__ import annotations

import logging
import random

from common.errors import ErrorCode, ProtocolError
from common.identifiers import ZERO_UUID
from common.pacing import Work
from common.ports import Clock
from kraft.controller.driver import ControllerDriver
from kraft.controller.key_moves import KeyReports, Report
from kraft.controller.policy import ControllerPolicy
from kraft.controller.stepper import Act
from kraft.controller.tenant_deletion import deletion_step
from kraft.controller.tenant_keys import TenantKeys
from kraft.controller.tenant_moves import MoveStep, moving
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.records import TenantState
from kraft.topic_names import GROUP_TOPIC
from wire.messages import (
    TenantGroupsClearedRequest,
    TenantGroupsClearedResponse,
    TenantKeysReadyRequest,
    TenantKeysReadyResponse,
    raw_uuid,
)

log = logging.getLogger(__name__)


LOOK_S = 1.0  # interval of checks when nothing reports a change


class TenantDuties(Act[MoveStep]):
    """Its subjects are the tenants that move or are being deleted, by id."""

    name, pause_s = "tenants", 0.05

    def __init__(self, driver: ControllerDriver, policy: ControllerPolicy, rng: random.Random, clock: Clock) -> None:
        super().__init__()
        self._driver = driver
        self._policy = policy
        self._random = rng
        self._clock = clock
        self._removed = TenantKeys()
        self._keys = KeyReports()
        self._busy: dict[str, None] = {}

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for tenant_id, old in delta.access.tenants.changed.items():
            tenant = image.tenants.get(tenant_id)
            if tenant is not None and tenant.state is not TenantState.ACTIVE:
                self._busy[tenant_id] = None
                self._keys.applied(old, tenant, self._clock.monotonic())
            else:
                self._busy.pop(tenant_id, None)
                self._removed.forget(tenant_id)
                self._keys.forget(tenant_id)
        if self._busy and not delta.is_empty:
            self.changed.set()

    def became_active(self, image: MetadataImage) -> None:
        self._removed.restart()
        self._keys.restart(self._clock.monotonic())

    def groups_cleared(self, request: TenantGroupsClearedRequest) -> TenantGroupsClearedResponse:
        """TenantGroupsCleared (10014), from a broker. Raises NOT_CONTROLLER."""
        self._check_sender(request)
        image, topic_id = self._driver.image, raw_uuid(request.topic_id)
        if topic_id == ZERO_UUID:  # from a broker without transactions
            topic_id = image.topics.ids.get(GROUP_TOPIC, ZERO_UUID)
        self._removed.cleared(image, request.tenants, topic_id, request.partitions)
        self.changed.set()
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
        image, now_s = self._driver.image, self._clock.monotonic()
        self._keys.take(image, request.broker_id, raw_uuid(request.topic_id), reports, now_s)
        self.changed.set()
        return TenantKeysReadyResponse(error_code=0)

    def _check_sender(self, request: TenantGroupsClearedRequest | TenantKeysReadyRequest) -> None:
        if not self._driver.is_active:
            raise ProtocolError(ErrorCode.NOT_CONTROLLER)
        broker = self._driver.image.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            raise ProtocolError(ErrorCode.STALE_BROKER_EPOCH)

    def due(self, image: MetadataImage) -> list[str]:
        return list(self._busy)

    def step(self, image: MetadataImage, subject: str) -> Work[MoveStep]:
        tenant = image.tenants.get(subject)
        if tenant is not None and tenant.state is TenantState.DELETING:
            return MoveStep(deletion_step(image, tenant, self._removed.are_gone(image, subject)))
        if tenant is not None and tenant.state is TenantState.MOVING:
            return (yield from moving(image, self._policy, tenant, self._random, self._keys, self._clock.monotonic()))
        return MoveStep()

    def committed(self, subject: str, step: MoveStep) -> None:
        tenant = self._driver.image.tenants.get(subject)
        if step.ends and tenant is not None:
            log.info("tenant moved", extra={"tenant": subject, "cell": tenant.home})

    def look_s(self, image: MetadataImage) -> float | None:
        return LOOK_S if self._busy else None
