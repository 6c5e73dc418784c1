"""Allocates blocks of producer ids to brokers, never the same id twice. No I/O."""

from __future__ import annotations

from common.decision import Decision
from common.errors import ErrorCode
from common.settings import LONG_MAX
from kraft.batches import MetadataRecord
from kraft.image.metadata import MetadataImage
from kraft.records import ProducerIdsRecord
from wire.messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse

BLOCK_SIZE = 1000


def decide_allocate_producer_ids(
    image: MetadataImage, request: AllocateProducerIdsRequest
) -> Decision[MetadataRecord, AllocateProducerIdsResponse]:
    """AllocateProducerIds (67)."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        return Decision(AllocateProducerIdsResponse(error_code=int(ErrorCode.BROKER_ID_NOT_REGISTERED)))
    if broker.epoch != request.broker_epoch:
        return Decision(AllocateProducerIdsResponse(error_code=int(ErrorCode.STALE_BROKER_EPOCH)))
    start = image.next_producer_id
    if start > LONG_MAX - BLOCK_SIZE:
        return Decision(AllocateProducerIdsResponse(error_code=int(ErrorCode.UNKNOWN_SERVER_ERROR)))
    reply = AllocateProducerIdsResponse(error_code=0, producer_id_start=start, producer_id_len=BLOCK_SIZE)
    return Decision(reply, [ProducerIdsRecord(broker.broker_id, broker.epoch, start + BLOCK_SIZE)])
