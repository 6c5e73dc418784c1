"""How the active controller splits tenants' quotas, as plain rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.admin.admin_client import error_text
from tidelog.admin.replica_moves import Refused

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient
    from wire.messages import DescribeSharesResponse

    _Tenant = DescribeSharesResponse.DescribedShares


class Splits(NamedTuple):
    """`since_s`: for how long the controller has been active. `is_keeping`: it still waits for brokers' reports.
    `mode`: the value of tidelog.quota.shares."""

    since_s: float
    is_keeping: bool
    mode: str
    tenants: list[dict[str, Any]]


def described_shares(client: AdminClient, tenant: str | None) -> Splits:
    """One tenant, or all that have shares or were throttled. Raises Refused with what the cluster said, and
    KafkaError."""
    from wire.messages import DescribeSharesRequest  # noqa: PLC0415

    response = client.send(DescribeSharesRequest(tenant=tenant))
    if response.error_code:
        row = {"error_code": response.error_code, "error_message": response.error_message}
        raise Refused(error_text(row) or "refused")
    return Splits(response.since_ms / 1000, response.is_keeping, response.mode, [_row(one) for one in response.tenants])


def _row(tenant: _Tenant) -> dict[str, Any]:
    return {
        "tenant": tenant.tenant_name,
        "id": tenant.tenant,
        "throttled_s": tenant.throttled_ms / 1000,
        "unfair_s": tenant.unfair_ms / 1000,
        "quotas": [
            {
                "resource": quota.resource,
                "quota": quota.quota,
                "used": quota.used,
                "has_shares": quota.is_bound,
                "brokers": [
                    {
                        "broker": one.broker_id,
                        "used": one.used if one.used >= 0 else None,
                        "share": one.share if one.share >= 0 else None,
                        "target": one.target if one.target >= 0 else None,
                    }
                    for one in quota.brokers
                ],
            }
            for quota in tenant.quotas
        ],
    }
