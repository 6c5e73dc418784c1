"""ListOffsets: v1-11. Earliest, latest, by time, of the largest timestamp, local and tiered.

Behaviour: only the leader answers. Latest is the high watermark, or the last stable offset for readers of committed
transactions; until the high watermark has reached the leader's own epoch it is OFFSET_NOT_AVAILABLE, because it may
lie below what the last leader showed (KIP-207). A topic without a tier has its earliest local offset at the log start
and no tiered offset (KIP-405). Records above what may be shown are not found.

Versions: LEADER_NOT_AVAILABLE instead of OFFSET_NOT_AVAILABLE below v5, leader epochs from v4 on.
"""

from __future__ import annotations

import asyncio
from typing import Any

from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from broker.request import RequestContext
from common.errors import ErrorCode, ProtocolError
from wire.messages import ListOffsetsResponse

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
NONE_FOUND = (-1, -1, -1)
READ_COMMITTED = 1
OFFSET_NOT_AVAILABLE_FROM = 5
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}

_Topic = ListOffsetsResponse.ListOffsetsTopicResponse
_Partition = _Topic.ListOffsetsPartitionResponse


class ListOffsets:
    def __init__(self, hosted: HostedPartitions) -> None:
        self._hosted = hosted

    async def handle(self, context: RequestContext, request: Any) -> Any:
        """Answer per partition. A replica's question is refused outside the internal listener."""
        if request.replica_id >= 0 and not context.internal:
            refusal = ProtocolError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        else:
            refusal = None
        asked: dict[tuple[str, int], int] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                asked[key] = asked.get(key, 0) + 1
        topics = []
        for topic in request.topics:
            rows = []
            for partition in topic.partitions:
                try:
                    if refusal is not None:
                        raise refusal
                    if asked[topic.name, partition.partition_index] > 1:
                        raise ProtocolError(ErrorCode.INVALID_REQUEST)
                    found = await self._find(context, request, topic.name, partition)
                    rows.append(_row(partition.partition_index, ErrorCode.NONE, found))
                except ProtocolError as error:
                    rows.append(_row(partition.partition_index, _for_version(error.code, context), NONE_FOUND))
            topics.append(_Topic(name=topic.name, partitions=rows))
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    async def _find(self, context: RequestContext, request: Any, topic: str, asked: Any) -> tuple[int, int, int]:
        timestamp = asked.timestamp
        if timestamp < LATEST_TIERED or context.api_version < _SINCE.get(timestamp, 0):
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION)
        partition = self._hosted.find_leader(topic, asked.partition_index, asked.current_leader_epoch)
        log = partition.log
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return -1, log.log_start_offset, log.leader_epochs.epoch_of(log.log_start_offset)
        if timestamp == LATEST_TIERED:
            return NONE_FOUND
        shown = _shown_end(partition, request)
        if timestamp == LATEST:
            _check_known(partition, request)
            return -1, shown, partition.leader_epoch
        hit = log.locate_max_timestamp() if timestamp == MAX_TIMESTAMP else log.locate_timestamp(timestamp)
        found = NONE_FOUND
        if hit is not None:
            try:
                found = await asyncio.to_thread(hit.resolve)
            finally:
                hit.region.release()  # here and not in the thread: pins are counted on the loop alone
        if found[1] < shown:
            return found
        _check_known(partition, request)
        return NONE_FOUND


def _shown_end(partition: Partition, request: Any) -> int:
    if request.replica_id >= 0:
        return partition.log.log_end_offset
    return partition.last_stable_offset if request.isolation_level == READ_COMMITTED else partition.high_watermark


def _check_known(partition: Partition, request: Any) -> None:
    if request.replica_id < 0 and not partition.knows_high_watermark:
        raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE)


def _for_version(error: ErrorCode, context: RequestContext) -> ErrorCode:
    if error is ErrorCode.OFFSET_NOT_AVAILABLE and context.api_version < OFFSET_NOT_AVAILABLE_FROM:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return error


def _row(index: int, error: ErrorCode, found: tuple[int, int, int]) -> Any:
    timestamp, offset, leader_epoch = found
    return _Partition(
        partition_index=index, error_code=error, timestamp=timestamp, offset=offset, leader_epoch=leader_epoch
    )
