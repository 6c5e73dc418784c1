"""Replays a partition's log into a fresh shard: read and decoded in threads, applied in short turns of the loop."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from broker.coordination.partition_access import ByteRegion, CoordinatedPartition
from broker.coordination.shard import Shard
from common.errors import ErrorCode, ProtocolError
from records.batch import iterate_batches
from records.record import inflate_records, key_of, scan_records, value_of

WRITTEN_POLL_S = 0.01

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """What bounds the memory and the turns of one load. Times in seconds."""

    chunk_bytes: int = 1 << 20
    inflated_bytes_max: int = 64 << 20
    records_per_turn: int = 1_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Decoded (key, value) pairs in order of the log, and the offset after the last batch."""

    records: list[tuple[bytes, bytes | None]]
    next_offset: int


def decode_chunk(region: ByteRegion, offset: int, end: int, inflated_bytes_max: int) -> Chunk:
    """The records of `region` in [offset, end). Control batches and records without a key are skipped."""
    records: list[tuple[bytes, bytes | None]] = []
    whole = region.read()
    next_offset = offset
    with memoryview(whole) as view:
        for at, header in iterate_batches(view, 0, len(whole), verify_crc=False):
            next_offset = header.next_offset
            if header.is_control:
                continue
            _, data = inflate_records(view, at, header.size, inflated_bytes_max=inflated_bytes_max)
            for span in scan_records(header, data):
                key = key_of(data, span)
                if key is not None and offset <= header.base_offset + span.offset_delta < end:
                    records.append((key, value_of(data, span)))
    return Chunk(records, next_offset)


async def load_shard(partition: CoordinatedPartition, shard: Shard, limits: LoadLimits) -> int:
    """Replay everything the log holds now; the offset up to which `shard` reflects it.

    All of it counts although some may not be committed yet: its leader keeps it. A record that the shard cannot read
    is left out, and counted in the log. Raises ProtocolError when the log cannot be read, or holds bytes that are no
    batch.
    """
    unreadable = 0
    end = partition.log.log_end_offset
    offset = partition.log.log_start_offset
    while offset < end:
        region = partition.read_as_replica(offset, limits.chunk_bytes, at_least_one=True)
        if region is None:
            await asyncio.sleep(WRITTEN_POLL_S)
            continue
        try:
            chunk = await asyncio.to_thread(decode_chunk, region, offset, end, limits.inflated_bytes_max)
        finally:
            region.release()
        if chunk.next_offset <= offset:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "the log yields no batch")
        for begin in range(0, len(chunk.records), limits.records_per_turn):
            for key, value in chunk.records[begin : begin + limits.records_per_turn]:
                try:
                    shard.replay(key, value)
                except ValueError:
                    unreadable += 1
            await asyncio.sleep(0)
        offset = chunk.next_offset
    if unreadable:
        fields = {"topic": partition.topic, "partition": partition.index, "count": unreadable}
        _log.warning("unreadable records", extra=fields)
    return end
