"""Metrics of tenants' quotas at the active controller. Their number is bounded, however many tenants there are.

A scrape shows at most `TENANTS_MAX` tenants by name: for unfair time those that were throttled first, so that a series
that exists stays, and all others in one; for shares those that have had them longest.
"""

from __future__ import annotations

from itertools import islice

from common.metrics import Metrics
from common.node_settings.shares import ShareMode
from kraft.controller.quota_coordinator import QuotaCoordinator
from kraft.quotas.tenant_quotas import Resource

TENANTS_MAX = 1_000
OTHERS = "others"
DIRECTIONS = ((Resource.INGRESS, "in"), (Resource.EGRESS, "out"))
Sample = tuple[dict[str, str], float]


def register_quotas(metrics: Metrics, quotas: QuotaCoordinator) -> None:
    metrics.family("tidelog_tenant_unfair_throttle_seconds_total", lambda: unfair_seconds(quotas))
    metrics.family("tidelog_tenant_share_bytes", lambda: share_bytes(quotas))
    metrics.gauge("tidelog_tenants_with_shares", lambda: len(quotas.splits))
    metrics.family(
        "tidelog_quota_shares_mode", lambda: [({"mode": mode.value}, float(mode is quotas.mode)) for mode in ShareMode]
    )


def unfair_seconds(quotas: QuotaCoordinator) -> list[Sample]:
    tenants = quotas.unfair.tenants()
    shown = islice(tenants.items(), TENANTS_MAX)
    found: list[Sample] = [({"tenant": tenant}, waited.unfair_ms / 1000) for tenant, waited in shown]
    if len(tenants) > TENANTS_MAX:
        rest = quotas.unfair.unfair_ms - sum(waited.unfair_ms for waited in islice(tenants.values(), TENANTS_MAX))
        found.append(({"tenant": OTHERS}, rest / 1000))
    return found


def share_bytes(quotas: QuotaCoordinator) -> list[Sample]:
    return [
        ({"tenant": tenant, "broker": str(broker), "direction": direction}, float(held.share))
        for tenant, splits in islice(quotas.splits.items(), TENANTS_MAX)
        for resource, direction in DIRECTIONS
        for broker, held in splits[resource].held.items()
    ]
