"""APIs that brokers call on each other, on internal listeners only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from broker.audit.topic_host import AuditTopicHost, Entry
from broker.coordination.key_store import KeyStore
from broker.coordination.shard import CoordinatorRecord
from broker.coordination.tier.coordinator import TierCoordinator
from broker.requests.context import RequestContext
from common.errors import ErrorCode, ProtocolError
from kraft.image.metadata import MetadataImage
from records.audit_event import EVENT_BYTES_MAX, decode_audit_event
from tiering.shard.shard_protocol import DropPartition, ForgetPartition, RefusalCode, Refused, decode_request, encode
from wire.messages import (
    AppendAuditRequest,
    AppendAuditResponse,
    ImportKeysRequest,
    ImportKeysResponse,
    TierStateRequest,
    TierStateResponse,
    raw_uuid,
)

CALLS_AT_ONCE = 64
REPLY_BYTES_MAX = 16 << 20

Result = TierStateResponse.TierCallResult


class AppendAudit:
    """AppendAudit (10003): brokers send the events of their journals to the leaders of `__audit`."""

    def __init__(self, host: AuditTopicHost) -> None:
        self._host = host

    async def handle(self, context: RequestContext, request: AppendAuditRequest) -> AppendAuditResponse:
        """A repeated request gets the same response as the original. INVALID_REQUEST if an entry is not an event,
        because readers of `__audit` could not skip it."""
        entries = [Entry(one.sequence, one.event) for one in request.events]
        try:
            for entry in entries:
                _check_event(entry)
            last = await self._host.append(request.partition_index, request.node_id, request.incarnation, entries)
        except ProtocolError as error:
            return AppendAuditResponse(throttle_time_ms=0, error_code=error.code, last_sequence=-1)
        return AppendAuditResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, last_sequence=last)


def _check_event(entry: Entry) -> None:
    if len(entry.event) > EVENT_BYTES_MAX:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"event {entry.sequence} has {len(entry.event)} bytes")
    try:
        decode_audit_event(entry.event)
    except ValueError as error:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"event {entry.sequence}: {error}") from error


class ImportKeys:
    """ImportKeys (10016): a tenant's groups or transactional ids, sent by the broker that held them before a move.

    The response is sent when the records are durable here.
    """

    def __init__(self, stores: Sequence[KeyStore], image: Callable[[], MetadataImage]) -> None:
        """`stores`: one for each internal topic with keys that move."""
        self._stores = {store.topic: store for store in stores}
        self._image = image

    async def handle(self, context: RequestContext, request: ImportKeysRequest) -> ImportKeysResponse:
        records = [CoordinatorRecord(bytes(record.key), bytes(record.value)) for record in request.records]
        topic_id = raw_uuid(request.topic_id)
        topic = self._image().topics.get_by_id(topic_id)
        store = None if topic is None else self._stores.get(topic.name)
        if store is None:
            return ImportKeysResponse(error_code=ErrorCode.NOT_COORDINATOR)
        try:
            await store.take(request.partition_index, request.tenant, request.keys_epoch, topic_id, records)
        except ProtocolError as error:
            return ImportKeysResponse(error_code=error.code)
        return ImportKeysResponse(error_code=ErrorCode.NONE)


class TierStateHandler:
    """TierState (10000): requests of partition leaders to the tier shards that this broker hosts.

    The calls of a batch are answered one by one. If the replies grow too large, the caller must retry the remaining
    calls.
    """

    def __init__(self, coordinator: TierCoordinator) -> None:
        self._coordinator = coordinator

    async def handle(self, context: RequestContext, request: TierStateRequest) -> TierStateResponse:
        results: list[Result] = []
        size = 0
        for begin in range(0, len(request.calls), CALLS_AT_ONCE):
            calls = request.calls[begin : begin + CALLS_AT_ONCE]
            if size >= REPLY_BYTES_MAX:
                code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
                results.extend(Result(error_code=code, reply=b"") for _ in calls)
                continue
            answered = await asyncio.gather(*(self._answer(call) for call in calls))
            size += sum(len(result.reply) for result in answered)
            results.extend(answered)
        return TierStateResponse(throttle_time_ms=0, calls=results)

    async def _answer(self, call: TierStateRequest.TierCall) -> Result:
        try:
            request = decode_request(call.request)
        except msgspec.MsgspecError:
            return Result(error_code=ErrorCode.INVALID_REQUEST, reply=b"")
        if isinstance(request, DropPartition | ForgetPartition):  # its host detects deletions itself
            refused = Refused(RefusalCode.INVALID, "only the shard's host may drop a partition")
            return Result(error_code=ErrorCode.NONE, reply=encode(refused))
        try:
            reply = await self._coordinator.call(raw_uuid(call.topic_id), call.partition_index, request)
        except ProtocolError as error:
            return Result(error_code=error.code, reply=b"")
        return Result(error_code=ErrorCode.NONE, reply=encode(reply))
