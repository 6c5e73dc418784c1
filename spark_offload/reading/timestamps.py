"""From a timestamp to an offset, as ListOffsets answers it: that of the first record with it or a later one."""

from __future__ import annotations

import numpy as np

from object_store.store import ObjectStore
from spark_offload.reading.catalog import PartitionContents
from spark_offload.segments.batch_scan import scan_batches, whole_batches_end
from spark_offload.segments.payload import payloads
from spark_offload.segments.record_table import locate_records
from spark_offload.segments.sections import OffsetPositions, offset_before_timestamp, read_section
from spark_offload.segments.varints import DamagedRecords
from tiering.bucket.segment import OFFSET_INDEX, TIME_INDEX, TieredSegment

SEARCH_BYTES = 256 << 10  # read at once: batches between two entries of the index


async def offset_of_timestamp(
    store: ObjectStore, contents: PartitionContents, timestamp: int, *, inflated_bytes_max: int
) -> int | None:
    """The first offset at or above the log start whose record has `timestamp` (ms) or a later one; None for none.

    Raises StoreError, DamagedRecords.
    """
    for segment in contents.segments:
        if segment.max_timestamp >= timestamp:
            found = await _in_segment(store, contents, segment, timestamp, inflated_bytes_max)
            if found is not None:
                return found
    return None


async def _in_segment(
    store: ObjectStore, contents: PartitionContents, segment: TieredSegment, timestamp: int, inflated_bytes_max: int
) -> int | None:
    key = contents.key_of(segment)
    times = await read_section(store, key, segment.sections.get(TIME_INDEX))
    offsets = await read_section(store, key, segment.sections.get(OFFSET_INDEX))
    first = max(offset_before_timestamp(times, segment.base_offset, timestamp) + 1, contents.log_start)
    at, _ = OffsetPositions(offsets, segment.base_offset, segment.log_bytes).window(first, segment.end_offset)
    size = min(SEARCH_BYTES, segment.log_bytes - at)
    while size:
        view = memoryview(await store.get(key, at, size))
        end, next_size = whole_batches_end(view)
        found = _first_record(view[:end], first, timestamp, inflated_bytes_max)
        if found is not None:
            return found
        at += end
        if next_size > segment.log_bytes - at or (not end and next_size <= size):
            raise DamagedRecords(f"a batch that is cut off at byte {at} of {key}")
        size = min(max(SEARCH_BYTES, next_size), segment.log_bytes - at)
    return None


def _first_record(view: memoryview, first: int, timestamp: int, inflated_bytes_max: int) -> int | None:
    """Headers choose the batches, so that one or two are inflated."""
    batches = scan_batches(view)
    chosen = (batches.max_timestamp >= timestamp) & (batches.last_offset >= first) & ~batches.is_control
    for row in np.flatnonzero(chosen).tolist():
        for payload in payloads(view, batches.where(slice(row, row + 1)), inflated_bytes_max=inflated_bytes_max):
            records = locate_records(payload)
            fitting = records.offset[(records.timestamp >= timestamp) & (records.offset >= first)]
            if len(fitting):
                return int(fitting[0])
    return None
