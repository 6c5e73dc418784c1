"""What brokers have reported of their clients' use, as plain rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.admin.admin_client import error_text
from tidelog.admin.replica_moves import Refused

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient
    from wire.messages import DescribeUsageResponse

    _Broker = DescribeUsageResponse.DescribedBrokerUsage

OPERATORS = "-"
"""Shown in place of a tenant's name for the clients of operators' listeners."""


def described(client: AdminClient, *, tenants: bool, partitions: bool) -> tuple[bool, list[dict[str, Any]]]:
    """Whether every live broker's rates are known, and a row for each broker. A rate is None while it is unknown.

    Raises Refused with what the cluster said, and KafkaError.
    """
    from wire.messages import DescribeUsageRequest  # noqa: PLC0415

    request = DescribeUsageRequest(brokers=None, include_tenants=tenants, include_partitions=partitions)
    response = client.send(request)
    if response.error_code:
        row = {"error_code": response.error_code, "error_message": response.error_message}
        raise Refused(error_text(row) or "refused")
    return response.is_known, sorted((_row(broker) for broker in response.brokers), key=lambda row: int(row["broker"]))


def _row(broker: _Broker) -> dict[str, Any]:
    return {
        "broker": broker.broker_id,
        "epoch": broker.broker_epoch,
        "known": broker.is_known,
        "round": broker.round,
        "age_ms": broker.age_ms,
        "uptime_ms": broker.uptime_ms,
        "connections": broker.connections,
        "bytes_in": broker.bytes_in,
        "bytes_out": broker.bytes_out,
        "requests": broker.requests,
        "busy_ns": broker.busy_ns,
        "cpu_ms": broker.cpu_ms,
        "moved_bytes": broker.moved_bytes,
        "disk_used_bytes": broker.disk_used_bytes,
        "disk_size_bytes": broker.disk_size_bytes,
        "in_rate": _rate(broker.in_rate),
        "out_rate": _rate(broker.out_rate),
        "request_rate": _rate(broker.request_rate),
        "busy_share": _rate(broker.busy_share),
        "load": _rate(broker.load),
        "queue_wait_ms": None if broker.queue_wait < 0 else round(broker.queue_wait * 1000, 3),
        "loop_busy": _rate(broker.loop_busy),
        "cpu_share": _rate(broker.cpu_share),
        "moved_rate": _rate(broker.moved_rate),
        "tenants": [_tenant(row) for row in broker.tenants],
        "partitions": [
            {
                "topic": row.topic,
                "partition": row.partition_index,
                "in_rate": _rate(row.in_rate),
                "out_rate": _rate(row.out_rate),
                "load": _rate(row.load),
            }
            for row in broker.partitions
        ],
        "topics": [
            {"topic": row.topic, "in_rate": _rate(row.in_rate), "out_rate": _rate(row.out_rate)}
            for row in broker.topics
        ],
    }


def _tenant(row: _Broker.DescribedTenantUsage) -> dict[str, Any]:
    return {
        "tenant": row.tenant_name or row.tenant or OPERATORS,
        "id": row.tenant,
        "connections": row.connections,
        "attempts": row.attempts,
        "bytes_in": row.bytes_in,
        "bytes_out": row.bytes_out,
        "requests": row.requests,
        "busy_ns": row.busy_ns,
        "throttled_ms": {one.reason: one.ms for one in row.throttled},
        "in_rate": _rate(row.in_rate),
        "out_rate": _rate(row.out_rate),
        "request_rate": _rate(row.request_rate),
        "busy_share": _rate(row.busy_share),
        "load": _rate(row.load),
    }


def _rate(value: float) -> float | None:
    return None if value < 0 else round(value, 3)
