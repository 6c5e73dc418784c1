"""ListOffsets 1-11: earliest, latest, by time, largest timestamp, local, tiered and pending upload.

Behaviour: only the leader answers. Latest is the high watermark, or the last stable offset for readers of committed
transactions. Until the high watermark has reached the leader's own epoch the response is OFFSET_NOT_AVAILABLE, because
it may be lower than what the previous leader exposed (KIP-207). Records above the visible end are not found.

Tiered topics (KIP-405): the latest tiered offset is that of the last record in the tier, -1 if there is none; look-ups
by time begin in the tier. While the leader's claim on the tier is unanswered the response is OFFSET_NOT_AVAILABLE.
The earliest offset that waits to be uploaded (KIP-1023) is that after the tier's end, and the log start while the tier
has nothing of this log. Without a tier, the earliest local offset is the log start, and there is neither a tiered
offset nor one that waits.

Versions: LEADER_NOT_AVAILABLE instead of OFFSET_NOT_AVAILABLE below 5, leader epochs from 4 on, a timeout from 10 on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from broker.replication.cold_reading import ColdReading
from broker.requests.context import RequestContext
from common.errors import ErrorCode, ProtocolError
from storage.log.partition_log import TimestampHit
from wire.messages import ListOffsetsRequest, ListOffsetsResponse

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
EARLIEST_PENDING_UPLOAD = -6
NONE_FOUND = (-1, -1, -1)
READ_COMMITTED = 1
OFFSET_NOT_AVAILABLE_FROM = 5
TIMEOUT_FROM = 10
REMOTE_TIMEOUT_MS = 30_000
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}

_Asked = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
_Topic = ListOffsetsResponse.ListOffsetsTopicResponse
_Partition = _Topic.ListOffsetsPartitionResponse


class ListOffsets:
    """`cold` returns the tier's reader, None if this broker has none; `remote_timeout_ms` bounds its look-ups."""

    def __init__(
        self,
        hosted: HostedPartitions,
        cold: Callable[[], ColdReading | None] = lambda: None,
        remote_timeout_ms: Callable[[], int] = lambda: REMOTE_TIMEOUT_MS,
    ) -> None:
        self._hosted = hosted
        self._cold = cold
        self._remote_timeout_ms = remote_timeout_ms

    async def handle(self, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Answer per partition. A replica's request is rejected outside the internal listener."""
        if request.replica_id >= 0 and not context.internal:
            refusal = ProtocolError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        else:
            refusal = None
        asked: dict[tuple[str, int], int] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                asked[key] = asked.get(key, 0) + 1
        rows: dict[tuple[str, int], _Partition] = {}
        remote: dict[tuple[str, int], Coroutine[Any, Any, _Partition]] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                if refusal is not None:
                    rows[key] = _refused(context, partition, refusal)
                elif asked[key] > 1:
                    rows[key] = _refused(context, partition, ProtocolError(ErrorCode.INVALID_REQUEST))
                elif self._asks_tier(topic.name, partition):
                    remote[key] = self._answer(context, request, topic.name, partition)
                else:
                    rows[key] = await self._answer(context, request, topic.name, partition)
        if remote:  # concurrently, because each may have to wait for the object store
            rows.update(zip(remote, await asyncio.gather(*remote.values()), strict=True))
        topics = [
            _Topic(name=topic.name, partitions=[rows[topic.name, asked.partition_index] for asked in topic.partitions])
            for topic in request.topics
        ]
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    def _asks_tier(self, topic: str, asked: _Asked) -> bool:
        if asked.timestamp < 0 and asked.timestamp != MAX_TIMESTAMP:
            return False
        try:
            log = self._hosted.find_leader(topic, asked.partition_index).log
        except ProtocolError:
            return False
        return log.log_start_offset < log.local_log_start_offset

    async def _answer(
        self, context: RequestContext, request: ListOffsetsRequest, topic: str, asked: _Asked
    ) -> _Partition:
        try:
            timeout_ms = self._remote_timeout_ms()
            if context.api_version >= TIMEOUT_FROM and 0 < request.timeout_ms < timeout_ms:
                timeout_ms = request.timeout_ms
            async with asyncio.timeout(timeout_ms / 1000):
                found = await self._find(context, request, topic, asked)
        except ProtocolError as error:
            return _refused(context, asked, error)
        except TimeoutError:
            return _refused(context, asked, ProtocolError(ErrorCode.REQUEST_TIMED_OUT))
        return _row(asked.partition_index, ErrorCode.NONE, found)

    async def _find(
        self, context: RequestContext, request: ListOffsetsRequest, topic: str, asked: _Asked
    ) -> tuple[int, int, int]:
        timestamp = asked.timestamp
        if timestamp < EARLIEST_PENDING_UPLOAD or context.api_version < _SINCE.get(timestamp, 0):
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION)
        partition = self._hosted.find_leader(topic, asked.partition_index, asked.current_leader_epoch)
        log = partition.log
        if timestamp == EARLIEST:
            return _at(partition, log.log_start_offset)
        if timestamp == EARLIEST_LOCAL:
            return _at(partition, log.local_log_start_offset)
        if timestamp == LATEST_TIERED:
            return self._tiered(partition)
        if timestamp == EARLIEST_PENDING_UPLOAD:
            return self._pending_upload(partition)
        shown = _shown_end(partition, request)
        if timestamp == LATEST:
            _check_known(partition, request)
            return -1, shown, partition.leader_epoch
        if timestamp == MAX_TIMESTAMP:
            found = await self._latest_of_all(partition)
        else:
            found = await self._at_time(partition, timestamp)
        if found[1] < shown:
            return found
        _check_known(partition, request)
        return NONE_FOUND

    def _tiered(self, partition: Partition) -> tuple[int, int, int]:
        if not _has_tier(partition):
            return NONE_FOUND
        cold = self._cold()
        if cold is None:
            raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE)
        tier = cold.tier(partition).tier
        return _at(partition, tier.tier_end_offset - 1) if tier.finished_count else NONE_FOUND

    def _pending_upload(self, partition: Partition) -> tuple[int, int, int]:
        log = partition.log
        if not _has_tier(partition):
            return NONE_FOUND
        cold = self._cold()
        if cold is None:
            raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE)
        tier = cold.tier(partition).tier
        return _at(partition, max(tier.tier_end_offset if tier.finished_count else 0, log.log_start_offset))

    async def _at_time(self, partition: Partition, timestamp: int) -> tuple[int, int, int]:
        """Search the tier up to the local log start, which may move meanwhile, then the local log."""
        log = partition.log
        low = log.log_start_offset
        while low < (high := log.local_log_start_offset):
            cold = self._cold()
            if cold is None:
                raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE)
            found = await cold.find_timestamp(partition, timestamp, max(low, log.log_start_offset), high)
            if found is not None:
                return found
            low = high
        return await _resolve(await log.when_in_memory(lambda: log.locate_timestamp(timestamp)))

    async def _latest_of_all(self, partition: Partition) -> tuple[int, int, int]:
        log = partition.log
        hit = await log.when_in_memory(log.locate_max_timestamp)
        cold = self._cold()
        if log.log_start_offset >= log.local_log_start_offset or cold is None:
            return await _resolve(hit)
        try:
            least = hit.timestamp if hit is not None else -1
            found = await cold.find_max_timestamp(partition, least)
        except BaseException:
            if hit is not None:
                hit.region.release()
            raise
        local = await _resolve(hit)
        return found if found is not None else local


