"""Aborted and open transactions, from the tier's transaction indexes and producer snapshots.

A transaction index lists aborted transactions under the segment that holds their abort marker, which may be a later
one than that of their records. The producer snapshot of the last segment shows which transactions are still open at
the tier's end.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

import numpy as np

from spark_offload.segments.batch_scan import BatchTable, Flags
from spark_offload.segments.varints import Integers
from storage.indexes.transaction_index import decode
from storage.producers.producer_snapshot import NO_OFFSET, decode_snapshot


class AbortedTransaction(NamedTuple):
    """Transactional records of `producer_id` with offsets from `first_offset` to `last_offset` do not count."""

    producer_id: int
    first_offset: int
    last_offset: int


class AbortedRanges:
    """The aborted transactions that touch one split; empty for readers of uncommitted records."""

    def __init__(self, transactions: Iterable[AbortedTransaction] = ()) -> None:
        ordered = sorted(transactions)
        self._by_producer: dict[int, tuple[Integers, Integers]] = {}
        for producer_id, group in groupby(ordered, lambda transaction: transaction.producer_id):
            spans = np.array([(one.first_offset, one.last_offset) for one in group], np.int64)
            self._by_producer[producer_id] = (spans[:, 0], spans[:, 1])

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def covers(self, batches: BatchTable) -> Flags:
        """Which batches belong to one of them."""
        covered = np.zeros(len(batches), np.bool_)
        for producer_id in np.unique(batches.producer_id[batches.is_transactional]).tolist():
            if (spans := self._by_producer.get(producer_id)) is None:
                continue
            rows = np.flatnonzero(batches.is_transactional & (batches.producer_id == producer_id))
            covered[rows] = _inside(batches.base_offset[rows], *spans)
        return covered


def _inside(offset: Integers, first: Integers, last: Integers) -> Flags:
    """One producer's transactions follow each other: only the last one that began before an offset can hold it."""
    nearest = np.searchsorted(first, offset, side="right") - 1
    held: Flags = (nearest >= 0) & (offset <= last[nearest])
    return held


def aborted_in_index(data: bytes) -> list[AbortedTransaction]:
    """The entries of a transaction index section. Raises ValueError for an invalid one."""
    return [AbortedTransaction(one.producer_id, one.first_offset, one.last_offset) for one in decode(data)]


def first_open_offset(snapshot: bytes) -> int | None:
    """The start of the first transaction that is open in a producer snapshot; None if none is.

    ValueError for an invalid producer snapshot.
    """
    starts = [entry.transaction_start for entry in decode_snapshot(snapshot).entries]
    return min((start for start in starts if start != NO_OFFSET), default=None)
