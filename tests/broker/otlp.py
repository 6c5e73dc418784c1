"""OTLP as clients push it, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

PREFIX = "org.apache.kafka."
DELTA, CUMULATIVE = 1, 2


def gauge(data: MetricsData, name: str, value: float, **labels: str) -> None:
    point = _metric(data, name).gauge.data_points.add()
    point.as_double = value
    label(point, labels)


def counter(data: MetricsData, name: str, value: int, temporality: int = DELTA, **labels: str) -> None:
    metric = _metric(data, name)
    metric.sum.is_monotonic = True
    metric.sum.aggregation_temporality = temporality
    point = metric.sum.data_points.add()
    point.as_int = value
    label(point, labels)


def label(holder: Any, labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        attribute = holder.attributes.add()
        attribute.key, attribute.value.string_value = key, value


def _metric(data: MetricsData, name: str) -> Any:
    resource = data.resource_metrics[0] if data.resource_metrics else data.resource_metrics.add()
    scope = resource.scope_metrics[0] if resource.scope_metrics else resource.scope_metrics.add()
    metric = scope.metrics.add()
    metric.name = PREFIX + name
    return metric


def nested(*tags: int, content: bytes) -> bytes:
    """Bytes within messages within messages, by the tags of their fields."""
    for tag in reversed(tags):
        length, size = b"", len(content)
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        content = bytes([tag]) + length + bytes([size]) + content
    return content
