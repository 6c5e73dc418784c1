"""Metrics of tenants and of consumer groups: what may grow, named up to a bound."""

from common.metric_catalogue.metric import BROKER, DIRECTION, KINDS_MAX, TENANT, Area, Label, counter, gauge, info
from common.node_settings.monitoring import GROUPS_NAMED_MAX

GROUP = Label("group", "the group's id, of the groups that lag most; `tidelog.metrics.groups.max`", GROUPS_NAMED_MAX)
GROUP_TENANT = Label("tenant", "the tenant's id, empty for operators' groups", GROUPS_NAMED_MAX)

TENANTS = Area(
    "Tenants and quotas",
    "See [quotas](quotas.md). A page names at most 1,000 tenants, and `others` for the rest.",
    (
        gauge(
            "tidelog_tenant_bytes_per_second",
            "Bytes a second that a tenant's clients send (in) and are sent (out) over all brokers, as reported last. "
            "On the active controller.",
            info("who uses what."),
            TENANT,
            DIRECTION,
        ),
        gauge(
            "tidelog_tenant_busy_ratio",
            "Event loops that a tenant's requests take over all brokers, as reported last. On the active controller.",
            info("who uses what."),
            TENANT,
        ),
        gauge(
            "tidelog_tenant_quota_bytes_per_second",
            "A tenant's quota, of the tenants that used anything lately and have one. On the active controller.",
            info("the divisor of use."),
            TENANT,
            DIRECTION,
        ),
        counter(
            "tidelog_tenant_throttle_seconds_total",
            "Time that a tenant's clients had to wait, by reason; of the tenants that had to first.",
            "A tenant at its quota waits: raise the quota, or tell the tenant.",
            TENANT,
            Label("reason", "why, see docs/quotas.md", KINDS_MAX),
        ),
        counter(
            "tidelog_tenant_unfair_throttle_seconds_total",
            "Time that a tenant's clients had to wait although the tenant used less than its quotas.",
            "Any for long: `tidelog quotas shares` shows how the quota is split; docs/quotas.md says why it can be.",
            TENANT,
        ),
        gauge(
            "tidelog_tenant_share_bytes",
            "Bytes per second of a tenant's quota that a broker may act on, of tenants that are near their quotas; "
            "with tidelog.quota.shares=observe, that it might act on.",
            info("how a quota is split over brokers."),
            TENANT,
            BROKER,
            DIRECTION,
        ),
        gauge(
            "tidelog_tenants_with_shares",
            "Tenants that are so near a quota that brokers have shares of it.",
            info("how many are near their quotas."),
        ),
        gauge(
            "tidelog_quota_shares_mode",
            "How tenants' quotas are split over brokers, as of the last report to this controller: 1 for one of the "
            "modes.",
            info("the setting `tidelog.quota.shares`."),
            Label("mode", "see docs/quotas.md", 5),
        ),
    ),
)

GROUPS = Area(
    "Groups",
    "Of the groups that a broker coordinates, as of its last look, which it takes every "
    "`tidelog.metrics.groups.interval.ms`. Of the groups that lag, a page names at most `tidelog.metrics.groups.max`, "
    "those that lag most; sums are over all. Lag in seconds is how long ago the log passed the group's offset by this "
    "broker's clock, not by records' timestamps, which clients choose; it begins with the broker's first look.",
    (
        gauge("tidelog_groups", "Groups with members or offsets.", info("how many there are.")),
        gauge(
            "tidelog_groups_lagging",
            "Groups that have not read, or not committed, all records.",
            info("the others have read everything."),
        ),
        gauge(
            "tidelog_groups_lag_records",
            "Records before the end that groups have not committed, over all groups.",
            "If it grows, consumers do not keep up: see which group.",
        ),
        gauge(
            "tidelog_groups_lag_seconds",
            "The lag in seconds of the group that is behind longest.",
            "See which group.",
        ),
        gauge(
            "tidelog_groups_lag_unknown_partitions",
            "Committed partitions without a known end: their leader did not answer.",
            "Above 0 for minutes: partitions are offline, or this broker does not reach others.",
        ),
        gauge(
            "tidelog_group_lag_records",
            "Records before the end that the group has not committed, over its partitions.",
            "Add consumers, up to the number of partitions; find out what each record waits for.",
            GROUP_TENANT,
            GROUP,
        ),
        gauge(
            "tidelog_group_lag_seconds",
            "For how long its partition that is behind longest has been behind.",
            "Growing while records are constant: the consumer is stuck at one record.",
            GROUP_TENANT,
            GROUP,
        ),
        gauge(
            "tidelog_coordinator_standby_bytes",
            "Memory for the offsets of groups that other brokers coordinate, so that this one could take over at once.",
            info("bounded by `tidelog.coordinator.standby.bytes.max`."),
        ),
    ),
)
