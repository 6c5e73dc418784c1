"""Decoding of pushed metrics: every codec, and bounds on what one push may cost."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from broker.telemetry.payload import POINTS_MAX, PushedMetrics, decode, points
from broker.telemetry.series import Kind, Point
from common.errors import ErrorCode, ProtocolError
from common.pacing import SLICE_COST, at_once
from records.compression import Compression, compress
from tests.broker.otlp import CUMULATIVE, PREFIX, counter, gauge, label, nested

MIB = 1 << 20


def read(data: PushedMetrics) -> tuple[list[Point], int]:
    found: list[Point] = []
    others = at_once(points(data, found.append))
    return found, others


@pytest.mark.parametrize("codec", Compression)
def test_gauges_and_sums_of_every_codec(codec: Compression) -> None:
    data = MetricsData()
    gauge(data, "g", 1.5, topic="t")
    counter(data, "d", 2)
    counter(data, "c", 3, CUMULATIVE)
    label(data.resource_metrics[0].resource, {"client_rack": "r"})
    found, others = read(decode(codec, compress(codec, data.SerializeToString()), MIB))
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


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
def test_a_bomb_is_refused_before_it_is_inflated(codec: Compression) -> None:
    bomb = compress(codec, bytes(64 * MIB)) if codec is not Compression.GZIP else _deep(64)
    assert len(bomb) < 4 * MIB
    with pytest.raises(ProtocolError) as error:
        decode(codec, bomb, MIB)
    assert error.value.code is ErrorCode.TELEMETRY_TOO_LARGE


def _deep(mib: int) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(deflate.compress(bytes(MIB)) for _ in range(mib)) + deflate.flush()


@given(st.sampled_from(Compression), st.binary(max_size=60))
def test_garbage_is_an_invalid_record_or_nothing(codec: Compression, data: bytes) -> None:
    code = ErrorCode.NONE
    try:
        read(decode(codec, data, MIB))
    except ProtocolError as error:
        code = error.code
    assert code in (ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.TELEMETRY_TOO_LARGE)


def _metric_of(points_count: int) -> bytes:
    return nested(0x0A, 0x12, 0x12, 0x2A, content=b"\x0a\x00" * points_count)


WORST: dict[str, Callable[[], bytes]] = {
    "resources": lambda: b"\x0a\x00" * 100_000,
    "scopes": lambda: nested(0x0A, content=b"\x12\x00" * 100_000),
    "metrics": lambda: nested(0x0A, 0x12, content=b"\x12\x00" * 100_000),
    "points": lambda: _metric_of(POINTS_MAX),
    "more points than are read": lambda: _metric_of(POINTS_MAX + 1),
    "attributes": lambda: nested(0x0A, 0x12, 0x12, 0x2A, 0x0A, content=b"\x3a\x00" * 100_000),
}


@pytest.mark.parametrize("what", WORST)
def test_no_step_costs_more_than_a_slice(what: str) -> None:
    taken: list[Point] = []
    work = points(decode(Compression.NONE, WORST[what](), MIB), taken.append)
    costs = list(work)
    assert max(costs) < SLICE_COST / 10
    assert len(taken) <= POINTS_MAX
