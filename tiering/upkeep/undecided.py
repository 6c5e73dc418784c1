"""Transactions whose records are in the bucket and whose end is not: it was on the brokers alone.

A cluster that is rebuilt from the bucket, or a topic that is restored, aborts them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from object_store.errors import ObjectMissing
from object_store.store import ObjectStore
from storage.producers.producer_snapshot import NO_OFFSET, decode_snapshot
from tiering.bucket.keys import TierRoot
from tiering.bucket.segment import producers_section
from tiering.upkeep.inventory import FoundPartition

READS_AT_ONCE = 16


class UndecidedTransaction(NamedTuple):
    """`first_offset`: of its first record."""

    partition: int
    first_offset: int
    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"partition {self.partition}: producer {self.producer_id} since offset {self.first_offset}"


async def undecided_transactions(
    store: ObjectStore, root: TierRoot, partitions: Iterable[FoundPartition]
) -> list[UndecidedTransaction]:
    """Those of a topic, in order. What cannot be read names none. Partitions without transactions are not read. Raises
    StoreError."""
    places = asyncio.Semaphore(READS_AT_ONCE)

    async def of(partition: FoundPartition) -> list[UndecidedTransaction]:
        segments = () if partition.manifest is None else partition.manifest.segments
        if not any(segment.has_transactions for segment in segments):
            return []
        last = segments[-1]
        section = producers_section(last)
        if section is None or not section.length:
            return []
        async with places:
            try:
                key = root.segment_key(partition.path, last.id)
                entries = decode_snapshot(await store.get(key, section.position, section.length)).entries
            except (ObjectMissing, ValueError):
                return []
        index = partition.path.partition
        return [
            UndecidedTransaction(index, entry.transaction_start, entry.producer_id, entry.producer_epoch)
            for entry in entries
            if entry.transaction_start != NO_OFFSET
        ]

    return sorted([one for found in await asyncio.gather(*map(of, partitions)) for one in found])
