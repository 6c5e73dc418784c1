"""DescribeProducers 0: the producers that this broker's replica remembers, whether it leads or follows."""

from __future__ import annotations

from broker.partitions.hosted import HostedPartitions
from broker.requests.context import RequestContext
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)

PRODUCER_COST = 4  # units of `common.pacing`

_Topic = DescribeProducersResponse.TopicResponse
_Partition = _Topic.PartitionResponse
_Producer = _Partition.ProducerState


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
            partition = self._hosted.find(topic, index)
        except ProtocolError as error:
            return _Partition(partition_index=index, error_code=error.code, error_message=None, active_producers=[])
        if partition.log.barred is not None:  # they may be from before a truncation; admin clients retry this code
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return _Partition(
                partition_index=index, error_code=code, error_message=partition.log.barred, active_producers=[]
            )
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
