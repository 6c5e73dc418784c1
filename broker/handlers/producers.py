"""InitProducerId 0-5, without transactions, and DescribeProducers 0.

InitProducerId returns a new producer id with epoch 0 from this broker's block. There are no transactions: for a
transactional id the response is INVALID_TRANSACTION_TIMEOUT, as if `transaction.max.timeout.ms` were 0. Java's client,
librdkafka, franz-go, sarama, kafka-python and aiokafka treat this as fatal; librdkafka would retry UNSUPPORTED_VERSION
for ever.
DescribeProducers returns the producers that this broker's replica remembers; only the leader answers.
"""

from __future__ import annotations

from broker.coordination.producer_ids import ProducerIds
from broker.partitions.hosted import HostedPartitions
from broker.requests.context import RequestContext
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

PRODUCER_COST = 4  # units of `common.pacing`

_Topic = DescribeProducersResponse.TopicResponse
_Partition = _Topic.PartitionResponse
_Producer = _Partition.ProducerState

NO_TRANSACTIONS = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class InitProducerId:
    def __init__(self, producer_ids: ProducerIds) -> None:
        self._producer_ids = producer_ids

    async def handle(self, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            return _refused(NO_TRANSACTIONS)
        try:
            producer_id = await self._producer_ids.take()
        except ProtocolError as error:
            return _refused(error.code)
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
        )


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(throttle_time_ms=0, error_code=error, producer_id=-1, producer_epoch=-1)


class DescribeProducers:
    def __init__(self, hosted: HostedPartitions) -> None:
        self._hosted = hosted

    def handle(self, context: RequestContext, request: DescribeProducersRequest) -> Work[DescribeProducersResponse]:
        topics = []
        for topic in request.topics:
            rows = []
            for index in dict.fromkeys(topic.partition_indexes):
                rows.append((yield from self._row(topic.name, index)))  # noqa: PERF401  # cannot yield from within
            topics.append(_Topic(name=topic.name, partitions=rows))
        return DescribeProducersResponse(throttle_time_ms=0, topics=topics)

    def _row(self, topic: str, index: int) -> Work[_Partition]:
        yield PRODUCER_COST
        try:
            partition = self._hosted.find_leader(topic, index)
        except ProtocolError as error:
            return _Partition(partition_index=index, error_code=error.code, error_message=None, active_producers=[])
        producers: list[_Producer] = []
        for view in partition.log.producers.views():
            producers.append(
                _Producer(
                    producer_id=view.producer_id,
                    producer_epoch=view.producer_epoch,
                    last_sequence=view.last_sequence,
                    last_timestamp=view.last_timestamp,
                    coordinator_epoch=view.coordinator_epoch,
                    current_txn_start_offset=view.transaction_start_offset,
                )
            )
            yield PRODUCER_COST
        return _Partition(
            partition_index=index, error_code=ErrorCode.NONE, error_message=None, active_producers=producers
        )
