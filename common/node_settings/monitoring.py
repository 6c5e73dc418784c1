"""What a node measures beyond its counters, and where it sends samples of its work."""

from dataclasses import dataclass

from common.settings import setting

GROUPS_NAMED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class MonitoringSettings:
    """Settings of metrics that cost something to keep, and of traces."""

    # fmt: off
    groups_max: int = setting("tidelog.metrics.groups.max", "int", 100,
        "Groups that a broker's metrics name, of those that lag most in records or in time; 0 looks at no group.",
        0, GROUPS_NAMED_MAX)
    groups_interval_ms: int = setting("tidelog.metrics.groups.interval.ms", "int", 15_000,
        "How often a broker looks at how far the groups that it coordinates lag.", 1_000, 3_600_000)
    tracing_endpoint: str = setting("tidelog.tracing.endpoint", "string", "",
        "Where a broker sends traces of sampled Produce requests, by OTLP over HTTP, such as "
        "http://collector:4318/v1/traces; empty: nothing is traced.")
    tracing_requests_per_second: float = setting("tidelog.tracing.requests.per.second", "double", 1.0,
        "Produce requests that a broker traces in a second, at most.", 0.001, 100.0)
    # fmt: on
