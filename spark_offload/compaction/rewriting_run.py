"""The second pass over a run of segments: writes new ones without the records that the first pass found superseded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spark_offload.compaction.runs import Run, SegmentForecast, closes_before
from spark_offload.compaction.survey import ReadLog, SegmentNotes, counted
from spark_offload.compaction.transactions import MarkerFate, Transactions
from spark_offload.rewriting.last_batches import LastBatches
from spark_offload.rewriting.log_pieces import Piece
from spark_offload.rewriting.new_segment import NewSegment
from spark_offload.rewriting.rewriter import NO_HORIZON, BatchPlan, Choice, Rewritten, rewrite
from spark_offload.segments.batch_scan import Flags
from spark_offload.segments.payload import Payload
from spark_offload.segments.record_table import RecordTable
from spark_offload.segments.varints import Integers
from storage.indexes.transaction_index import encode
from tiering.bucket.segment import TieredSegment

PutSegment = Callable[[NewSegment, list[bytes]], TieredSegment]
"""Writes the object; the second argument are the entries of its transaction index."""


class RunSettings(NamedTuple):
    """`horizon_ms`: the delete horizon for tombstones and markers without one."""

    segment_bytes: int
    index_interval_bytes: int
    horizon_ms: int


@dataclass(slots=True)
class RunRewriter:
    """Rewrites runs of one partition; `lasts` are its producers' last batches at the end of what is compacted."""

    read: ReadLog
    transactions: Transactions
    lasts: LastBatches
    settings: RunSettings
    put: PutSegment

    def rewrite(self, run: Run) -> list[TieredSegment]:
        """The segments that replace those of `run`, all in the store.

        Raises DamagedObject, StoreError, OSError, ValueError for a segment that outgrows its indexes.
        """
        outputs: list[TieredSegment] = []
        first, settings = run.forecasts[0], self.settings
        output = NewSegment(first.segment.base_offset, settings.index_interval_bytes)
        transactions: list[bytes] = []
        try:
            for one in run.forecasts:
                is_empty = not output.log_bytes
                if closes_before(one, output.base_offset, output.log_bytes, is_empty, settings.segment_bytes):
                    outputs.append(self._put(output, transactions))
                    output = NewSegment(one.segment.base_offset, settings.index_interval_bytes)
                    transactions = []
                self._add(one, output, deletes_go=run.deletes_go)
                transactions += map(encode, one.notes.markers.transactions)
            outputs.append(self._put(output, transactions))
        finally:
            output.close()
        return outputs

    def _put(self, output: NewSegment, transactions: list[bytes]) -> TieredSegment:
        with closing(output):
            return self.put(output, transactions)

    def _add(self, one: SegmentForecast, output: NewSegment, *, deletes_go: bool) -> None:
        output.begin(one.segment)
        choice = _SegmentChoice(one.notes, deletes_go=deletes_go)
        for piece in self.read(one.segment):
            with piece.located():
                output.append(self._rewritten(piece, choice))

    def _rewritten(self, piece: Piece, choice: _SegmentChoice) -> Rewritten:
        batches = piece.batches
        counts, aborted = counted(batches, self.transactions)
        rows = np.flatnonzero(counts)
        keep, marked = choice.take(int(batches.count[rows].sum()))
        kept, marks = _per_batch(keep, batches.count[rows]), _per_batch(marked, batches.count[rows])
        gone = aborted | (batches.count == 0)
        gone[rows] = kept == 0
        look = np.zeros(len(batches), np.bool_)
        look[rows] = (kept > 0) & ((kept < batches.count[rows]) | (marks > 0))
        horizon = np.full(len(batches), NO_HORIZON, np.int64)
        horizon[rows[marks > 0]] = self.settings.horizon_ms
        if choice.fates:
            for row in np.flatnonzero(batches.is_control).tolist():
                fate = choice.fates.get(int(batches.base_offset[row]))
                gone[row] |= fate is MarkerFate.DROPPED
                if fate is MarkerFate.MARKED:
                    look[row] = True
                    horizon[row] = self.settings.horizon_ms
        flags = np.ones(int(batches.count[look].sum()), np.bool_)  # control records stay
        flags[np.repeat(counts[look], batches.count[look])] = keep[np.repeat(look[rows], batches.count[rows])]
        plan = BatchPlan(look, gone, self.lasts.among(batches))
        return rewrite(piece.view, batches, plan, _Prepared(flags, horizon[look]))


class _SegmentChoice:
    """The first pass's flags of one segment, returned in order."""

    def __init__(self, notes: SegmentNotes, *, deletes_go: bool) -> None:
        self._keep = notes.kept(deletes_go=deletes_go)
        self._marked = notes.marked(self._keep)
        self._at = 0
        self.fates = notes.fates(deletes_go=deletes_go)

    def take(self, count: int) -> tuple[Flags, Flags]:
        """(records that stay, those of them that ask for a horizon) of the next `count` ones."""
        start, self._at = self._at, self._at + count
        return self._keep[start : self._at], self._marked[start : self._at]


class _Prepared:
    """A chooser whose answers are known: flags per record and horizons per batch that is looked into."""

    def __init__(self, keep: Flags, horizon_ms: Integers) -> None:
        self._keep, self._horizon_ms = keep, horizon_ms
        self._record = self._batch = 0

    def __call__(self, payload: Payload, records: RecordTable) -> Choice:
        record, batch = self._record, self._batch
        self._record += len(records)
        self._batch += len(payload.batches)
        return Choice(self._keep[record : self._record], self._horizon_ms[batch : self._batch])


def _per_batch(flags: Flags, count: Integers) -> Integers:
    """How many are set among the records of each batch; every batch has some."""
    if not len(count):
        return np.zeros(0, np.int64)
    sums: Integers = np.add.reduceat(flags.astype(np.int64), np.cumsum(count) - count)
    return sums
