"""The board about tenants: who uses what, who waits, and whether that is fair."""

from __future__ import annotations

from tests.boards.panels import BY_NODE, RATE, Board, Query, Row, Variable, number, panel

CHOSEN = '{tenant=~"$tenant"}'

SUMMARY = Row(
    "Now",
    (
        number("Tenants", "Of the cluster.", "max(tidelog_tenants)"),
        number(
            "Near their quotas",
            "Tenants whose quotas are split over brokers by need.",
            "max(tidelog_tenants_with_shares)",
        ),
        number(
            "Held back by brokers",
            "Tenants that wait because a broker is at one of its own limits.",
            "sum(tidelog_broker_tenants_held)",
            red=1,
        ),
        number(
            "Unfair waiting",
            "Seconds in a second that tenants wait below their quotas.",
            f"sum(rate(tidelog_tenant_unfair_throttle_seconds_total{RATE})) or vector(0)",
            red=0.001,
        ),
        number("Routed by proxies", "Tenants that proxies know.", "max(tidelog_proxy_tenants)"),
    ),
)

USE = Row(
    "Use",
    (
        panel(
            "Bytes in",
            "From each tenant's clients, over all brokers.",
            "Bps",
            Query('max by (tenant) (tidelog_tenant_bytes_per_second{direction="in", tenant=~"$tenant"})', "{{tenant}}"),
        ),
        panel(
            "Bytes out",
            "To each tenant's clients, over all brokers.",
            "Bps",
            Query(
                'max by (tenant) (tidelog_tenant_bytes_per_second{direction="out", tenant=~"$tenant"})', "{{tenant}}"
            ),
        ),
        panel(
            "Event loops",
            "1 is one broker that does nothing else.",
            "none",
            Query(f"max by (tenant) (tidelog_tenant_busy_ratio{CHOSEN})", "{{tenant}}"),
        ),
        panel(
            "Share of the quota that is used",
            "At 1 the tenant waits.",
            "percentunit",
            Query(
                f"max by (tenant, direction) (tidelog_tenant_bytes_per_second{CHOSEN}) / on (tenant, direction) "
                f"(max by (tenant, direction) (tidelog_tenant_quota_bytes_per_second{CHOSEN}))",
                "{{tenant}} {{direction}}",
            ),
        ),
        panel(
            "Quotas over brokers",
            "Bytes a second that each broker may act on.",
            "Bps",
            Query(
                f"max by (tenant, broker, direction) (tidelog_tenant_share_bytes{CHOSEN}) or vector(0)",
                "{{tenant}} {{broker}} {{direction}}",
            ),
        ),
        panel(
            "Connections to proxies",
            "Open ones.",
            "none",
            Query("tidelog_proxy_connections", BY_NODE),
        ),
    ),
)

WAITING = Row(
    "Waiting",
    (
        panel(
            "Time that tenants wait, by reason",
            "Seconds in a second, over all their clients.",
            "none",
            Query(
                f"sum by (tenant, reason) (rate(tidelog_tenant_throttle_seconds_total{CHOSEN}{RATE}))",
                "{{tenant}}: {{reason}}",
            ),
        ),
        panel(
            "Unfair waiting",
            "Although the tenant used less than its quotas.",
            "none",
            Query(
                f"sum by (tenant) (rate(tidelog_tenant_unfair_throttle_seconds_total{CHOSEN}{RATE})) or vector(0)",
                "{{tenant}}",
            ),
        ),
        panel(
            "Brokers at a limit of their own",
            "Seconds in a second that a broker held tenants back.",
            "none",
            Query(
                f"sum by (instance, limit) (rate(tidelog_broker_pressure_seconds_total{RATE}))",
                "{{instance}}: {{limit}}",
            ),
        ),
    ),
)

GROUPS = Row(
    "Groups",
    (
        panel(
            "Records behind",
            "Of the groups that are furthest.",
            "none",
            Query(f"max by (tenant, group) (tidelog_group_lag_records{CHOSEN})", "{{tenant}} {{group}}"),
        ),
        panel(
            "Time behind",
            "Of the groups that are furthest.",
            "s",
            Query(f"max by (tenant, group) (tidelog_group_lag_seconds{CHOSEN})", "{{tenant}} {{group}}"),
        ),
    ),
)

TENANT_BOARD = Board(
    "tidelog-tenants",
    "Tidelog: tenants",
    "Who uses what, who waits, and whether that is fair. docs/quotas.md explains quotas and reasons.",
    (SUMMARY, USE, WAITING, GROUPS),
    (Variable("tenant", "Tenant", "tidelog_tenant_bytes_per_second"),),
)
