"""Inspection of batches before they are appended: null keys in a compacted topic, recompression.

The work is done in threads, at most `at_once_max` of them, with a limit on what a batch may inflate to. A partition's
batches stay in order: while one is being inspected, all later ones of that partition queue behind it. The queue is
bounded by `queued_bytes_max`, and so is the part of it that one tenant's topics have (`waiting_share.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from broker.handlers.waiting_share import WaitingShare
from broker.partitions.partition import Partition
from common.errors import ErrorCode, ProtocolError
from common.lifecycle import end_tasks
from kraft.image.tenants import tenant_of
from records.batch import COMPRESSION_MASK, read_header
from records.builder import recompress
from records.compression import Compression
from records.record import check_keys, check_records
from storage.log.log_config import LogConfig

logger = logging.getLogger(__name__)

Inspected = Callable[[bytearray | ProtocolError], None]

_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


class _Job(NamedTuple):
    batch: bytes
    config: LogConfig
    done: Inspected


class RecordInspection:
    """Owns the tasks that inspect batches; `close` ends them."""

    def __init__(self, at_once_max: int, queued_bytes_max: int, inflated_bytes_max: int) -> None:
        self._at_once = asyncio.Semaphore(at_once_max)
        self._queued_bytes_max = queued_bytes_max
        self._inflated_bytes_max = inflated_bytes_max
        self._share = WaitingShare()
        self._queues: dict[Partition, deque[_Job]] = {}
        self._tasks: dict[Partition, asyncio.Task[None]] = {}

    def __contains__(self, partition: Partition) -> bool:
        """Whether batches of that partition are being inspected, so that the next ones must queue."""
        return partition in self._queues

    def submit(self, partition: Partition, batch: bytes, done: Inspected) -> None:
        """Inspect `batch`, then call `done` on the loop with the bytes to append or the error.

        Raises ProtocolError(NOT_ENOUGH_REPLICAS) if the queue, or the tenant's part of it, is full. Every client
        retries that, asks for no new metadata, and knows that the batch is not in the log, which REQUEST_TIMED_OUT
        would leave open.
        """
        tenant, size = tenant_of(partition.topic), len(batch)
        if not self._share.admits(tenant, 0, size, 0, self._queued_bytes_max):
            raise ProtocolError(ErrorCode.NOT_ENOUGH_REPLICAS, "too many batches wait to be inspected")
        self._share.add(tenant, 0, size)
        job = _Job(batch, partition.log.config, done)
        queue = self._queues.get(partition)
        if queue is not None:
            queue.append(job)
            return
        self._queues[partition] = deque([job])
        self._tasks[partition] = asyncio.get_running_loop().create_task(self._work(partition))

    async def close(self) -> None:
        """Drop the queue; its requests end with their connections."""
        await end_tasks(self._tasks.values())
        self._queues.clear()
        self._tasks.clear()
        self._share = WaitingShare()

    async def _work(self, partition: Partition) -> None:
        queue, tenant = self._queues[partition], tenant_of(partition.topic)
        while queue:
            job = queue[0]
            async with self._at_once:
                inspected = await self._inspected(job)
            self._share.add(tenant, 0, -len(job.batch))
            queue.popleft()
            try:
                job.done(inspected)
            except Exception as error:  # otherwise all later batches of the partition would wait for ever
                message = f"a batch of {partition.topic}-{partition.index} could not be taken further"
                asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
        del self._queues[partition], self._tasks[partition]

    async def _inspected(self, job: _Job) -> bytearray | ProtocolError:
        try:
            return await asyncio.to_thread(inspect, job.batch, job.config, self._inflated_bytes_max)
        except Exception:  # otherwise all later batches of the partition would wait for ever
            logger.exception("a batch could not be inspected")
            return ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR)


def inspect(batch: bytes, config: LogConfig, inflated_bytes_max: int) -> bytearray | ProtocolError:
    """The bytes to append under `config`, or the error; runs in a thread."""
    view = memoryview(batch)
    try:
        if config.is_compacted:
            check_keys(view, 0, len(batch), inflated_bytes_max=inflated_bytes_max)
        elif config.checks_all_records:
            check_records(view, 0, len(batch), inflated_bytes_max=inflated_bytes_max)
        codec = _CODECS.get(config.compression_type)
        if codec is None or read_header(view, 0).attributes & COMPRESSION_MASK == codec:
            return bytearray(batch)
        return recompress(view, 0, len(batch), codec, _level(config, codec), inflated_bytes_max)
    except ProtocolError as error:
        # The error's traceback refers to this thread's frames, and one of those to the result: a cycle that would keep
        # everything inflated until the next garbage collection.
        if error.code is ErrorCode.CORRUPT_MESSAGE:  # clients retry CORRUPT_MESSAGE, but the batch's CRC was correct
            return ProtocolError(ErrorCode.INVALID_RECORD, error.message)
        return error.bare()


def _level(config: LogConfig, codec: Compression) -> int | None:
    levels = {
        Compression.GZIP: config.compression_gzip_level,
        Compression.LZ4: config.compression_lz4_level,
        Compression.ZSTD: config.compression_zstd_level,
    }
    return levels.get(codec)
