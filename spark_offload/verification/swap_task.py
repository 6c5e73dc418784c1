"""Whether a rewriting kept what it had to: the new segments beside those they replaced. Runs in a Spark executor.

Every record of the new segments lies in the old ones, at the same offset, byte for byte and with the same timestamp.
The latest record of a key is still there, unless a later one of it lies behind, or it is a tombstone whose time had
come, which it has only where nothing older can be left below.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from object_store.errors import StoreError
from spark_offload.reading.task import store_at
from spark_offload.segments.aborted import AbortedRanges, AbortedTransaction
from spark_offload.segments.varints import Integers
from spark_offload.verification.checks import Check, Findings, Place
from spark_offload.verification.key_table import NO_KEYS, KeyTable, LatestKeys, contents
from spark_offload.verification.pieces import TaskOptions
from spark_offload.verification.record_reading import Getter, RecordReader, Source, Unreadable
from tiering.bucket.segment import TieredSegment


@dataclass(frozen=True, slots=True)
class SwapPiece:
    """`outputs` took the place of `inputs`; `later` are the segments behind them as they are now. `indexed` are the
    segments whose transaction indexes may tell of aborted transactions, with their keys."""

    topic: str
    partition: int
    proposal: str
    kind: str
    reaches_log_start: bool
    inputs: tuple[Source, ...]
    outputs: tuple[Source, ...]
    later: tuple[Source, ...]
    indexed: tuple[tuple[str, TieredSegment], ...] = ()

    @property
    def bytes(self) -> int:
        return sum(source.log_bytes for source in (*self.inputs, *self.outputs))


def check_swap(settings: TaskOptions, piece: SwapPiece) -> Findings:
    """What a Spark task does."""
    return SwapCheck(store_at(settings.tier), settings, piece).findings()


@dataclass(slots=True)
class _Kept:
    """Records of the outputs, ascending by offset; `seen` once they were met among the inputs."""

    offset: Integers
    timestamp: Integers
    crc: Integers
    seen: np.ndarray[tuple[int], np.dtype[np.bool_]]


class SwapCheck:
    def __init__(self, store: Getter, settings: TaskOptions, piece: SwapPiece) -> None:
        self._reader = RecordReader(store, settings.chunk_bytes, settings.inflated_batch_bytes)
        self._piece = piece
        self._found = Findings()
        self._place = Place(piece.topic, piece.partition)

    def findings(self) -> Findings:
        self._found.checks(Check.COMPACTION)
        try:
            self._compare()
        except (Unreadable, StoreError) as error:  # inputs go after their delay
            text = f"rewriting {self._piece.proposal} cannot be compared any more: {error}"
            self._found.notice(Check.COMPACTION, self._place, text)
        return self._found

    def _compare(self) -> None:
        piece = self._piece
        aborted = self._aborted()
        kept, new = self._outputs(aborted)
        old = self._inputs(kept, aborted)
        invented = np.flatnonzero(~kept.seen)
        if len(invented):
            text = "the new segments hold a record that the old ones do not have"
            self._fail(text, int(kept.offset[invented[0]]), len(invented))
        if piece.kind == "compaction":
            self._compare_keys(old, new, aborted)

    def _aborted(self) -> AbortedRanges:
        found: list[AbortedTransaction] = self._reader.aborted_in_logs(self._piece.inputs)
        for key, segment in self._piece.indexed:
            found += self._reader.aborted_in_index(key, segment)
        return AbortedRanges(dict.fromkeys(found))

    def _outputs(self, aborted: AbortedRanges) -> tuple[_Kept, KeyTable]:
        keys = LatestKeys()
        columns: list[tuple[Integers, Integers, Integers]] = []
        for source in self._piece.outputs:
            for decoded, counts in self._reader.records(source, aborted):
                keys.add(decoded, counts)
                rows = np.flatnonzero(counts)
                records = decoded.records
                columns.append((records.offset[rows], records.timestamp[rows], contents(decoded, rows)))
        if not columns:
            none = np.empty(0, np.int64)
            return _Kept(none, none, none, np.empty(0, np.bool_)), keys.table()
        offset, timestamp, crc = (np.concatenate(column) for column in zip(*columns, strict=True))
        return _Kept(offset, timestamp, crc, np.zeros(len(offset), np.bool_)), keys.table()

    def _inputs(self, kept: _Kept, aborted: AbortedRanges) -> KeyTable:
        """The latest of each key; `kept` is compared on the way."""
        keys = LatestKeys()
        for source in self._piece.inputs:
            for decoded, counts in self._reader.records(source, aborted):
                keys.add(decoded, counts)
                if not len(kept.offset):
                    continue
                records = decoded.records
                at = np.minimum(np.searchsorted(kept.offset, records.offset), len(kept.offset) - 1)
                rows = np.flatnonzero(counts & (kept.offset[at] == records.offset))
                at = at[rows]
                kept.seen[at] = True
                other = (kept.crc[at] != contents(decoded, rows)) | (kept.timestamp[at] != records.timestamp[rows])
                if other.any():
                    offset = int(kept.offset[at[np.flatnonzero(other)[0]]])
                    self._fail("the record is not that of the old segments", offset, int(other.sum()))
        return keys.table()

    def _compare_keys(self, old: KeyTable, new: KeyTable, aborted: AbortedRanges) -> None:
        rows, there = new.rows_of(old.key_hash)
        is_back = there & (new.offset[rows] < old.offset) if new.rows else there
        gone = np.flatnonzero(~there | is_back)
        if not len(gone):
            return
        gone_keys, back = old.taken(gone), is_back[gone]
        is_later = self._later(gone_keys, aborted).rows_of(gone_keys.key_hash)[1]
        self._tell(gone_keys.taken(back & ~is_later), "its place is taken by an older one")
        is_missing = ~back & ~is_later
        self._tell(gone_keys.taken(is_missing & ~gone_keys.is_tombstone), "it is gone, and no later one is there")
        if not self._piece.reaches_log_start:
            reason = "it is gone, and older ones may lie below the rewritten segments"
            self._tell(gone_keys.taken(is_missing & gone_keys.is_tombstone), reason)

    def _later(self, wanted: KeyTable, aborted: AbortedRanges) -> KeyTable:
        """Of these keys, what lies behind the rewritten segments; reading ends when all were met."""
        keys, met = LatestKeys(), NO_KEYS
        for source in self._piece.later:
            for decoded, counts in self._reader.records(source, aborted):
                keys.add(decoded, counts)
            met = keys.table()
            if met.rows_of(wanted.key_hash)[1].all():
                break
        return met

    def _tell(self, lost: KeyTable, words: str) -> None:
        if not lost.rows:
            return
        what = "the tombstone" if lost.is_tombstone[0] else "the latest value"
        text = f"{what} of the key with the hash {int(lost.key_hash[0]):016x} was at this offset: {words}"
        self._fail(text, int(lost.offset[0]), lost.rows)

    def _fail(self, reason: str, offset: int, count: int) -> None:
        more = f"; so it is with {count - 1} more" if count > 1 else ""
        text = f"{self._piece.kind} {self._piece.proposal}: {reason}{more}"
        self._found.fail(Check.COMPACTION, self._place, text, offset=offset, more=count - 1)


def sources_before(inputs: Sequence[tuple[int, str, int]], end_offset: int) -> Iterable[Source]:
    """(base offset, key, bytes that are there) of consecutive segments: each ends where the next one begins."""
    bounds = [base for base, _, _ in inputs[1:]] + [end_offset]
    for (_, key, size), end in zip(inputs, bounds, strict=True):
        yield Source(key, end, size)
