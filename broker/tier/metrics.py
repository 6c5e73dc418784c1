"""Metrics of the tier."""

from __future__ import annotations

from broker.tier.service import TierService
from common.metrics import Metrics, counted


def register_tier_metrics(metrics: Metrics, service: TierService) -> None:
    """Register metrics, named after Kafka's RemoteCopy… and RemoteDelete… metrics."""
    copied, deleted = service.copier.counts, service.deleter.counts
    metrics.gauge("tidelog_tier_partitions", lambda: len(service.led))
    metrics.family(
        "tidelog_tier_unclaimed_partitions", lambda: counted(list(service.led), lambda led: not led.reconciled)
    )
    metrics.gauge("tidelog_tier_copy_lag_bytes", lambda: service.copy_lag.bytes)
    metrics.gauge("tidelog_tier_copy_lag_seconds", lambda: service.copy_lag.waiting_s)
    metrics.gauge("tidelog_tier_undecided_bytes", lambda: service.copy_lag.undecided_bytes)
    metrics.counter("tidelog_tier_copied_segments_total", lambda: copied.segments)
    metrics.counter("tidelog_tier_copied_bytes_total", lambda: copied.bytes)
    metrics.counter("tidelog_tier_copy_failures_total", lambda: copied.failures)
    metrics.gauge("tidelog_tier_refused_since_timestamp_seconds", lambda: copied.refused_since_ms / 1000)
    metrics.counter("tidelog_tier_deleted_segments_total", lambda: deleted.segments)
    metrics.counter("tidelog_tier_deleted_bytes_total", lambda: deleted.bytes)
    metrics.counter("tidelog_tier_delete_failures_total", lambda: deleted.failures)  # fmt: skip
    metrics.counter("tidelog_tier_replicas_started_again_total", lambda: service.starts.repeated)
    metrics.counter("tidelog_tier_replicas_started_total", lambda: service.started_from_tier)
