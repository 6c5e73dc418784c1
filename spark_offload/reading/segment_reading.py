"""One split of a segment from the object store to Arrow batches: what runs in a Spark executor."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_offload.reading.decoding import Bounds, Decoder
from spark_offload.reading.splits import Split
from spark_offload.segments.batch_scan import whole_batches_end
from spark_offload.segments.sections import OffsetPositions, read_section
from spark_offload.segments.varints import DamagedRecords

if TYPE_CHECKING:
    from object_store.blocking import BlockingStore


def read_split(store: BlockingStore, split: Split, decoder: Decoder, *, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
    """The split's records. While one chunk is decoded the next one is on its way.

    Raises DamagedRecords, StoreError, both naming the object.
    """
    low, high = _aligned(store, split)
    bounds, segment = Bounds(split.start, split.end), Bounds(split.base_offset, split.end_offset)
    try:
        for view in _chunks(store, split.key, low, high, chunk_bytes):
            yield from decoder.decode(view, bounds, segment)
    except DamagedRecords as error:
        raise DamagedRecords(f"{store.name}, object {split.key}: {error}") from error


def _aligned(store: BlockingStore, split: Split) -> tuple[int, int]:
    """Both ends at batch boundaries."""
    section = split.index
    if section is None:
        return split.low, split.high
    data = store.wait(lambda: read_section(store.store, split.key, section))
    positions = OffsetPositions(data, split.base_offset, split.log_bytes)
    high = split.log_bytes if split.high == split.log_bytes else positions.aligned(split.high)
    return positions.aligned(split.low), high


def _chunks(store: BlockingStore, key: str, low: int, high: int, chunk_bytes: int) -> Iterator[memoryview]:
    """Whole batches, about `chunk_bytes` at a time. A batch that a chunk cuts off is fetched again with the next one:
    that is less work than joining the two."""
    at, size = low, min(chunk_bytes, high - low)
    with ThreadPoolExecutor(1, "tidelog-prefetch") as ahead:
        coming: Future[bytes] | None = ahead.submit(store.get, key, at, size) if size else None
        while coming is not None:
            view = memoryview(coming.result())
            end, next_size = whole_batches_end(view)
            at += end
            if next_size > high - at or (not end and next_size <= size):
                raise DamagedRecords(f"a batch that is cut off at byte {at}")
            size = min(max(chunk_bytes, next_size), high - at)
            coming = ahead.submit(store.get, key, at, size) if size else None
            if end:
                yield view[:end]
