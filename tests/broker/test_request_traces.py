"""Traces of sampled Produce requests: what is noted, what is sampled, and what a collector gets."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from broker.telemetry.request_trace import QUEUE_MAX, TEXT_LENGTH_MAX, RequestTracer
from broker.telemetry.trace_export import TraceExport, encode
from common.errors import ErrorCode
from common.metrics import Metrics
from common.node_settings.monitoring import MonitoringSettings
from tests.broker.replication_lab import TOPIC, Lab, batch, produce
from tests.virtual_time import lab_ports

ENDPOINT = "http://collector.invalid:4318/v1/traces"


def traced(tracer: RequestTracer, now: float, *, error: int = 0, answered_first: bool = False) -> None:
    trace = tracer.begin(now)
    assert trace is not None
    if answered_first:
        trace.settled(now + 0.001, error)
        trace.replied(now + 0.002)
    trace.appended(now + 0.003, {"messaging.client.id": "c" * 1_000, "tidelog.acks": -1})
    if not answered_first:
        trace.settled(now + 0.010, error)
        trace.replied(now + 0.011)


def test_at_most_so_many_requests_of_a_second_are_sampled() -> None:
    tracer = RequestTracer(random.Random(1), 10.0)
    sampled = [tracer.begin(number / 1_000) is not None for number in range(10_000)]
    assert 60 <= sum(sampled) <= 101
    assert all(sum(sampled[at : at + 1_000]) <= 10 for at in range(0, 10_000, 1_000))


@pytest.mark.parametrize("answered_first", [False, True])
def test_spans_follow_one_another_within_their_request(answered_first: bool) -> None:
    tracer = RequestTracer(random.Random(2), 100.0)
    traced(tracer, 5.0, error=int(ErrorCode.NOT_ENOUGH_REPLICAS), answered_first=answered_first)
    (trace,) = tracer.take()
    assert tracer.take() == []
    (resource,) = ExportTraceServiceRequest.FromString(encode([trace], 3, 1_000.0)).resource_spans
    spans = list(resource.scope_spans[0].spans)
    whole, *parts = spans
    assert [span.name for span in spans] == ["Produce", "append", "commit", "reply"]
    assert {span.trace_id for span in spans} == {trace.trace_id} and len({span.span_id for span in spans}) == 4
    assert whole.parent_span_id == b"" and {span.parent_span_id for span in parts} == {whole.span_id}
    assert parts[0].start_time_unix_nano == whole.start_time_unix_nano == 1_005_000_000_000
    for before, after in itertools.pairwise(parts):
        assert before.start_time_unix_nano <= before.end_time_unix_nano == after.start_time_unix_nano
    assert parts[-1].end_time_unix_nano == whole.end_time_unix_nano
    attributes = {one.key: one.value for one in whole.attributes}
    assert attributes["messaging.client.id"].string_value == "c" * TEXT_LENGTH_MAX
    assert attributes["tidelog.acks"].int_value == -1
    assert whole.status.message == "NOT_ENOUGH_REPLICAS"
    assert {one.key: one.value.string_value for one in resource.resource.attributes} == {
        "service.name": "tidelog",
        "service.instance.id": "broker-3",
    }


def test_traces_that_nothing_takes_are_dropped_and_counted() -> None:
    tracer = RequestTracer(random.Random(3), 100.0)
    for number in range(QUEUE_MAX + 5):
        traced(tracer, float(number))
    assert (len(tracer.take()), tracer.dropped) == (QUEUE_MAX, 5 * 4)


@pytest.mark.virtual_time
@pytest.mark.parametrize(("status", "outcome"), [(200, "sent"), (503, "refused"), (None, "dropped")])
async def test_each_outcome_is_counted(tmp_path: Path, status: int | None, outcome: str) -> None:
    posted: list[tuple[str, str]] = []

    def post(url: str, data: bytes, content_type: str, timeout_s: float) -> int:
        posted.append((url, content_type))
        if status is None:
            raise OSError("no route")
        return status

    export = TraceExport(lab_ports(tmp_path), MonitoringSettings(tracing_endpoint=ENDPOINT), 0, post)
    assert export.tracer is not None
    traced(export.tracer, 0.0)
    await export.send(export.tracer.take())
    metrics = Metrics()
    export.register(metrics)
    assert posted == [(ENDPOINT, "application/x-protobuf")]
    lines = [line for line in metrics.text().decode().splitlines() if line.endswith(" 4.0")]
    assert lines == [f'tidelog_trace_spans_total{{outcome="{outcome}"}} 4.0']


@pytest.mark.virtual_time
async def test_an_endpoint_that_is_no_address_drops_traces_and_ends_nothing(tmp_path: Path) -> None:
    export = TraceExport(lab_ports(tmp_path), MonitoringSettings(tracing_endpoint="http://[::1:4318/v1/traces"), 0)
    assert export.tracer is not None
    traced(export.tracer, 0.0)
    await export.send(export.tracer.take())
    metrics = Metrics()
    export.register(metrics)
    assert 'tidelog_trace_spans_total{outcome="dropped"} 4.0' in metrics.text().decode()


@pytest.mark.virtual_time
async def test_a_broker_traces_what_its_clients_send(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.monitoring = MonitoringSettings(tracing_endpoint=ENDPOINT, tracing_requests_per_second=100.0)
    async with lab:
        lab.controller.create_topic((0, 1, 2))
        tracer = lab[0].plane.traces.tracer
        assert tracer is not None
        client = await lab[0].connect()
        for acks in (-1, 1):
            assert (await produce(client, batch(b"v"), acks=acks)).error_code == 0
            await asyncio.sleep(0.1)  # until the next request may be sampled, and before traces are sent
        committed, written = tracer.take()
        for trace, acks in ((committed, -1), (written, 1)):
            assert trace.attributes["messaging.destination.name"] == TOPIC
            assert (trace.attributes["tidelog.acks"], trace.attributes["tidelog.partitions"]) == (acks, 1)
            assert [span.name for span in trace.spans] == ["Produce", "append", "commit", "reply"]
