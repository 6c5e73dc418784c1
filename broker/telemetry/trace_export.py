"""Sends traces of sampled requests to a collector: OTLP over HTTP, in a thread, a few seconds' worth in a request.

A collector that is slow or away holds nothing up: what it does not take is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.telemetry.request_trace import RequestTrace, RequestTracer, Span
from common.errors import known_error
from common.lifecycle import duty, end_task
from common.metrics import Metrics
from common.node_settings.monitoring import MonitoringSettings
from common.ports import Ports
from common.web_document import address_of, post_document

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
POST_TIMEOUT_S = 5.0
COMPLAINT_S = 300.0  # between two log lines about a collector that does not take traces
CONTENT_TYPE = "application/x-protobuf"
SERVICE = "tidelog"
SENT, DROPPED, REFUSED = "sent", "dropped", "refused"

Post = Callable[[str, bytes, str, float], int]


class TraceExport:
    """`tracer` is None without an endpoint. Owns one task between `start` and `stop`."""

    def __init__(self, ports: Ports, settings: MonitoringSettings, node_id: int, post: Post = post_document) -> None:
        self._ports = ports
        self._endpoint = settings.tracing_endpoint
        self._node_id = node_id
        self._post = post
        self.tracer: RequestTracer | None = None
        if self._endpoint:
            self.tracer = RequestTracer(ports.random, settings.tracing_requests_per_second)
        self._counts = {SENT: 0, DROPPED: 0, REFUSED: 0}
        self._complained_s = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self.tracer is not None:
            self._task = asyncio.create_task(self._run(self.tracer), name=duty("traces"))

    async def stop(self) -> None:
        task, self._task = self._task, None
        await end_task(task)

    def register(self, metrics: Metrics) -> None:
        metrics.family("tidelog_trace_spans_total", self._outcomes)

    def _outcomes(self) -> list[tuple[dict[str, str], float]]:
        if self.tracer is None:
            return []
        counts = self._counts | {DROPPED: self._counts[DROPPED] + self.tracer.dropped}
        return [({"outcome": outcome}, float(count)) for outcome, count in counts.items()]

    async def _run(self, tracer: RequestTracer) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            traces = tracer.take()
            if traces:
                await self.send(traces)

    async def send(self, traces: Sequence[RequestTrace]) -> None:
        """One request, without a retry."""
        clock = self._ports.clock
        epoch_s = clock.wall_ms() / 1000 - clock.monotonic()
        spans = sum(len(trace.spans) for trace in traces)
        try:
            status = await asyncio.to_thread(self._sent, traces, epoch_s)
        except (OSError, ValueError) as error:
            self._counts[DROPPED] += spans
            self._complain(str(error))
            return
        is_taken = 200 <= status < 300
        self._counts[SENT if is_taken else REFUSED] += spans
        if not is_taken:
            self._complain(f"HTTP status {status}")

    def _sent(self, traces: Sequence[RequestTrace], epoch_s: float) -> int:
        data = encode(traces, self._node_id, epoch_s)
        return self._post(self._endpoint, data, CONTENT_TYPE, POST_TIMEOUT_S)

    def _complain(self, cause: str) -> None:
        now = self._ports.clock.monotonic()
        if now - self._complained_s >= COMPLAINT_S:
            self._complained_s = now
            logger.warning("traces are not taken", extra={"endpoint": address_of(self._endpoint), "cause": cause})


def encode(traces: Sequence[RequestTrace], node_id: int, epoch_s: float) -> bytes:
    """ExportTraceServiceRequest; `epoch_s` is when the monotonic clock was 0, in seconds since 1970. In a thread."""
    # imported on first use, because few brokers need it
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: PLC0415
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope  # noqa: PLC0415
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource  # noqa: PLC0415
    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans  # noqa: PLC0415

    instance = {"service.name": SERVICE, "service.instance.id": f"broker-{node_id}"}
    made = [_span(trace, span, epoch_s) for trace in traces for span in trace.spans]
    scope = ScopeSpans(scope=InstrumentationScope(name=SERVICE), spans=made)
    resource = ResourceSpans(resource=Resource(attributes=_attributes(instance)), scope_spans=[scope])
    encoded: bytes = ExportTraceServiceRequest(resource_spans=[resource]).SerializeToString()
    return encoded


def _span(trace: RequestTrace, span: Span, epoch_s: float) -> Any:
    """The whole request is a server's span, with all that is known of it."""
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan  # noqa: PLC0415
    from opentelemetry.proto.trace.v1.trace_pb2 import Status  # noqa: PLC0415

    is_whole = not span.parent
    status = None
    if is_whole and trace.error:
        status = Status(code=Status.STATUS_CODE_ERROR, message=known_error(trace.error).name)
    return OtlpSpan(
        trace_id=trace.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent,
        name=span.name,
        kind=OtlpSpan.SPAN_KIND_SERVER if is_whole else OtlpSpan.SPAN_KIND_INTERNAL,
        start_time_unix_nano=int((epoch_s + span.began) * 1e9),
        end_time_unix_nano=int((epoch_s + span.ended) * 1e9),
        attributes=_attributes(trace.attributes if is_whole else {}),
        status=status,
    )


def _attributes(values: Mapping[str, str | int]) -> list[Any]:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue  # noqa: PLC0415

    return [
        KeyValue(key=name, value=AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value))
        for name, value in values.items()
    ]
