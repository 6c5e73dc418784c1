"""The first pass over a partition: finds the newest record of each key, and what else the second pass needs.

It keeps a few bits per record, so a partition of a billion records takes some hundred megabytes at most. Counted
records are those of clients in transactions that were not aborted; every pass counts them in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from records.batch import DELETE_HORIZON
from spark_offload.compaction.latest_keys import Bucket, LatestKeys
from spark_offload.compaction.transactions import MarkerFate, MarkerNotes, Transactions
from spark_offload.options import INFLATED_BYTES_MAX
from spark_offload.rewriting.log_pieces import Piece
from spark_offload.segments.arrow_columns import binary_column
from spark_offload.segments.batch_scan import BatchTable, Flags
from spark_offload.segments.payload import Payload, payloads
from spark_offload.segments.record_table import RecordTable, locate_records
from tiering.bucket.segment import TieredSegment

Bits = npt.NDArray[np.uint8]


class ReadLog(Protocol):
    """The pieces of one segment's log, in order; may raise DamagedObject, StoreError."""

    def __call__(self, segment: TieredSegment) -> Iterator[Piece]: ...


@dataclass(slots=True)
class SegmentNotes:
    """The result of the first pass for a segment; bits are packed, one for each counted record.

    `latest`: no later record has its key. `expired`: a tombstone whose delete horizon has passed. `fresh`: a tombstone
    in a batch without a horizon. None: no such record.
    """

    segment: TieredSegment
    records: int = 0
    latest: Bits | None = None
    expired: Bits | None = None
    fresh: Bits | None = None
    records_aborted: int = 0
    records_without_key: int = 0
    markers: MarkerNotes = field(default_factory=MarkerNotes)

    def kept(self, *, deletes_go: bool) -> Flags:
        """Which of the counted records stay."""
        keep = unpacked(self.latest, self.records)
        if deletes_go and self.expired is not None:
            keep &= ~unpacked(self.expired, self.records)
        return keep

    def marked(self, keep: Flags) -> Flags:
        """Of those that stay, the tombstones that have to get a delete horizon."""
        if self.fresh is None:
            return np.zeros(self.records, np.bool_)
        return keep & unpacked(self.fresh, self.records)

    def fates(self, *, deletes_go: bool) -> dict[int, MarkerFate]:
        if deletes_go:
            return self.markers.fates
        return {offset: fate for offset, fate in self.markers.fates.items() if fate is not MarkerFate.DROPPED}


@dataclass(slots=True)
class Survey:
    """`readings`: how often the partition was read."""

    notes: list[SegmentNotes]
    keys: int = 0
    readings: int = 1


def counted(batches: BatchTable, transactions: Transactions) -> tuple[Flags, Flags]:
    """(batches with counted records, batches of aborted transactions)."""
    data = ~batches.is_control & (batches.count > 0)
    aborted = transactions.covers(batches)
    return data & ~aborted, aborted & data


def survey(
    segments: Sequence[TieredSegment],
    read: ReadLog,
    transactions: Transactions,
    now_ms: int,
    key_memory_bytes: int,
) -> Survey:
    """Read all `segments`, which begin at the log start, as often as the memory for keys requires.

    Raises DamagedObject, StoreError.
    """
    result = Survey([SegmentNotes(segment) for segment in segments])
    latest = LatestKeys(memory_bytes=key_memory_bytes)
    first = 0
    for notes in result.notes:
        _first_reading(notes, read(notes.segment), transactions, latest, first, now_ms)
        first += notes.records
    _take_over(result, latest)
    waiting: list[Bucket] = list(latest.put_off)
    while waiting:
        latest = LatestKeys(waiting.pop(), key_memory_bytes)
        first = 0
        for notes in result.notes:
            for piece in read(notes.segment):
                with piece.located():
                    first = _keys_of_piece(piece, transactions, latest, first)
        _take_over(result, latest)
        waiting += latest.put_off
        result.readings += 1
    return result


def _first_reading(
    notes: SegmentNotes,
    pieces: Iterable[Piece],
    transactions: Transactions,
    latest: LatestKeys,
    first: int,
    now_ms: int,
) -> None:
    """`first`: the number of counted records in earlier segments."""
    expired: list[Flags] = []
    fresh: list[Flags] = []
    for piece in pieces:
        with piece.located():
            transactions.note(piece.view, piece.batches, notes.markers, now_ms)
            look, aborted = counted(piece.batches, transactions)
            notes.records_aborted += int(piece.batches.count[aborted].sum())
            for payload, records in _located(piece, look):
                place = first + notes.records
                notes.records += len(records)
                notes.records_without_key += _add_keys(latest, payload, records, place)
                tombstone = records.value_length < 0
                has_horizon = (payload.batches.attributes & DELETE_HORIZON) != 0
                passed = has_horizon & (payload.batches.base_timestamp <= now_ms)
                expired.append(tombstone & passed[records.batch])
                fresh.append(tombstone & ~has_horizon[records.batch])
    notes.expired, notes.fresh = _packed(expired), _packed(fresh)


def _keys_of_piece(piece: Piece, transactions: Transactions, latest: LatestKeys, first: int) -> int:
    look, _ = counted(piece.batches, transactions)
    for payload, records in _located(piece, look):
        _add_keys(latest, payload, records, first)
        first += len(records)
    return first


def _located(piece: Piece, look: Flags) -> Iterator[tuple[Payload, RecordTable]]:
    batches = piece.batches if look.all() else piece.batches.where(look)
    for payload in payloads(piece.view, batches, inflated_bytes_max=INFLATED_BYTES_MAX):
        yield payload, locate_records(payload)


def _add_keys(latest: LatestKeys, payload: Payload, records: RecordTable, first: int) -> int:
    """The number of records without a key: they are removed, although nothing replaces them."""
    places = np.arange(first, first + len(records), dtype=np.int64)
    keys: pa.Array = binary_column(payload.view, records.key_at, records.key_length)
    without = int(keys.null_count)
    if without:
        places = places[records.key_length >= 0]
        keys = keys.drop_null()
    latest.add(keys, places)
    return without


def _take_over(result: Survey, latest: LatestKeys) -> None:
    places = latest.places()
    result.keys += len(latest)
    first = 0
    for notes in result.notes:
        low, high = np.searchsorted(places, (first, first + notes.records)).tolist()
        flags = unpacked(notes.latest, notes.records)
        flags[places[low:high] - first] = True
        notes.latest = np.packbits(flags)
        first += notes.records


def _packed(flags: list[Flags]) -> Bits | None:
    if not any(some.any() for some in flags):
        return None
    return np.packbits(np.concatenate(flags))


def unpacked(bits: Bits | None, count: int) -> Flags:
    """The unpacked flags; all false for None."""
    if bits is None:
        return np.zeros(count, np.bool_)
    return np.unpackbits(bits, count=count).view(np.bool_)
