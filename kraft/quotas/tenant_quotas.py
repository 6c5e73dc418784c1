"""A tenant's quotas that are split over brokers, and the brokers that they are split over."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from common.node_settings.tenants import TenantSettings
from kraft.image.brokers import BrokerImage
from kraft.image.cells import cell_of
from kraft.image.tenants import EGRESS, INGRESS, REQUEST_PERCENTAGE, TenantImage, limit_of

NS_PER_PERCENT = 10_000_000
"""Of one event loop, in a second."""


class Resource(IntEnum):
    """What a quota limits: bytes that clients send, bytes that they are sent, nanoseconds of event loops."""

    INGRESS = 0
    EGRESS = 1
    BUSY = 2


RESOURCES = tuple(Resource)
Quotas = tuple[int, int, int]
"""Per second, by resource; 0 is unlimited."""
UNLIMITED: Quotas = (0, 0, 0)


def quotas_of(tenant: TenantImage, defaults: TenantSettings) -> Quotas:
    limits = tenant.limits
    return (
        limit_of(limits, INGRESS, defaults),
        limit_of(limits, EGRESS, defaults),
        limit_of(limits, REQUEST_PERCENTAGE, defaults) * NS_PER_PERCENT,
    )


class CellBrokers:
    """The live brokers of each cell. They are sought once for each change of the brokers."""

    def __init__(self) -> None:
        self._brokers: Mapping[int, BrokerImage] | None = None
        self._of_cell: dict[str, tuple[int, ...]] = {}

    def of(self, tenant: TenantImage, brokers: Mapping[int, BrokerImage]) -> tuple[int, ...]:
        """The live brokers that serve the tenant, by id: those of its cell, and of the one that it moves to."""
        if brokers is not self._brokers:
            found: dict[str, list[int]] = {}
            for broker_id in sorted(brokers):
                if not brokers[broker_id].fenced:
                    found.setdefault(cell_of(brokers[broker_id]), []).append(broker_id)
            self._of_cell = {cell: tuple(ids) for cell, ids in found.items()}
            self._brokers = brokers
        here = self._of_cell.get(tenant.cell, ())
        there = tenant.target_cell
        if there is None or there == tenant.cell:
            return here
        return tuple(sorted((*here, *self._of_cell.get(there, ()))))
