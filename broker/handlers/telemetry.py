"""Metrics of clients (KIP-714): GetTelemetrySubscriptions 0, PushTelemetry 0.

Behaviour: a client asks what operators want to know, by the subscriptions that match it, and pushes that once an
interval. Instance ids of different tenants are different clients. Errors are those of Apache Kafka 4.2.
"""

from __future__ import annotations

import random
from uuid import UUID

from broker.requests.context import RequestContext
from broker.telemetry.subscriptions import ATTRIBUTE_LENGTH_MAX, Client
from broker.telemetry.telemetry import ClientTelemetry, Push
from common.errors import ErrorCode, ProtocolError
from common.identifiers import ONE_UUID, ZERO_UUID, random_uuid
from common.pacing import Work
from records.compression import Compression
from wire.messages import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
    raw_uuid,
    schema_uuid,
)

ACCEPTED = [Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY]
"""In the order in which clients should choose."""


class TelemetryHandlers:
    """`max_bytes`: of one push."""

    def __init__(self, telemetry: ClientTelemetry, rng: random.Random, max_bytes: int) -> None:
        self._telemetry = telemetry
        self._random = rng
        self._max_bytes = max_bytes

    def get_telemetry_subscriptions(
        self, context: RequestContext, request: GetTelemetrySubscriptionsRequest
    ) -> Work[GetTelemetrySubscriptionsResponse]:
        tenant = context.tenant or ""
        given = request.client_instance_id
        client = _client(context, given if given is not None else schema_uuid(random_uuid(self._random)))
        while given is None and self._telemetry.knows(tenant, client):
            client = _client(context, schema_uuid(random_uuid(self._random)))
        try:
            wanted = yield from self._telemetry.subscription(tenant, client)
        except ProtocolError as error:
            return GetTelemetrySubscriptionsResponse(error_code=error.code)
        return GetTelemetrySubscriptionsResponse(
            error_code=ErrorCode.NONE,
            client_instance_id=client.instance_id,
            subscription_id=wanted.subscription_id,
            accepted_compression_types=[int(codec) for codec in ACCEPTED],
            push_interval_ms=wanted.interval_ms,
            telemetry_max_bytes=self._max_bytes,
            delta_temporality=True,
            requested_metrics=list(wanted.metrics),
        )

    async def push_telemetry(self, context: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
        instance_id = request.client_instance_id
        if instance_id is None or raw_uuid(instance_id) in (ZERO_UUID, ONE_UUID):
            return PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
        push = Push(request.subscription_id, request.terminating, request.compression_type, bytes(request.metrics))
        try:
            await self._telemetry.push(context.tenant or "", _client(context, instance_id), push, context.paced)
        except ProtocolError as error:
            return PushTelemetryResponse(error_code=error.code)
        return PushTelemetryResponse(error_code=ErrorCode.NONE)


def _client(context: RequestContext, instance_id: UUID) -> Client:
    """Its names are cut where no pattern matches any more, so that a client takes little memory."""
    texts = (context.client_id or "", *context.session.software)
    client_id, name, version = (text[: ATTRIBUTE_LENGTH_MAX + 1] for text in texts)
    return Client(instance_id, client_id, name, version, context.client_host, context.session.client_port)
