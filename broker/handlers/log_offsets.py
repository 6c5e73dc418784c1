"""OffsetForLeaderEpoch 2-4 and DeleteRecords 0-2.

OffsetForLeaderEpoch: only the leader answers; for an unknown epoch the response is -1.
DeleteRecords: offset -1 means the high watermark. The leader moves its log start whatever the request's timeout is. As
in Apache Kafka, the timeout only bounds the wait for the other live replicas: with 0 the response is REQUEST_TIMED_OUT
if they have not moved theirs yet. A topic that is only compacted is rejected with POLICY_VIOLATION. The new log start
of a tiered topic is first committed to the tier's state.
"""

from __future__ import annotations

import asyncio

from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from broker.partitions.record_deletion import RecordDeletion
from broker.requests.context import RequestContext
from common.errors import ErrorCode, ProtocolError
from kraft.topic_names import INTERNAL_TOPICS
from records.audit_event import client_actor
from storage.audit.audit_trail import audited
from wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

POLL_S = 0.02
DELETE_TIMEOUT_MS_MAX = 600_000
LOCAL_MOVE_S = (
    30.0  # time for the leader's own move, including the audit and the tier's state, if the client's timeout is shorter
)

_EpochTopic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_EpochEnd = _EpochTopic.EpochEndOffset
_DeleteTopic = DeleteRecordsResponse.DeleteRecordsTopicResult
_Deleted = _DeleteTopic.DeleteRecordsPartitionResult


class OffsetForLeaderEpoch:
    def __init__(self, hosted: HostedPartitions) -> None:
        self._hosted = hosted

    def handle(self, context: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        """Answer per partition. A replica's request is rejected outside the internal listener."""
        refused = request.replica_id >= 0 and not context.internal
        topics = []
        for topic in request.topics:
            rows = []
            for asked in topic.partitions:
                try:
                    if refused:
                        raise ProtocolError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
                    partition = self._hosted.find_leader(topic.topic, asked.partition, asked.current_leader_epoch)
                    found = partition.log.end_offset_for_epoch(asked.leader_epoch)
                    rows.append(
                        _EpochEnd(
                            error_code=ErrorCode.NONE,
                            partition=asked.partition,
                            leader_epoch=found.epoch,
                            end_offset=found.end_offset,
                        )
                    )
                except ProtocolError as error:
                    rows.append(
                        _EpochEnd(error_code=error.code, partition=asked.partition, leader_epoch=-1, end_offset=-1)
                    )
            topics.append(_EpochTopic(topic=topic.topic, partitions=rows))
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


class DeleteRecords:
    def __init__(self, hosted: HostedPartitions, local_move_s: float = LOCAL_MOVE_S) -> None:
        self._hosted = hosted
        self._local_move_s = local_move_s

    async def handle(self, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Move the leader's log starts, then wait for the replicas."""
        loop = asyncio.get_running_loop()
        timeout_s = min(max(request.timeout_ms, 0), DELETE_TIMEOUT_MS_MAX) / 1000
        deadline = loop.time() + timeout_s
        move_s = max(timeout_s, self._local_move_s)
        rows: dict[tuple[str, int], tuple[int, ErrorCode]] = {}
        waiting: dict[tuple[str, int], tuple[Partition, int]] = {}

        actor = client_actor(context.principal, context.client_host)

        async def begin(topic: str, index: int, offset: int) -> None:
            try:
                async with asyncio.timeout(move_s):
                    waiting[topic, index] = await self._delete(topic, index, offset, move_s, actor)
            except ProtocolError as error:
                rows[topic, index] = (-1, error.code)
            except TimeoutError:  # the log start may move later, or not
                rows[topic, index] = (-1, ErrorCode.REQUEST_TIMED_OUT)

        wanted = [(topic.name, one.partition_index, one.offset) for topic in request.topics for one in topic.partitions]
        await asyncio.gather(*[begin(*one) for one in wanted])
        while waiting:
            for key, (partition, target) in list(waiting.items()):
                if not partition.is_leader:
                    rows[key] = (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                elif partition.low_watermark >= target:
                    rows[key] = (partition.low_watermark, ErrorCode.NONE)
                elif loop.time() >= deadline:
                    rows[key] = (partition.low_watermark, ErrorCode.REQUEST_TIMED_OUT)
                if key in rows:
                    del waiting[key]
            if waiting:
                await asyncio.sleep(POLL_S)
        return DeleteRecordsResponse(
            throttle_time_ms=0,
            topics=[
                _DeleteTopic(
                    name=topic.name,
                    partitions=[
                        _Deleted(
                            partition_index=asked.partition_index,
                            low_watermark=rows[topic.name, asked.partition_index][0],
                            error_code=rows[topic.name, asked.partition_index][1],
                        )
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ],
        )

    async def _delete(
        self, topic: str, index: int, offset: int, timeout_s: float, actor: str
    ) -> tuple[Partition, int]:  # fmt: skip
        if topic in INTERNAL_TOPICS:
            raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        partition = self._hosted.find_leader(topic, index)
        deletion = RecordDeletion(partition)
        target = deletion.new_log_start(offset)
        if not partition.log.config.remote_storage_enable:
            await audited(lambda: deletion.delete(target, actor))
        elif self._hosted.tier is None:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "this broker has no tier")
        else:
            await self._hosted.tier.delete_records(partition, target, timeout_s, actor)
        return partition, target
