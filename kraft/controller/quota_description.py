"""DescribeShares (10019): how the active controller splits tenants' quotas, as operators see it. No I/O."""

from __future__ import annotations

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.policy import ControllerPolicy
from kraft.controller.quota_coordinator import QuotaCoordinator
from kraft.controller.tenants import find_tenant
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.quotas.tenant_quotas import RESOURCES, Quotas, Resource, quotas_of
from wire.messages import DescribeSharesRequest, DescribeSharesResponse

ROWS_AT_ONCE, ROW_COST = 10, 30  # in one slice, and units of `common.pacing` of each
TENANTS_MAX = 10_000  # in one response

_Tenant = DescribeSharesResponse.DescribedShares
_Quota = _Tenant.DescribedQuota


def describe_shares(
    image: MetadataImage,
    request: DescribeSharesRequest,
    coordinator: QuotaCoordinator,
    policy: ControllerPolicy,
    now: float,
) -> Work[Decision[MetadataRecord, DescribeSharesResponse]]:
    """One tenant, or all that have shares or were throttled: at most `TENANTS_MAX`, those with shares first."""
    try:
        wanted = (
            [find_tenant(image, request.tenant).id]
            if request.tenant is not None
            else list(dict.fromkeys((*coordinator.splits, *coordinator.unfair.tenants())))[:TENANTS_MAX]
        )
    except ProtocolError as error:
        reply = DescribeSharesResponse(error_code=int(error.code), error_message=error.message, tenants=[])
        return Decision(reply)
    rows = []
    for number, tenant_id in enumerate(wanted, 1):
        tenant = image.tenants.get(tenant_id)
        if tenant is not None:
            rows.append(_described(image, tenant, coordinator, quotas_of(tenant, policy.access), now))
        if number % ROWS_AT_ONCE == 0:
            yield ROWS_AT_ONCE * ROW_COST
    return Decision(
        DescribeSharesResponse(
            error_code=int(ErrorCode.NONE),
            error_message=None,
            since_ms=int((now - coordinator.since_s) * 1000),
            is_keeping=coordinator.is_keeping(image, now),
            tenants=rows,
        )
    )


def _described(
    image: MetadataImage, tenant: TenantImage, coordinator: QuotaCoordinator, quotas: Quotas, now: float
) -> _Tenant:
    used, waited = coordinator.used(image, tenant, now), coordinator.unfair.of(tenant.id)
    return _Tenant(
        tenant=tenant.id,
        tenant_name=tenant.name,
        throttled_ms=waited.all_ms,
        unfair_ms=waited.unfair_ms,
        quotas=[_quota(image, tenant, coordinator, one, quotas[one], used[one], now) for one in RESOURCES],
    )


def _quota(
    image: MetadataImage,
    tenant: TenantImage,
    coordinator: QuotaCoordinator,
    resource: Resource,
    quota: int,
    used: int,
    now: float,
) -> _Quota:
    splits = coordinator.splits.get(tenant.id)
    split = None if splits is None else splits[resource]
    demands = coordinator.demands(image, tenant, resource, now)
    brokers = sorted({*demands, *(split.held if split is not None else ())})
    return _Quota(
        resource=resource.name.lower(),
        quota=quota,
        used=used,
        is_bound=split is not None and split.is_bound,
        brokers=[
            _Quota.DescribedShare(
                broker_id=broker,
                used=demands[broker].rate if broker in demands else -1,
                share=split.held[broker].share if split is not None and broker in split.held else -1,
                target=split.targets.get(broker, -1) if split is not None else -1,
            )
            for broker in brokers
        ],
    )
