"""AppendAudit (10003): what brokers ship of their journals to the leaders of `__audit`. Internal listeners only."""

from __future__ import annotations

from broker.audit.topic_host import AuditTopicHost, Entry
from broker.requests.context import RequestContext
from common.errors import ErrorCode, ProtocolError
from records.audit_event import EVENT_BYTES_MAX, decode_audit_event
from wire.messages import AppendAuditRequest, AppendAuditResponse


class AppendAudit:
    def __init__(self, host: AuditTopicHost) -> None:
        self._host = host

    async def handle(self, context: RequestContext, request: AppendAuditRequest) -> AppendAuditResponse:
        """A repeated request is answered like its original, and INVALID_REQUEST when something in it is no event: who
        reads `__audit` later could not pass over it."""
        entries = [Entry(one.sequence, one.event) for one in request.events]
        try:
            for entry in entries:
                _check(entry)
            last = await self._host.append(request.partition_index, request.node_id, request.incarnation, entries)
        except ProtocolError as error:
            return AppendAuditResponse(throttle_time_ms=0, error_code=error.code, last_sequence=-1)
        return AppendAuditResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, last_sequence=last)


def _check(entry: Entry) -> None:
    if len(entry.event) > EVENT_BYTES_MAX:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"event {entry.sequence} has {len(entry.event)} bytes")
    try:
        decode_audit_event(entry.event)
    except ValueError as error:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"event {entry.sequence}: {error}") from error
