"""Tenants and their API keys in this broker's image, for operators: Tidelog's own APIs 10005 and 10011.

No response has any part of a key's secret.
"""

from __future__ import annotations

from broker.requests.context import RequestContext
from broker.requests.forwarding import Forwarder
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.metadata import MetadataImage
from kraft.image.tenant_usage import TenantUsage, usage_work
from kraft.image.tenants import TenantImage
from wire.messages import (
    DescribeApiKeysRequest,
    DescribeApiKeysResponse,
    DescribeTenantsRequest,
    DescribeTenantsResponse,
)

ROW_COST = 10  # units of `common.pacing`

_Tenant = DescribeTenantsResponse.DescribedTenant
_Key = DescribeApiKeysResponse.DescribedApiKey


class TenantHandlers:
    """One method per API."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def describe_tenants(
        self, context: RequestContext, request: DescribeTenantsRequest
    ) -> DescribeTenantsResponse | Work[DescribeTenantsResponse]:
        image = self._forwarder.image
        try:
            tenants = list(image.tenants.values())
            if request.tenants is not None:
                tenants = list({tenant.id: tenant for tenant in (_find(image, t) for t in request.tenants)}.values())
        except ProtocolError as error:
            return DescribeTenantsResponse(error_code=error.code, error_message=error.message, tenants=[])
        return _described(image, tenants)

    def describe_api_keys(
        self, context: RequestContext, request: DescribeApiKeysRequest
    ) -> DescribeApiKeysResponse | Work[DescribeApiKeysResponse]:
        image = self._forwarder.image
        try:
            ids = list(image.keys) if request.tenant is None else image.keys.of_tenant(_find(image, request.tenant).id)
            if request.keys is not None:
                known = frozenset(ids)
                unknown = [key_id for key_id in request.keys if key_id not in known]
                if unknown:
                    raise ProtocolError(ErrorCode.RESOURCE_NOT_FOUND, f"There is no key {unknown[0]}.")
                ids = list(dict.fromkeys(request.keys))
        except ProtocolError as error:
            return DescribeApiKeysResponse(error_code=error.code, error_message=error.message, keys=[])
        return _described_keys(image, sorted(ids))


def _find(image: MetadataImage, id_or_name: str) -> TenantImage:
    tenant = image.tenants.get(id_or_name) or image.tenants.by_name(id_or_name)
    if tenant is None:
        raise ProtocolError(ErrorCode.RESOURCE_NOT_FOUND, f"There is no tenant {id_or_name}.")
    return tenant


def _described(image: MetadataImage, tenants: list[TenantImage]) -> Work[DescribeTenantsResponse]:
    usage = (yield from usage_work(image)) if tenants else {}
    rows: list[_Tenant] = []
    for tenant in sorted(tenants, key=lambda one: one.name):
        rows.append(_tenant(image, tenant, usage[tenant.id]))
        yield ROW_COST
    return DescribeTenantsResponse(error_code=0, error_message=None, tenants=rows)


def _described_keys(image: MetadataImage, ids: list[str]) -> Work[DescribeApiKeysResponse]:
    rows: list[_Key] = []
    for key_id in ids:
        rows.append(_key(image, key_id))
        yield ROW_COST
    return DescribeApiKeysResponse(error_code=0, error_message=None, keys=rows)


def _tenant(image: MetadataImage, tenant: TenantImage, usage: TenantUsage) -> _Tenant:
    return _Tenant(
        id=tenant.id,
        name=tenant.name,
        cell=tenant.cell,
        target_cell=tenant.target_cell,
        state=tenant.state.name.lower(),
        created_ms=tenant.created_ms,
        limits=[_Tenant.DescribedTenantLimit(name=name, value=value) for name, value in tenant.limits.items()],
        allow_networks=list(tenant.allow_networks),
        deny_networks=list(tenant.deny_networks),
        topics=usage.topics,
        partitions=usage.partitions,
        partitions_to_move=usage.to_move,
        partitions_moving=usage.moving,
        keys=len(image.keys.of_tenant(tenant.id)),
        acls=len(image.acls.of_tenant(tenant.id)),
        hand_over=tenant.keys_phase.name.lower(),
    )


def _key(image: MetadataImage, key_id: str) -> _Key:
    key = image.keys[key_id]
    tenant = image.tenants.get(key.tenant)
    return _Key(
        id=key.id,
        tenant=key.tenant,
        tenant_name=tenant.name if tenant is not None else "",
        description=key.description,
        roles=list(key.roles),
        created_ms=key.created_ms,
        mechanisms=[mechanism.name for mechanism in sorted(image.scram.get(key.id, {}))],
    )
