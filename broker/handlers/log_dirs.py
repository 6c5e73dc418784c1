"""DescribeLogDirs 1-4: one log directory, with the size and lag of each replica in it.

A null list of topics means all. As in Kafka, a leader's lag is its log end minus its high watermark.
"""

from __future__ import annotations

import asyncio

from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from broker.requests.context import RequestContext
from common.errors import ErrorCode
from common.pacing import Work
from common.ports import Disk
from wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse

UNKNOWN_BYTES = -1
ROW_COST = 5  # units of `common.pacing`: a log sums up the sizes of its segments

_Result = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = _Result.DescribeLogDirsTopic
_Partition = _Topic.DescribeLogDirsPartition


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
            topics = await context.paced(_rows(self._asked(request, context.tenant)))
            result = _Result(
                error_code=ErrorCode.NONE,
                log_dir=self._directory,
                topics=[_Topic(name=name, partitions=rows) for name, rows in topics.items()],
                total_bytes=UNKNOWN_BYTES,
                usable_bytes=await self._usable_bytes(context),
            )
        return DescribeLogDirsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, results=[result])

    async def _usable_bytes(self, context: RequestContext) -> int:
        """Free bytes of the disk; unknown for a tenant, because it depends on other tenants."""
        if context.tenant is not None:
            return UNKNOWN_BYTES
        return await asyncio.to_thread(self._disk.free_bytes)  # in a thread, because a stuck device may block

    def _asked(self, request: DescribeLogDirsRequest, tenant: str | None) -> list[Partition]:
        if request.topics is None and tenant is not None:
            names = self._hosted.image.topics.names_by_tenant.get(tenant, ())
            return [one for name in names for one in self._hosted.by_name.get(name.encode(), {}).values()]
        if request.topics is None:
            return list(self._hosted)
        named = [self._hosted.get(topic.topic, index) for topic in request.topics for index in topic.partitions]
        return [partition for partition in named if partition is not None]


def _rows(partitions: list[Partition]) -> Work[dict[str, list[_Partition]]]:
    """Rows by topic. A partition that is removed meanwhile is reported as it was."""
    topics: dict[str, list[_Partition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(_row(partition))
        yield ROW_COST
    return topics


def _row(partition: Partition) -> _Partition:
    log = partition.log
    return _Partition(
        partition_index=partition.index,
        partition_size=log.size_bytes,
        offset_lag=max(log.log_end_offset - partition.high_watermark, 0),
        is_future_key=False,
    )
