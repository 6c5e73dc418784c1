"""DescribeLogDirs 1-4: one log directory, with the size and lag of each replica in it. AlterReplicaLogDirs 1-2.

A null list of topics means all. As in Kafka, a leader's lag is its log end minus its high watermark.

Replicas cannot move between directories, because there is one: a replica that is to be there is there already, and any
other directory is LOG_DIR_NOT_FOUND, as in Kafka for one that the broker's settings do not name. Source: KIP-113.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from broker.requests.context import RequestContext
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from common.ports import Disk
from wire.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

UNKNOWN_BYTES = -1
FUTURE_SUFFIX_LENGTH = 40  # a dot, an id and "-future", by which Kafka names the replica that it copies
DIRECTORY_LENGTH_MAX = 255
ASKED_COST, ROW_COST = 1, 5  # units of `common.pacing`: a log sums up the sizes of its segments

_Result = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = _Result.DescribeLogDirsTopic
_Partition = _Topic.DescribeLogDirsPartition
_Altered = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
_AlteredPartition = _Altered.AlterReplicaLogDirPartitionResult


class DescribeLogDirs:
    def __init__(self, hosted: HostedPartitions, disk: Disk, directory: str) -> None:
        """`directory`: the log directory's name in responses."""
        self._hosted = hosted
        self._disk = disk
        self._directory = directory

    async def handle(self, context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        if self._hosted.offline:
            result = _Result(
                error_code=ErrorCode.KAFKA_STORAGE_ERROR,
                log_dir=self._directory,
                topics=[],
                total_bytes=UNKNOWN_BYTES,
                usable_bytes=UNKNOWN_BYTES,
            )
        else:
            result = _Result(
                error_code=ErrorCode.NONE,
                log_dir=self._directory,
                topics=await context.paced(_rows(self._asked(request, context.tenant))),
                total_bytes=UNKNOWN_BYTES,
                usable_bytes=await self._usable_bytes(context),
            )
        return DescribeLogDirsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, results=[result])

    async def _usable_bytes(self, context: RequestContext) -> int:
        """Free bytes of the disk; unknown for a tenant, because it depends on other tenants."""
        if context.tenant is not None:
            return UNKNOWN_BYTES
        return await asyncio.to_thread(self._disk.free_bytes)  # in a thread, because a stuck device may block

    def _asked(self, request: DescribeLogDirsRequest, tenant: str | None) -> Iterator[Partition | None]:
        """None for what is not here."""
        if request.topics is not None:
            return (self._hosted.get(topic.topic, index) for topic in request.topics for index in topic.partitions)
        hosted = self._hosted
        if tenant is None:
            return _each(list(hosted.by_id.values()))
        names = hosted.image.topics.names_by_tenant.get(tenant, ())
        return _each(hosted.by_name.get(name.encode()) for name in names)


class AlterReplicaLogDirs:
    def __init__(self, hosted: HostedPartitions, directory: str) -> None:
        """`directory`: the log directory's name in requests."""
        self._hosted = hosted
        self._directory = directory

    def handle(self, context: RequestContext, request: AlterReplicaLogDirsRequest) -> Work[AlterReplicaLogDirsResponse]:
        """A partition that is named in several directories is asked for in the last of them."""
        asked: dict[str, dict[int, str]] = {}
        for directory in request.dirs:
            for named in directory.topics:
                paths = asked.setdefault(named.name, {})
                for index in named.partitions:
                    paths[index] = directory.path
                    yield ASKED_COST
                yield ASKED_COST
            yield ASKED_COST
        results: list[_Altered] = []
        for topic, paths in asked.items():
            rows: list[_AlteredPartition] = []
            for index, path in paths.items():
                rows.append(_AlteredPartition(partition_index=index, error_code=self._verdict(topic, index, path)))
                yield ROW_COST
            if rows:
                results.append(_Altered(topic_name=topic, partitions=rows))
            yield ROW_COST
        return AlterReplicaLogDirsResponse(throttle_time_ms=0, results=results)

    def _verdict(self, topic: str, index: int, path: str) -> ErrorCode:
        if len(f"{topic}-{index}") + FUTURE_SUFFIX_LENGTH > DIRECTORY_LENGTH_MAX:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if path != self._directory:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if self._hosted.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        try:
            self._hosted.find(topic, index)
        except ProtocolError as error:
            away = error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ErrorCode.REPLICA_NOT_AVAILABLE if away else error.code
        return ErrorCode.NONE


def none_altered(request: AlterReplicaLogDirsRequest, code: ErrorCode) -> Work[AlterReplicaLogDirsResponse]:
    """A response with `code` for each partition."""
    results: list[_Altered] = []
    for directory in request.dirs:
        for topic in directory.topics:
            rows: list[_AlteredPartition] = []
            for index in topic.partitions:
                rows.append(_AlteredPartition(partition_index=index, error_code=code))
                yield ROW_COST
            results.append(_Altered(topic_name=topic.name, partitions=rows))
            yield ROW_COST
        yield ASKED_COST
    return AlterReplicaLogDirsResponse(throttle_time_ms=0, results=results)


def _each(topics: Iterable[Mapping[int, Partition] | None]) -> Iterator[Partition | None]:
    """Partitions of topics, which may change meanwhile. None for a topic that is not here."""
    for partitions in topics:
        yield from list(partitions.values()) if partitions else (None,)


def _rows(partitions: Iterator[Partition | None]) -> Work[list[_Topic]]:
    """One row for each topic. A partition that is removed meanwhile is reported as it was."""
    topics: dict[str, _Topic] = {}
    for partition in partitions:
        if partition is not None:
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = _Topic(name=partition.topic, partitions=[])
            topic.partitions.append(_row(partition))
        yield ROW_COST
    return list(topics.values())


def _row(partition: Partition) -> _Partition:
    log = partition.log
    return _Partition(
        partition_index=partition.index,
        partition_size=log.size_bytes,
        offset_lag=max(log.log_end_offset - partition.high_watermark, 0),
        is_future_key=False,
    )
