"""From ranges of offsets to splits, and to the tasks that read them.

A segment that is larger than a split is read by several tasks. Planning cuts it by bytes alone and reads no index for
that: each task finds the batch boundaries at or after both its ends in the segment's offset index, and neighbours find
the same. Only a large segment of which a part is wanted has its index read here, to leave out what is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import pairwise

from object_store.store import ObjectStore
from spark_offload.options import ReadOptions
from spark_offload.reading.catalog import Catalog, OffsetRange, PartitionContents
from spark_offload.reading.offset_bounds import offset_ranges
from spark_offload.reading.pushdown import PushedBounds
from spark_offload.reading.splits import Split, bytes_per_task, packed
from spark_offload.segments.aborted import AbortedTransaction, aborted_in_index
from spark_offload.segments.sections import OffsetPositions, read_section
from tiering.bucket.segment import OFFSET_INDEX, TRANSACTION_INDEX, TieredSegment

PARALLEL_READS = 16
PARTIAL_BYTES_MIN = 4 << 20  # a smaller segment is read whole even when a part is wanted


async def plan_batch(store: ObjectStore, options: ReadOptions, bounds: PushedBounds) -> list[tuple[Split, ...]]:
    """The tasks of a batch query. Raises OptionError, DataLoss, StoreError, ValueError for damage."""
    contents = [one for one in await Catalog(store, options).contents() if bounds.keeps(one.path)]
    ranges = await offset_ranges(store, options, contents)
    return await plan_tasks(store, options, list(bounds.narrowed(ranges)))


async def plan_tasks(
    store: ObjectStore, options: ReadOptions, ranges: Sequence[OffsetRange]
) -> list[tuple[Split, ...]]:
    """The splits of each task: large segments in pieces, small ones together. Raises StoreError, DamagedRecords."""
    task_bytes = options.split_bytes
    if task_bytes is None:
        task_bytes = bytes_per_task(sum(segment.log_bytes for one in ranges for segment in one.segments()))
    planner = Planner(store, task_bytes, read_committed=options.read_committed)
    return packed(await planner.plan(ranges), task_bytes)


class Planner:
    """Divides ranges into splits."""

    def __init__(
        self,
        store: ObjectStore,
        split_bytes: int,
        *,
        read_committed: bool,
        partial_bytes_min: int = PARTIAL_BYTES_MIN,
    ) -> None:
        self._store = store
        self._split_bytes = split_bytes
        self._read_committed = read_committed
        self._partial_bytes_min = partial_bytes_min
        self._reads = asyncio.Semaphore(PARALLEL_READS)

    async def plan(self, ranges: Iterable[OffsetRange]) -> list[Split]:
        """Splits in order of topic, partition and offset. Raises StoreError, DamagedRecords."""
        planned = await asyncio.gather(*(self._plan_range(one) for one in ranges))
        return [split for splits in planned for split in splits]

    async def _plan_range(self, wanted: OffsetRange) -> list[Split]:
        contents = wanted.contents
        aborted = await self._aborted(contents, wanted) if self._read_committed else []
        planned = await asyncio.gather(*(self._plan_segment(wanted, one, aborted) for one in wanted.segments()))
        return [split for splits in planned for split in splits]

    async def _plan_segment(
        self, wanted: OffsetRange, segment: TieredSegment, aborted: list[AbortedTransaction]
    ) -> list[Split]:
        contents = wanted.contents
        key = contents.key_of(segment)
        start, end = max(wanted.start, segment.base_offset), min(wanted.end, segment.end_offset)
        low, high = 0, segment.log_bytes
        index = segment.sections.get(OFFSET_INDEX)
        is_part = start > segment.base_offset or end < segment.end_offset
        positions: OffsetPositions | None = None
        if is_part and index is not None and segment.log_bytes >= self._partial_bytes_min:
            async with self._reads:
                data = await read_section(self._store, key, index)
            positions = OffsetPositions(data, segment.base_offset, segment.log_bytes)
            low, high = positions.window(start, end)
        pieces = max(1, -(-(high - low) // self._split_bytes)) if index is not None else 1
        bounds = [low + (high - low) * piece // pieces for piece in range(pieces)] + [high]
        if positions is not None:
            bounds = [low, *(positions.aligned(bound) for bound in bounds[1:-1]), high]
        touching = tuple(one for one in aborted if one.last_offset >= start and one.first_offset < end)
        return [
            Split(
                topic=contents.path.topic,
                partition=contents.path.partition,
                key=key,
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
                log_bytes=segment.log_bytes,
                low=first,
                high=last,
                start=start,
                end=end,
                index=index if positions is None and pieces > 1 else None,
                aborted=touching,
            )
            for first, last in pairwise(bounds)
            if first < last
        ]

    async def _aborted(self, contents: PartitionContents, wanted: OffsetRange) -> list[AbortedTransaction]:
        """Aborted transactions that touch the range. Their markers may lie in any later segment."""

        async def of(segment: TieredSegment) -> list[AbortedTransaction]:
            async with self._reads:
                key = contents.key_of(segment)
                return aborted_in_index(await read_section(self._store, key, segment.sections.get(TRANSACTION_INDEX)))

        later = [one for one in contents.segments if one.end_offset > wanted.start]
        found = await asyncio.gather(*(of(one) for one in later if TRANSACTION_INDEX in one.sections))
        return [one for entries in found for one in entries if one.first_offset < wanted.end]
