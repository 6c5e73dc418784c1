"""Metrics as clients push them: OTLP, compressed by one of Kafka's codecs.

Both steps are bounded: `decode` refuses what inflates beyond a limit, and `points` is work in slices that ends after
`POINTS_MAX` points. The library is imported on first use, because few brokers need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from broker.telemetry.series import Kind, Labels, Point
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from records.compression import Compression, DamagedData, InflatedTooLarge, decompress

POINTS_MAX = 10_000  # of one push
ELEMENT_COST, POINT_COST = 1, 12  # units of `common.pacing`
ATTRIBUTES_MAX = 32  # more of one resource or point are not read
_DELTA = 1  # AGGREGATION_TEMPORALITY_DELTA


class PushedMetrics(Protocol):
    """OTLP's `MetricsData`, as far as it is read here."""

    @property
    def resource_metrics(self) -> Iterable[Any]: ...


def decode(codec: Compression, data: bytes, bytes_max: int) -> PushedMetrics:
    """In a thread. Raises TELEMETRY_TOO_LARGE, INVALID_RECORD."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData  # noqa: PLC0415

    try:
        decoded: PushedMetrics = MetricsData.FromString(decompress(codec, data, bytes_max))
        return decoded
    except InflatedTooLarge as error:
        raise ProtocolError(ErrorCode.TELEMETRY_TOO_LARGE, str(error)) from error
    except (DamagedData, DecodeError) as error:
        raise ProtocolError(ErrorCode.INVALID_RECORD, f"the metrics cannot be decoded: {error}") from error


def points(data: PushedMetrics, take: Callable[[Point], None]) -> Work[int]:
    """Pass the values of gauges and sums to `take`. Returns how many others there were: histograms, points without a
    value, and those beyond POINTS_MAX."""
    taken = others = 0
    for labels, metric in _metrics(data):
        if metric is None:
            yield ELEMENT_COST
            continue
        kind = metric.WhichOneof("data")
        found = getattr(metric, kind).data_points if kind else ()
        if kind not in ("gauge", "sum") or taken + len(found) > POINTS_MAX:
            others += len(found)
            yield ELEMENT_COST
            continue
        meaning = _kind(metric, kind)
        for one in found:
            value = one.WhichOneof("value")
            if value is None:
                others += 1
            else:
                take(Point(metric.name, labels + _labels(one.attributes), meaning, float(getattr(one, value))))
            yield POINT_COST
        taken += len(found)
    return others


def _metrics(data: PushedMetrics) -> Iterator[tuple[Labels, Any]]:
    """Each metric with its resource's labels; None for an element without metrics, which costs time too."""
    for resource in data.resource_metrics:
        labels = _labels(resource.resource.attributes)
        yield labels, None
        for scope in resource.scope_metrics:
            yield labels, None
            for metric in scope.metrics:
                yield labels, metric


def _kind(metric: Any, kind: str) -> Kind:
    if kind == "gauge" or not metric.sum.is_monotonic:
        return Kind.GAUGE
    return Kind.DELTA if metric.sum.aggregation_temporality == _DELTA else Kind.TOTAL


def _labels(attributes: Any) -> Labels:
    return tuple((one.key, _text(one.value)) for one in attributes[:ATTRIBUTES_MAX])


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    return str(getattr(value, kind)) if kind in ("string_value", "int_value", "double_value") else ""
