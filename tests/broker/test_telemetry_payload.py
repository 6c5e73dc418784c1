"""Decoding of pushed metrics: every codec, as the protobuf library does it, and bounds on what one push may cost."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from broker.telemetry.payload import FIELDS_MAX, POINTS_MAX, inflate, points
from broker.telemetry.series import (
    LABEL_LENGTH_MAX,
    LABELS_MAX,
    NAME_LENGTH_MAX,
    ClientSeries,
    Kind,
    Point,
    SeriesBounds,
)
from broker.telemetry.subscriptions import Wanted
from common.errors import ErrorCode, ProtocolError
from common.node_settings.telemetry import TelemetrySettings
from common.pacing import SLICE_COST, at_once
from records.compression import Compression, compress
from tests.broker.otlp import CUMULATIVE, PREFIX, counter, gauge, label, nested
from tests.common.call_count import counted_calls

MIB = 1 << 20
CALLS_OF_UNIT = 8  # a unit stands for about a microsecond
ALL = Wanted(("*",), 1_000, 0, 0)


def read(data: bytes | MetricsData, wanted: Wanted = ALL) -> tuple[list[Point], int]:
    found: list[Point] = []
    given = data if isinstance(data, bytes) else data.SerializeToString()
    others = at_once(points(given, wanted, found.append))
    return found, others


@pytest.mark.parametrize("codec", Compression)
def test_gauges_and_sums_of_every_codec(codec: Compression) -> None:
    data = MetricsData()
    gauge(data, "g", 1.5, topic="t")
    counter(data, "d", 2)
    counter(data, "c", 3, CUMULATIVE)
    label(data.resource_metrics[0].resource, {"client_rack": "r"})
    found, others = read(inflate(codec, compress(codec, data.SerializeToString()), MIB))
    rack = ("client_rack", "r")
    assert found == [
        Point(PREFIX + "g", (rack, ("topic", "t")), Kind.GAUGE, 1.5),
        Point(PREFIX + "d", (rack,), Kind.DELTA, 2.0),
        Point(PREFIX + "c", (rack,), Kind.TOTAL, 3.0),
    ]
    assert others == 0


def test_histograms_and_points_without_a_value_are_counted() -> None:
    data = MetricsData()
    gauge(data, "g", 1.0)
    scope = data.resource_metrics[0].scope_metrics[0]
    scope.metrics.add().histogram.data_points.add()
    scope.metrics.add().gauge.data_points.add()
    found, others = read(data)
    assert (len(found), others) == (1, 2)


def test_a_metric_that_was_not_asked_for_is_counted_by_its_points() -> None:
    data = MetricsData()
    for name in ("a.x", "b.x"):
        gauge(data, name, 1.0)
        data.resource_metrics[0].scope_metrics[0].metrics[-1].gauge.data_points.add().as_int = 5
    found, others = read(data, Wanted((PREFIX + "b.",), 1_000, 0, 0))
    assert ([point.metric for point in found], others) == ([PREFIX + "b.x"] * 2, 2)


# against the protobuf library ------------------------------------------------------------------------------

TEXTS = st.sampled_from(["", "t", "größe", "𝄞"])


@st.composite
def attributes(draw: st.DrawFn, holder: Any) -> None:
    for _ in range(draw(st.integers(0, 3))):
        one = holder.attributes.add()
        one.key = draw(TEXTS)
        field = draw(st.sampled_from(["string", "bool", "int", "double", "bytes", "array", ""]))
        if field == "array":
            one.value.array_value.values.add().string_value = "in it"
        elif field:
            values: dict[str, Any] = {
                "string": TEXTS,
                "bool": st.booleans(),
                "int": st.integers(-(1 << 63), (1 << 63) - 1),
                "double": st.floats(allow_nan=False),
                "bytes": st.binary(max_size=3),
            }
            setattr(one.value, f"{field}_value", draw(values[field]))


@st.composite
def metric_of(draw: st.DrawFn, metric: Any) -> None:
    metric.name, metric.unit = draw(TEXTS), draw(TEXTS)
    kind = draw(st.sampled_from(["gauge", "sum", "histogram", "summary", ""]))
    if not kind:
        return
    held = getattr(metric, kind)
    held.SetInParent()
    if kind == "sum":
        held.is_monotonic, held.aggregation_temporality = draw(st.booleans()), draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 3))):
        point = held.data_points.add()
        point.time_unix_nano = draw(st.integers(0, 1 << 62))
        draw(attributes(point))
        if kind in ("gauge", "sum"):
            point.flags = 1
            value = draw(st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False)))
            if value is not None:
                setattr(point, "as_int" if isinstance(value, int) else "as_double", value)


@st.composite
def messages(draw: st.DrawFn) -> MetricsData:
    data = MetricsData()
    for _ in range(draw(st.integers(0, 2))):
        resource = data.resource_metrics.add(schema_url="s")
        draw(attributes(resource.resource))
        for _ in range(draw(st.integers(0, 2))):
            scope = resource.scope_metrics.add()
            scope.scope.name = "scope"
            for _ in range(draw(st.integers(0, 3))):
                draw(metric_of(scope.metrics.add()))
    return data


def by_the_library(data: MetricsData) -> tuple[list[Point], int]:
    def labels(holder: Any) -> tuple[tuple[str, str], ...]:
        return tuple((one.key, text(one.value)) for one in holder.attributes)

    def text(value: Any) -> str:
        kind = value.WhichOneof("value")
        if kind == "bool_value":
            return str(value.bool_value).lower()
        return str(getattr(value, kind)) if kind in ("string_value", "int_value", "double_value") else ""

    found, others = list[Point](), 0
    for resource in data.resource_metrics:
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            kind = metric.WhichOneof("data")
            for point in getattr(metric, kind).data_points if kind else ():
                field = point.WhichOneof("value") if kind in ("gauge", "sum") else None
                if field is None:
                    others += 1
                    continue
                meaning = Kind.GAUGE
                if kind == "sum" and metric.sum.is_monotonic:
                    meaning = Kind.DELTA if metric.sum.aggregation_temporality == 1 else Kind.TOTAL
                value = float(getattr(point, field))
                found.append(Point(metric.name, labels(resource.resource) + labels(point), meaning, value))
    return found, others


@given(messages())
def test_what_is_read_is_what_the_protobuf_library_reads(data: MetricsData) -> None:
    assert read(data) == by_the_library(data)


@given(st.lists(messages(), min_size=2, max_size=3), st.data())
def test_messages_may_come_in_parts_in_any_order(parts: list[MetricsData], data: st.DataObject) -> None:
    """The parts of a message follow one another; the library makes one of them."""

    def one_message(depth: int, part: MetricsData) -> bytes:
        resource = part.resource_metrics[0] if part.resource_metrics else part.resource_metrics.add()
        if depth == 1:
            return bytes(resource.SerializeToString())
        scope = resource.scope_metrics[0] if resource.scope_metrics else resource.scope_metrics.add()
        if depth == 2:
            return bytes(scope.SerializeToString())
        return bytes((scope.metrics[0] if scope.metrics else scope.metrics.add()).SerializeToString())

    depth = data.draw(st.integers(1, 3))
    whole = nested(*[0x0A, 0x12, 0x12][:depth], content=b"".join(one_message(depth, part) for part in parts))
    assert read(whole) == by_the_library(MetricsData.FromString(whole))


def test_the_resource_may_come_last_and_the_name_after_the_points() -> None:
    point = b"\x31" + (7).to_bytes(8, "little")
    metric = nested(0x2A, 0x0A, content=point) + nested(0x0A, content=b"m")
    attribute = nested(0x0A, content=b"k") + nested(0x12, 0x0A, content=b"v")
    resource = nested(0x12, 0x12, content=metric) + nested(0x0A, 0x0A, content=attribute)
    assert read(nested(0x0A, content=resource)) == ([Point("m", (("k", "v"),), Kind.GAUGE, 7.0)], 0)


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
def test_a_bomb_is_refused_before_it_is_inflated(codec: Compression) -> None:
    bomb = compress(codec, bytes(64 * MIB)) if codec is not Compression.GZIP else _deep(64)
    assert len(bomb) < 4 * MIB
    with pytest.raises(ProtocolError) as error:
        inflate(codec, bomb, MIB)
    assert error.value.code is ErrorCode.TELEMETRY_TOO_LARGE


def _deep(mib: int) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(deflate.compress(bytes(MIB)) for _ in range(mib)) + deflate.flush()


@given(st.sampled_from(Compression), st.binary(max_size=60))
def test_garbage_is_an_invalid_record_or_nothing(codec: Compression, data: bytes) -> None:
    code = ErrorCode.NONE
    try:
        read(inflate(codec, data, MIB))
    except ProtocolError as error:
        code = error.code
    assert code in (ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.TELEMETRY_TOO_LARGE)


@given(messages(), st.data())
def test_what_ends_early_is_an_invalid_record_or_less(message: MetricsData, data: st.DataObject) -> None:
    whole = message.SerializeToString()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    found, code = list[Point](), ErrorCode.NONE
    try:
        at_once(points(cut, ALL, found.append))
    except ProtocolError as error:
        code = error.code
    assert code in (ErrorCode.NONE, ErrorCode.INVALID_RECORD)
    assert found == by_the_library(message)[0][: len(found)]


# bounds ----------------------------------------------------------------------------------------------------


def _metric_of(points_count: int, name: bytes = b"", point: bytes = b"") -> bytes:
    return nested(0x0A, 0x12, 0x12, content=nested(0x0A, content=name) + _gauge(points_count, point))


def _gauge(points_count: int, point: bytes) -> bytes:
    return nested(0x2A, content=nested(0x0A, content=point) * points_count)


VALUE = b"\x31" + bytes(8)
NAME = b"org.apache.kafka.m"
ATTRIBUTE = nested(0x3A, content=nested(0x0A, content=b"k" * 900) + nested(0x12, 0x0A, content="é".encode() * 450))
HALF = MIB // 2 - 100  # of two bytes each

WORST: dict[str, Callable[[], bytes]] = {
    "resources": lambda: b"\x0a\x00" * 100_000,
    "scopes": lambda: nested(0x0A, content=b"\x12\x00" * 100_000),
    "metrics": lambda: nested(0x0A, 0x12, content=b"\x12\x00" * 100_000),
    "points": lambda: _metric_of(POINTS_MAX),
    "more points than are read": lambda: _metric_of(POINTS_MAX + 1),
    "attributes": lambda: nested(0x0A, 0x12, 0x12, 0x2A, 0x0A, content=b"\x3a\x00" * 100_000),
    "a long name": lambda: _metric_of(900, "é".encode() * 450_000, VALUE),
    "a name of the longest": lambda: _metric_of(9_000, b"m" * NAME_LENGTH_MAX, VALUE),
    "labels": lambda: _metric_of(45, NAME, VALUE + ATTRIBUTE * LABELS_MAX),
    "a point's fields": lambda: _metric_of(4_000, NAME, VALUE + b"\x2a\x00" * 70),
    "an attribute's fields": lambda: _metric_of(4_000, NAME, VALUE + nested(0x3A, content=b"\x12\x00" * 70)),
    "a text of one attribute": lambda: _metric_of(1, NAME, VALUE + nested(0x3A, 0x12, 0x0A, content=b"t" * 1_000_000)),
    "values within values": lambda: _metric_of(1, NAME, VALUE + nested(0x3A, 0x12, 0x2A, content=b"\x0a\x00" * HALF)),
    "a resource's attributes": lambda: nested(0x0A, content=nested(0x0A, content=b"\x0a\x00" * 500) * 1_000),
    "names": lambda: nested(0x0A, 0x12, 0x12, content=b"\x0a\x00" * 300_000),
    "kinds": lambda: nested(0x0A, 0x12, 0x12, content=b"\x2a\x00\x3a\x00" * 100_000),
    "fields of sums": lambda: nested(0x0A, 0x12, 0x12, 0x3A, content=b"\x10\x01" * 100_000),
}


def costs_of(data: bytes, take: Callable[[Point], None]) -> list[int]:
    """Of the steps; none makes more calls than its cost tells."""
    work, costs = points(data, ALL, take), list[int]()
    while True:
        with counted_calls() as count:
            cost = next(work, None)
        if cost is None:
            return costs
        assert count.calls <= 20 + CALLS_OF_UNIT * cost
        costs.append(cost)


@pytest.mark.parametrize("what", WORST)
def test_no_step_costs_more_than_a_slice(what: str) -> None:
    taken: list[Point] = []
    costs = costs_of(WORST[what](), taken.append)
    assert max(costs) < SLICE_COST / 10
    assert len(taken) <= POINTS_MAX


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x00" * HALF,
        nested(0x0A, content=b"\x12\x00" * HALF),
        nested(0x0A, 0x12, content=b"\x12\x00" * HALF),
        nested(0x0A, 0x12, 0x12, content=b"\x2a\x00" * HALF),
        _metric_of(HALF),
    ],
    ids=["resources", "scopes", "metrics", "gauges", "points"],
)
def test_a_push_of_very_many_fields_is_too_large(data: bytes) -> None:
    costs = list[int]()
    with pytest.raises(ProtocolError) as error:
        costs.extend(points(data, ALL, lambda _: None))
    assert error.value.code is ErrorCode.TELEMETRY_TOO_LARGE
    assert sum(costs) < 2 * FIELDS_MAX


def test_what_clients_push_at_most_is_read() -> None:
    """The Java client has a resource and a scope for each metric; a whole MiB, with labels as it has them."""
    data, count = MetricsData(), 6_500
    for number in range(count):
        resource = data.resource_metrics.add()
        label(resource.resource, {"client_rack": "r"})
        metric = resource.scope_metrics.add().metrics.add(name=f"org.apache.kafka.producer.topic.m{number}")
        point = metric.sum.data_points.add(time_unix_nano=1 << 60, start_time_unix_nano=1 << 60, as_double=1.0)
        label(point, {"topic": "orders", "node_id": "1", "group": "g"})
    assert 0.9 * MIB < data.ByteSize() < MIB
    found, others = read(data)
    assert (len(found), others) == (count, 0)


def test_a_long_name_is_never_decoded() -> None:
    """The library would do so for each point. Also a long text of a label is cut."""
    long = "é".encode() * 450_000
    assert read(_metric_of(9_000, long, VALUE)) == ([], 9_000)
    ((point,), others) = read(_metric_of(1, NAME, VALUE + nested(0x3A, 0x12, 0x0A, content=long)))
    assert LABEL_LENGTH_MAX < len(point.labels[0][1]) < 1_000 and others == 0


@pytest.mark.parametrize("character", ["a", "é", "ä€", "𝄞"])
@pytest.mark.parametrize("length", [LABEL_LENGTH_MAX, LABEL_LENGTH_MAX + 1, 5 * LABEL_LENGTH_MAX])
def test_texts_are_cut_only_where_they_are_too_long(character: str, length: int) -> None:
    text = (character * length)[:length]
    attribute = nested(0x0A, content=b"k") + nested(0x12, 0x0A, content=text.encode())
    ((point,), _) = read(_metric_of(1, NAME, VALUE + nested(0x3A, content=attribute)))
    bounds = SeriesBounds(TelemetrySettings())
    ClientSeries(bounds, "", {}).take(point)
    assert bounds.count == (length <= LABEL_LENGTH_MAX)


def test_more_labels_than_a_series_has_are_counted() -> None:
    few, many = (_metric_of(1, NAME, VALUE + b"\x3a\x00" * count) for count in (LABELS_MAX, LABELS_MAX + 1))
    assert len(read(few)[0]) == 1
    assert read(many) == ([], 1)
