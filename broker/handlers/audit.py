"""AppendAudit (10003): what brokers ship of their journals to the leaders of `__audit`. Internal listeners only."""

from __future__ import annotations

from typing import Any

from broker.audit.topic_host import AuditTopicHost, Entry
from broker.request import RequestContext
from common.errors import ErrorCode, ProtocolError
from wire.messages import AppendAuditResponse


class AppendAudit:
    def __init__(self, host: AuditTopicHost) -> None:
        self._host = host

    async def handle(self, context: RequestContext, request: Any) -> Any:
        """A repeated request is answered like its original."""
        entries = [Entry(one.sequence, one.event) for one in request.events]
        try:
            last = await self._host.append(request.partition_index, request.node_id, request.incarnation, entries)
        except ProtocolError as error:
            return AppendAuditResponse(throttle_time_ms=0, error_code=error.code, last_sequence=-1)
        return AppendAuditResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, last_sequence=last)