async def _resolve(hit: TimestampHit | None) -> tuple[int, int, int]:
    if hit is None:
        return NONE_FOUND
    try:
        return await asyncio.to_thread(hit.resolve)
    finally:
        hit.region.release()  # on the loop, not in the thread: pins are only counted on the loop


def _has_tier(partition: Partition) -> bool:
    log = partition.log
    return log.config.remote_storage_enable or log.log_start_offset < log.local_log_start_offset


def _at(partition: Partition, offset: int) -> tuple[int, int, int]:
    return -1, offset, partition.log.leader_epochs.epoch_of(offset)


def _shown_end(partition: Partition, request: ListOffsetsRequest) -> int:
    if request.replica_id >= 0:
        return partition.log.log_end_offset
    return partition.last_stable_offset if request.isolation_level == READ_COMMITTED else partition.high_watermark


def _check_known(partition: Partition, request: ListOffsetsRequest) -> None:
    if request.replica_id >= 0:
        return
    # While the log is barred, its last stable offset may be lower than was shown before.
    is_unread = request.isolation_level == READ_COMMITTED and partition.log.barred is not None
    if is_unread or not partition.knows_high_watermark:
        raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE)


def _for_version(error: ErrorCode, context: RequestContext) -> ErrorCode:
    if error is ErrorCode.OFFSET_NOT_AVAILABLE and context.api_version < OFFSET_NOT_AVAILABLE_FROM:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return error


def _refused(context: RequestContext, asked: _Asked, error: ProtocolError) -> _Partition:
    return _row(asked.partition_index, _for_version(error.code, context), NONE_FOUND)


def _row(index: int, error: ErrorCode, found: tuple[int, int, int]) -> _Partition:
    timestamp, offset, leader_epoch = found
    return _Partition(
        partition_index=index, error_code=error, timestamp=timestamp, offset=offset, leader_epoch=leader_epoch
    )
