"""Service level objectives, and the alarms when their error budgets burn: several windows, several rates.

An alarm wants a long and a short window above its rate: the long one for how much is lost, the short one so that the
alarm ends soon after its cause. Rates and windows are those that practice has settled on: 2 % of a month's budget in an
hour or 5 % in six page somebody, 10 % in a day or three days make a ticket.
"""

from __future__ import annotations

from typing import NamedTuple

WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
PAGE = (("1h", "5m", 14.4), ("6h", "30m", 6.0))
TICKET = (("1d", "2h", 3.0), ("3d", "6h", 1.0))
BUDGET = "tidelog:slo_budget:ratio"
PRODUCE_FAULTS = (
    "NOT_ENOUGH_REPLICAS|NOT_ENOUGH_REPLICAS_AFTER_APPEND|REQUEST_TIMED_OUT|KAFKA_STORAGE_ERROR|UNKNOWN_SERVER_ERROR"
)
FETCH_FAULTS = "KAFKA_STORAGE_ERROR|OFFSET_NOT_AVAILABLE|CORRUPT_MESSAGE|UNKNOWN_SERVER_ERROR"
QUICK_S, TIER_LATE_S = "0.1", 900


class Objective(NamedTuple):
    """`errors` is the share of what went wrong within WINDOW, from 0 to 1; `budget` the share that may."""

    slo: str
    alarm: str
    text: str
    budget: float
    errors: str


BASES = {
    "tidelog:partitions_offline:ratio": "max(tidelog_cluster_offline_partitions / "
    "clamp_min(tidelog_cluster_partitions, 1))",
    "tidelog:tier_late:bool": f"max(tidelog_tier_copy_lag_seconds > bool {TIER_LATE_S})",
}
"""What objectives of states are averages of."""

OBJECTIVES = (
    Objective(
        "produce_availability",
        "TidelogProduceAvailability",
        "Produce requests that fail through no fault of the client: 99.9 % succeed.",
        0.001,
        f'(sum(rate(tidelog_produce_failures_total{{error=~"{PRODUCE_FAULTS}"}}[WINDOW])) or vector(0))'
        " / clamp_min(sum(rate(tidelog_produce_latency_seconds_count[WINDOW])), 0.001)",
    ),
    Objective(
        "produce_latency",
        "TidelogProduceLatency",
        "Produce requests that take longer than 100 ms: 99 % are quicker.",
        0.01,
        "(sum(rate(tidelog_produce_latency_seconds_count[WINDOW])) - "
        f'sum(rate(tidelog_produce_latency_seconds_bucket{{le="{QUICK_S}"}}[WINDOW])))'
        " / clamp_min(sum(rate(tidelog_produce_latency_seconds_count[WINDOW])), 0.001)",
    ),
    Objective(
        "fetch_availability",
        "TidelogFetchAvailability",
        "Fetch requests that fail through no fault of the client: 99.9 % succeed.",
        0.001,
        f'(sum(rate(tidelog_fetch_failures_total{{error=~"{FETCH_FAULTS}"}}[WINDOW])) or vector(0))'
        " / clamp_min(sum(rate(tidelog_fetch_responses_total[WINDOW])), 0.001)",
    ),
    Objective(
        "partitions_online",
        "TidelogPartitionsOnline",
        "Partitions without a leader: 99.99 % of partitions and time have one.",
        0.0001,
        "avg_over_time(tidelog:partitions_offline:ratio[WINDOW])",
    ),
    Objective(
        "fairness",
        "TidelogFairness",
        "Tenants that wait although they use less than their quotas: 99.9 % of the time the worst one does not.",
        0.001,
        "clamp_max(max(sum by (tenant) (rate(tidelog_tenant_unfair_throttle_seconds_total[WINDOW]))) or vector(0), 1)",
    ),
    Objective(
        "tier_freshness",
        "TidelogTierFreshness",
        "Closed segments that wait for longer than 15 minutes to be copied to the tier: 99 % of the time none does.",
        0.01,
        "avg_over_time(tidelog:tier_late:bool[WINDOW])",
    ),
)


def series(window: str) -> str:
    return f"tidelog:slo_errors:ratio_rate{window}"


def burns(objective: Objective, rates: tuple[tuple[str, str, float], ...]) -> str:
    """Whether the budget burns at one of these rates."""
    chosen = f'{{slo="{objective.slo}"}}'
    return " or ".join(
        f"({series(long)}{chosen} > {rate:g} * {objective.budget:g} and "
        f"{series(short)}{chosen} > {rate:g} * {objective.budget:g})"
        for long, short, rate in rates
    )
