"""Bandwidth that tenants have reserved in their cells. No I/O.

A cell may promise a part of its brokers' bandwidth only: the rest serves what no tenant has reserved, and replicas that
catch up.
"""

from __future__ import annotations

from collections.abc import Mapping

from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.controller.cells import TENANTS_PER_STEP, TENANTS_PER_UNIT
from kraft.controller.policy import ControllerPolicy, cell_limit
from kraft.image.cells import BANDWIDTH_PER_BROKER, CellImage, brokers_of, cell_names
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import EGRESS, EGRESS_RESERVED, INGRESS, INGRESS_RESERVED, limit_of

RESERVED_PER_MILLE_MAX = 800
"""Of a cell's bandwidth: bytes in and out of all its brokers together."""
PAIRS = ((INGRESS_RESERVED, INGRESS), (EGRESS_RESERVED, EGRESS))


def reserved(limits: Mapping[str, int], policy: ControllerPolicy) -> int:
    """Bytes per second, in and out, that a tenant with these limits may always use."""
    return sum(limit_of(limits, name, policy.access) for name, _ in PAIRS)


def check_reserved_within_quota(limits: Mapping[str, int], policy: ControllerPolicy) -> None:
    """Raises INVALID_REQUEST if a tenant would have more reserved than it may use."""
    for name, quota_name in PAIRS:
        wanted, quota = (limit_of(limits, one, policy.access) for one in (name, quota_name))
        if 0 < quota < wanted:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, f"{name} {wanted} is more than the tenant's {quota_name} {quota}."
            )


def cells_without(
    image: MetadataImage, policy: ControllerPolicy, wanted: int, tenant_id: str = ""
) -> Work[Mapping[str, str]]:
    """The cells that cannot promise `wanted` bytes per second to this tenant, each with the reason."""
    if wanted <= 0:
        return {}
    promised: dict[str, int] = {}
    for number, tenant in enumerate(image.tenants.values(), 1):
        if tenant.id != tenant_id:
            promised[tenant.home] = promised.get(tenant.home, 0) + reserved(tenant.limits, policy)
        if number % TENANTS_PER_STEP == 0:
            yield TENANTS_PER_STEP // TENANTS_PER_UNIT
    found = {}
    for name in cell_names(image.cells, image.brokers):
        cell = image.cells.get(name) or CellImage(name)
        bandwidth = cell_limit(cell, BANDWIDTH_PER_BROKER, policy) * len(brokers_of(name, image.brokers))
        most, taken = bandwidth * RESERVED_PER_MILLE_MAX // 1000, promised.get(name, 0)
        if bandwidth and taken + wanted > most:
            found[name] = (
                f"Cell {name} can promise {most} bytes per second to tenants, and {taken} of these are reserved: "
                f"{wanted} more do not fit."
            )
    return found
