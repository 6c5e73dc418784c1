"""Determines aborted records and superfluous markers, batch by batch in order of offsets.

A marker is needed while a batch of its transaction remains below it. After that it gets a delete horizon like a
tombstone, and is removed when that has passed. The entry of an aborted transaction in the transaction index stays as
long as it applies to remaining batches. Source: KIP-98, KIP-534 and the behaviour of Apache Kafka 4.1's Cleaner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from common.errors import ProtocolError
from records.batch import DELETE_HORIZON
from records.control import MarkerKind, read_marker
from spark_offload.segments.aborted import AbortedRanges
from spark_offload.segments.aborted import AbortedTransaction as AbortedRange
from spark_offload.segments.batch_scan import BatchTable, Flags
from spark_offload.segments.varints import DamagedRecords
from storage.indexes.transaction_index import AbortedTransaction


class MarkerFate(Enum):
    """`MARKED`: it gets a delete horizon. `DROPPED`: its horizon has passed."""

    MARKED = "marked"
    DROPPED = "dropped"


@dataclass(slots=True)
class MarkerNotes:
    """Notes of one segment: control batches to mark or drop, by base offset, and the entries of its new transaction
    index."""

    fates: dict[int, MarkerFate] = field(default_factory=dict)
    transactions: list[AbortedTransaction] = field(default_factory=list)


class Transactions:
    """Pass it all batches from the log start on, once. `covers` may be called at any time."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        known = list(aborted)
        self._ranges = AbortedRanges(AbortedRange(*one[:3]) for one in known)
        self._by_marker = {(one.producer_id, one.last_offset): one for one in known}
        self._seen: set[int] = set()  # producers with batches since their last marker

    def covers(self, batches: BatchTable) -> Flags:
        """Data batches of aborted transactions."""
        if not self._ranges:
            return np.zeros(len(batches), np.bool_)
        return self._ranges.covers(batches) & ~batches.is_control

    def note(self, view: memoryview, batches: BatchTable, notes: MarkerNotes, now_ms: int) -> None:
        """Raises DamagedRecords for an invalid control batch."""
        control = batches.is_control
        transactional = batches.is_transactional & ~control
        for row in np.flatnonzero(control | transactional).tolist():
            producer_id = int(batches.producer_id[row])
            if control[row]:
                self._note_marker(view, batches, row, producer_id, notes, now_ms)
            else:
                self._seen.add(producer_id)

    def _note_marker(
        self, view: memoryview, batches: BatchTable, row: int, producer_id: int, notes: MarkerNotes, now_ms: int
    ) -> None:
        at, base_offset = int(batches.at[row]), int(batches.base_offset[row])
        if not batches.count[row]:
            return  # emptied before
        try:
            marker = read_marker(view, at, int(batches.end[row]) - at)
        except ProtocolError as error:
            raise DamagedRecords(f"the control batch at offset {base_offset}: {error.message}") from error
        if marker is None:
            return  # not a transaction's
        if producer_id in self._seen:
            self._seen.discard(producer_id)
            entry = self._by_marker.get((producer_id, base_offset))
            if marker.kind is MarkerKind.ABORT and entry is not None:
                notes.transactions.append(entry)
        elif not batches.attributes[row] & DELETE_HORIZON:
            notes.fates[base_offset] = MarkerFate.MARKED
        elif batches.base_timestamp[row] <= now_ms:
            notes.fates[base_offset] = MarkerFate.DROPPED
