"""Reports of clients' use, as brokers send them."""

from __future__ import annotations

from typing import Any

from wire.messages import ReportUsageRequest, schema_uuid


def report(broker_id: int, broker_epoch: int, round_number: int = 1, uptime_ms: int = 5_000, **fields: Any) -> Any:
    """A round of one piece; `fields` are the request's."""
    empty: dict[str, Any] = {"piece": 0, "is_last": True, "tenants": [], "partitions": [], "topics": [], "sizes": []}
    return ReportUsageRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        round=round_number,
        uptime_ms=uptime_ms,
        **(empty | {"interval_ms": 5_000, "disk_used_bytes": -1, "disk_size_bytes": -1} | fields),
    )


def tenant_row(tenant: str, bytes_in: int, **fields: Any) -> Any:
    return ReportUsageRequest.TenantUsageReport(tenant=tenant, bytes_in=bytes_in, **({"throttled": []} | fields))


def partition_row(topic_id: bytes, bytes_in: int) -> Any:
    """Partition 0."""
    return ReportUsageRequest.PartitionUsageReport(topic_id=schema_uuid(topic_id), bytes_in=bytes_in)


def size_row(topic_id: bytes, size: int) -> Any:
    """Partition 0."""
    return ReportUsageRequest.ReplicaSizeReport(topic_id=schema_uuid(topic_id), bytes=size)


def topic_row(topic_id: bytes, bytes_in: int) -> Any:
    return ReportUsageRequest.TopicUsageReport(topic_id=schema_uuid(topic_id), bytes_in=bytes_in)
