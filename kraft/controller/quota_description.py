"""DescribeShares (10019): how the active controller splits tenants' quotas, as operators see it. No I/O."""

from __future__ import annotations

from itertools import chain, islice

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.node_settings.shares import ShareMode
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.policy import ControllerPolicy
from kraft.controller.quota_coordinator import QuotaCoordinator
from kraft.controller.tenants import find_tenant
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.quotas.shares import even_share
from kraft.quotas.tenant_quotas import RESOURCES, Quotas, Resource, quotas_of
from wire.messages import DescribeSharesRequest, DescribeSharesResponse

TENANT_COST, QUOTA_COST, SHARE_COST = 5, 5, 1  # in units of `common.pacing`
TENANTS_MAX, SHARES_MAX = 10_000, 50_000  # in one response; the tenant that passes the second is the last

_Tenant = DescribeSharesResponse.DescribedShares
_Quota = _Tenant.DescribedQuota


def describe_shares(
    image: MetadataImage,
    request: DescribeSharesRequest,
    coordinator: QuotaCoordinator,
    policy: ControllerPolicy,
    now: float,
) -> Work[Decision[MetadataRecord, DescribeSharesResponse]]:
    """One tenant, or all that have shares or were throttled, those with shares first, up to the bounds."""
    try:
        wanted = (
            [find_tenant(image, request.tenant).id]
            if request.tenant is not None
            else list(dict.fromkeys(islice(chain(coordinator.splits, coordinator.unfair.tenants()), 2 * TENANTS_MAX)))
        )
    except ProtocolError as error:
        reply = DescribeSharesResponse(error_code=int(error.code), error_message=error.message, tenants=[])
        return Decision(reply)
    rows: list[_Tenant] = []
    shares = 0
    for tenant_id in wanted[:TENANTS_MAX]:
        if shares >= SHARES_MAX:
            break
        tenant = image.tenants.get(tenant_id)
        if tenant is not None:
            row = yield from _described(image, tenant, coordinator, quotas_of(tenant, policy.access), now)
            rows.append(row)
            shares += sum(len(quota.brokers) for quota in row.quotas)
        yield TENANT_COST
    return Decision(
        DescribeSharesResponse(
            error_code=int(ErrorCode.NONE),
            error_message=None,
            since_ms=int((now - coordinator.since_s) * 1000),
            is_keeping=coordinator.is_keeping(image, now),
            mode=coordinator.mode_under(image).value,
            tenants=rows,
        )
    )


def _described(
    image: MetadataImage, tenant: TenantImage, coordinator: QuotaCoordinator, quotas: Quotas, now: float
) -> Work[_Tenant]:
    used, waited = coordinator.used(image, tenant, now), coordinator.unfair.of(tenant.id)
    described = []
    for resource in RESOURCES:
        quota = _quota(image, tenant, coordinator, resource, quotas[resource], used[resource], now)
        described.append(quota)
        yield QUOTA_COST + SHARE_COST * len(quota.brokers)
    return _Tenant(
        tenant=tenant.id,
        tenant_name=tenant.name,
        throttled_ms=waited.all_ms,
        unfair_ms=waited.unfair_ms,
        quotas=described,
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
    held = {broker: one.share for broker, one in split.held.items()} if split is not None else {}
    if coordinator.mode_under(image) is not ShareMode.DYNAMIC:
        live = coordinator.live(image, tenant) if quota else ()
        held = dict.fromkeys(live, even_share(quota, len(live)))
    return _Quota(
        resource=resource.name.lower(),
        quota=quota,
        used=used,
        is_bound=split is not None and split.is_bound,
        brokers=[
            _Quota.DescribedShare(
                broker_id=broker,
                used=demands[broker].rate if broker in demands else -1,
                share=held.get(broker, -1),
                target=split.targets.get(broker, -1) if split is not None else -1,
            )
            for broker in brokers
        ],
    )
