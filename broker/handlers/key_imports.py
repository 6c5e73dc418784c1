"""ImportKeys (10016): a tenant's groups, from the broker that kept them before a move. Internal listeners only."""

from __future__ import annotations

from broker.coordination.groups.key_store import KeyStore
from broker.coordination.shard import CoordinatorRecord
from broker.requests.context import RequestContext
from common.errors import ErrorCode, ProtocolError
from wire.messages import ImportKeysRequest, ImportKeysResponse, raw_uuid


class ImportKeys:
    """Answered when the records are durable here."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store

    async def handle(self, context: RequestContext, request: ImportKeysRequest) -> ImportKeysResponse:
        records = [CoordinatorRecord(bytes(record.key), bytes(record.value)) for record in request.records]
        topic_id = raw_uuid(request.topic_id)
        try:
            await self._store.take(request.partition_index, request.tenant, request.keys_epoch, topic_id, records)
        except ProtocolError as error:
            return ImportKeysResponse(error_code=error.code)
        return ImportKeysResponse(error_code=ErrorCode.NONE)
