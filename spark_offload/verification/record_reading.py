"""The committed records of whole segments, for comparisons: what is damaged was reported by who checks the pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from object_store.blocking import Coming
from object_store.errors import StoreError
from spark_offload.segments.aborted import AbortedRanges, AbortedTransaction
from spark_offload.segments.batch_scan import Flags
from spark_offload.verification.checks import Findings, Place
from spark_offload.verification.headers import Headers, joined
from spark_offload.verification.log_walk import LogWalk
from spark_offload.verification.pieces import UNKNOWN
from spark_offload.verification.producer_runs import summarise
from spark_offload.verification.producer_walk import ProducerWalk
from spark_offload.verification.record_checks import Decoded, decode, marker_kinds, sound
from spark_offload.verification.sections import aborted_entries
from tiering.bucket.segment import TRANSACTION_INDEX, TieredSegment

_NOWHERE = Place("", -1)


class Getter(Protocol):
    """`object_store.blocking.BlockingStore`, as far as it is needed here."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes: ...
    def begin_get(self, key: str, start: int = 0, length: int | None = None) -> Coming: ...


class Source(NamedTuple):
    """A segment's object: the log ends at offset `end_offset` or at byte `log_bytes`, what is behind it is no log."""

    key: str
    end_offset: int
    log_bytes: int


class Unreadable(Exception):
    """An object of which the records cannot all be had."""


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Reads from `store`, `chunk_bytes` at a time."""

    store: Getter
    chunk_bytes: int
    inflated_bytes_max: int

    def records(self, source: Source, aborted: AbortedRanges) -> Iterator[tuple[Decoded, Flags]]:
        """With which of them are committed and no marker. Raises Unreadable."""
        findings = Findings()
        at = UNKNOWN
        walk = self._walk(source)
        for stretch in walk.stretches():
            good = sound(stretch.headers)
            if len(good) != len(stretch.headers):
                if at < source.end_offset:
                    raise Unreadable(f"object {source.key} is damaged behind offset {at}")
                return
            inside = good.column("base_offset") < source.end_offset
            good = good if inside.all() else good.where(inside)
            at = int(good.last_offset[-1]) + 1 if len(good) else at
            for decoded in decode(stretch, good, self.inflated_bytes_max, _NOWHERE, findings):
                batches = decoded.payload.batches
                counts = ~batches.is_control & ~aborted.covers(batches)
                yield decoded, counts[decoded.records.batch]
        if findings.problems:
            raise Unreadable(f"object {source.key}: {findings.problems[0].reason}")
        if any(lost.at < source.log_bytes and at < source.end_offset for lost in walk.unreadable):
            raise Unreadable(f"object {source.key} cannot be read behind offset {at}: {walk.unreadable[0].reason}")

    def aborted_in_logs(self, sources: Iterable[Source]) -> list[AbortedTransaction]:
        """What the markers of these logs, in order, say themselves."""
        walk, found = ProducerWalk(), []
        for source in sources:
            parts: list[Headers] = []
            kinds: dict[int, int] = {}
            for stretch in self._walk(source).stretches():
                good = sound(stretch.headers)
                parts.append(good)
                kinds |= marker_kinds(stretch, good, _NOWHERE, Findings())
            headers = joined(parts)
            if len(headers) and headers.is_transactional.any():
                found += walk.aborted([summarise(headers, kinds)])
        return [AbortedTransaction(one.producer_id, one.first_offset, one.last_offset) for one in found]

    def aborted_in_index(self, key: str, segment: TieredSegment) -> list[AbortedTransaction]:
        """None that can be distinguished from a damaged one, which is reported elsewhere."""
        section = segment.sections.get(TRANSACTION_INDEX)
        if section is None or not section.length:
            return []
        try:
            entries = aborted_entries(self.store.get(key, section.position, section.length))
        except (StoreError, ValueError):
            return []
        return [AbortedTransaction(one.producer_id, one.first_offset, one.last_offset) for one in entries]

    def _walk(self, source: Source) -> LogWalk:
        def begin(position: int, size: int) -> Coming:
            return self.store.begin_get(source.key, position, size)

        return LogWalk(begin, 0, source.log_bytes, np.empty(0, np.int64), self.chunk_bytes)
