"""The offsets that reading begins and ends at, partition by partition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from object_store.store import ObjectStore
from spark_offload.options import EARLIEST, LATEST, OffsetChoice, OptionError, ReadOptions
from spark_offload.reading.catalog import OffsetRange, PartitionContents, stable_end
from spark_offload.reading.timestamps import offset_of_timestamp


class DataLoss(Exception):
    """Requested offsets are no longer, or not yet, in the tier."""


async def readable_ends(store: ObjectStore, options: ReadOptions, partitions: Sequence[PartitionContents]) -> list[int]:
    """The end of each partition for these options' isolation."""
    if not options.read_committed:
        return [contents.end for contents in partitions]
    return list(await asyncio.gather(*(stable_end(store, contents) for contents in partitions)))


async def starting_offsets(
    store: ObjectStore, options: ReadOptions, partitions: Sequence[PartitionContents]
) -> list[int]:
    """One per partition. Raises OptionError for a partition that is not there, DataLoss for an offset that is not."""
    return await _chosen(store, options, options.starting, partitions, [one.end for one in partitions])


async def offset_ranges(
    store: ObjectStore, options: ReadOptions, partitions: Sequence[PartitionContents]
) -> list[OffsetRange]:
    """The ranges of a batch query, without partitions that have nothing to read."""
    ends = await readable_ends(store, options, partitions)
    starts = await _chosen(store, options, options.starting, partitions, ends)
    stops = await _chosen(store, options, options.ending, partitions, ends)
    ranges = zip(partitions, starts, stops, ends, strict=True)
    return [OffsetRange(one, start, min(stop, end)) for one, start, stop, end in ranges if start < min(stop, end)]


async def _chosen(
    store: ObjectStore,
    options: ReadOptions,
    choice: OffsetChoice,
    partitions: Sequence[PartitionContents],
    ends: Sequence[int],
) -> list[int]:
    _check_partitions(choice, partitions)
    found = (_one(store, options, choice, *pair) for pair in zip(partitions, ends, strict=True))
    return list(await asyncio.gather(*found))


async def _one(
    store: ObjectStore, options: ReadOptions, choice: OffsetChoice, contents: PartitionContents, end: int
) -> int:
    if choice.timestamp is not None:
        cap = options.inflated_batch_bytes
        found = await offset_of_timestamp(store, contents, choice.timestamp, inflated_bytes_max=cap)
        return end if found is None else found
    offset = choice.of(contents.path.topic, contents.path.partition)
    if offset == EARLIEST:
        return contents.log_start
    if offset == LATEST:
        return end
    return held(contents, offset, fail=options.fail_on_data_loss)


def held(contents: PartitionContents, offset: int, *, fail: bool) -> int:
    """`offset` when the partition reaches from it or up to it; else DataLoss, or the nearest one unless `fail`."""
    if contents.log_start <= offset <= contents.end:
        return offset
    if fail:
        where = f"{contents.path.topic}-{contents.path.partition}"
        raise DataLoss(
            f"offset {offset} of {where} is not in the tier, which holds {contents.log_start} to {contents.end}; "
            "with failOnDataLoss=false reading goes on at the nearest offset"
        )
    return min(max(offset, contents.log_start), contents.end)


def _check_partitions(choice: OffsetChoice, partitions: Sequence[PartitionContents]) -> None:
    there = {(one.path.topic, one.path.partition) for one in partitions}
    for topic, offsets in choice.by_partition.items():
        for partition in offsets:
            if (topic, partition) not in there:
                raise OptionError(f"{topic}-{partition} has an offset in the options but is not among what is read")
