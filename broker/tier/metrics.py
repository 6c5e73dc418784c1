"""Metrics of the tier."""

from __future__ import annotations

from broker.tier.service import TierService
from common.metrics import Metrics


def register_tier_metrics(metrics: Metrics, service: TierService) -> None:
    """Register metrics, named after Kafka's RemoteCopy… and RemoteDelete… metrics."""
    copied, deleted = service.copier.counts, service.deleter.counts
    metrics.gauge("tidelog_tier_partitions", "Led partitions that are tiered.", lambda: len(service.led))
    metrics.gauge(
        "tidelog_tier_unclaimed_partitions",
        "Led tiered partitions whose claim is not answered: nothing of them is copied, deleted or read back.",
        lambda: sum(not led.reconciled for led in service.led),
    )
    metrics.gauge(
        "tidelog_tier_copy_lag_bytes",
        "Bytes of closed segments that the tier does not hold yet.",
        lambda: service.copy_lag.bytes,
    )
    metrics.counter("tidelog_tier_copied_segments_total", "Segments copied.", lambda: copied.segments)
    metrics.counter("tidelog_tier_copied_bytes_total", "Bytes of objects written.", lambda: copied.bytes)
    metrics.counter(
        "tidelog_tier_copy_failures_total",
        "Attempts to copy a segment that failed, at reading it, at uploading it or at writing the tier's state.",
        lambda: copied.failures,
    )
    metrics.gauge(
        "tidelog_tier_refused_since_timestamp_seconds",
        "Since when, in seconds since 1970, the object store has taken nothing; 0 while it does.",
        lambda: copied.refused_since_ms / 1000,
    )
    metrics.counter("tidelog_tier_deleted_segments_total", "Segments deleted.", lambda: deleted.segments)
    metrics.counter("tidelog_tier_deleted_bytes_total", "Bytes of objects deleted.", lambda: deleted.bytes)
    metrics.counter("tidelog_tier_delete_failures_total", "Deletions that failed and were tried again.",
                    lambda: deleted.failures)  # fmt: skip
    metrics.counter(
        "tidelog_tier_replicas_started_again_total",
        "Replicas that began once more where they had begun before: their leader's log contradicts the tier.",
        lambda: service.starts.repeated,
    )
    metrics.counter(
        "tidelog_tier_replicas_started_total",
        "Replicas that began where the tier ends.",
        lambda: service.started_from_tier,
    )
