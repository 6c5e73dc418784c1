"""The producers of a partition from its first tiered batch to the last: sequences, transactions, snapshots. Pure.

Pieces are taken in the order of the log. What a producer did before the first of them is not known, nor what it did
in pieces that could not be read; nothing is concluded from what is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from records.batch import NO_SEQUENCE, SEQUENCE_MASK
from records.control import MarkerKind
from spark_offload.verification.checks import Check, Findings, Place
from spark_offload.verification.producer_runs import NO_OFFSET, Marker, Producers, Run
from spark_offload.verification.sections import AbortedEntry
from storage.producers.producer_snapshot import SnapshotEntry

EXPIRATION_MS = 86_400_000
"""`producer.id.expiration.ms`: a producer that was silent for so long may be forgotten and begin anywhere."""


REMEMBERED_MIN = 1_000
"""A snapshot with so many producers may lack the ones that were idle for longest: brokers remember a bounded number."""


@dataclass(slots=True)
class _Producer:
    epoch: int
    last_sequence: int
    last_offset: int
    last_timestamp: int


@dataclass(slots=True)
class ProducerWalk:
    """`is_sparse` segments have lost batches to compaction: there sequences may skip, and never fall back."""

    expiration_ms: int = EXPIRATION_MS
    log_start: int = 0
    _known: dict[int, _Producer] = field(default_factory=dict)
    _open: dict[int, int] = field(default_factory=dict)
    _from: int = 0
    _forgotten: bool = True  # whether producers may have a past that is not known

    def begin(self, offset: int) -> None:
        """The log is read from `offset` on; what lies before it is not known."""
        self._known.clear()
        self._open.clear()
        self._from = offset
        self._forgotten = offset > 0

    def sequences(self, producers: Producers, place: Place, findings: Findings, *, is_sparse: bool) -> None:
        """One more piece. Transactions are taken by `aborted`."""
        events: Iterable[Run | Marker] = sorted(
            chain(producers.runs, producers.markers),
            key=lambda one: one.first_offset if isinstance(one, Run) else one.offset,
        )
        findings.checks(Check.SEQUENCE, len({one.producer_id for one in producers.runs}))
        for one in events:
            known = self._known.get(one.producer_id)
            if isinstance(one, Marker):
                self._marker(one, known, place, findings)
                continue
            reason = self._complaint(one, known, is_sparse)
            if reason:
                findings.fail(Check.SEQUENCE, place, f"producer {one.producer_id}: {reason}", offset=one.first_offset)
            self._known[one.producer_id] = _Producer(one.epoch, one.last_sequence, one.last_offset, one.last_timestamp)

    def _marker(self, marker: Marker, known: _Producer | None, place: Place, findings: Findings) -> None:
        if known is None:
            self._known[marker.producer_id] = _Producer(marker.epoch, NO_SEQUENCE, NO_OFFSET, marker.timestamp)
        elif marker.epoch < known.epoch:
            text = f"producer {marker.producer_id}: a marker of epoch {marker.epoch} after epoch {known.epoch}"
            findings.fail(Check.SEQUENCE, place, text, offset=marker.offset)
        elif marker.epoch > known.epoch:
            known.epoch, known.last_sequence, known.last_offset = marker.epoch, NO_SEQUENCE, NO_OFFSET

    def _complaint(self, run: Run, known: _Producer | None, is_sparse: bool) -> str:
        if known is None:
            return ""
        if run.epoch < known.epoch:
            return f"epoch {run.epoch} after epoch {known.epoch}"
        if run.first_timestamp - known.last_timestamp >= self.expiration_ms:
            return ""
        if run.epoch > known.epoch or known.last_sequence == NO_SEQUENCE:
            first = is_sparse or run.first_sequence == 0 or (known.last_sequence == NO_SEQUENCE and self._forgotten)
            return "" if first else f"epoch {run.epoch} begins with sequence {run.first_sequence}"
        ahead = (run.first_sequence - known.last_sequence) & SEQUENCE_MASK
        if ahead == 1 or (is_sparse and 0 < ahead <= SEQUENCE_MASK // 2):
            return ""
        if 0 < ahead <= SEQUENCE_MASK // 2:
            return f"sequence {run.first_sequence} follows {known.last_sequence}: {ahead - 1} are missing"
        return f"sequence {run.first_sequence} follows {known.last_sequence}: it comes again"

    # transactions --------------------------------------------------------------------------------------------

    def aborted(self, pieces: Sequence[Producers]) -> list[AbortedEntry]:
        """The aborted transactions that end in these pieces, in order of their markers."""
        found = []
        for decision in chain.from_iterable(producers.decisions for producers in pieces):
            began = self._open.get(decision.producer_id, decision.first_offset)
            if decision.marker_offset == NO_OFFSET:
                if began != NO_OFFSET:
                    self._open[decision.producer_id] = began
                continue
            self._open.pop(decision.producer_id, None)
            if decision.kind == MarkerKind.ABORT and began != NO_OFFSET:
                stable = min(self._open.values(), default=decision.marker_offset + 1)
                found.append(AbortedEntry(decision.producer_id, began, decision.marker_offset, stable))
        return found

    def check_aborted(
        self,
        found: Sequence[AbortedEntry],
        index: Sequence[AbortedEntry],
        place: Place,
        findings: Findings,
        *,
        is_sparse: bool,
    ) -> None:
        """`found` is what the log of a segment says, `index` what its transaction index says."""
        findings.checks(Check.TRANSACTION_INDEX, len(found))
        listed = {(entry.producer_id, entry.last_offset): entry for entry in index}
        for entry in found:
            other = listed.pop((entry.producer_id, entry.last_offset), None)
            reason = ""
            if other is None:
                reason = f"the index lacks the aborted transaction of producer {entry.producer_id}"
            elif other.first_offset > entry.first_offset or (
                other.first_offset < entry.first_offset and not is_sparse and other.first_offset >= self._from
            ):
                reason = f"the index has an aborted transaction begin at {other.first_offset}, not {entry.first_offset}"
            elif other.last_stable_offset > entry.last_stable_offset and not self._forgotten:
                reason = f"the index gives the last stable offset {other.last_stable_offset}, it was at most "
                reason += f"{entry.last_stable_offset}"
            if reason:
                findings.fail(Check.TRANSACTION_INDEX, place, reason, offset=entry.first_offset)
        for entry in listed.values():
            if is_sparse or entry.first_offset < self._from:
                continue
            reason = f"the index has an aborted transaction of producer {entry.producer_id} that the log does not have"
            findings.fail(Check.TRANSACTION_INDEX, place, reason, offset=entry.first_offset)

    # snapshots -----------------------------------------------------------------------------------------------

    def check_snapshot(
        self,
        entries: Sequence[SnapshotEntry],
        written_ms: int,
        place: Place,
        findings: Findings,
        *,
        is_sparse: bool,
    ) -> None:
        """The snapshot of the end of what was walked through so far; it was written before `written_ms`."""
        findings.checks(Check.PRODUCER_SNAPSHOT, 1)
        expected = {entry.producer_id: entry for entry in entries}
        for producer_id, known in list(self._known.items()):
            entry = expected.pop(producer_id, None)
            if entry is None:
                del self._known[producer_id]  # whatever it writes next is a beginning
                if known.last_offset < self.log_start or len(entries) >= REMEMBERED_MIN:
                    continue
            reason = _snapshot_complaint(known, entry, written_ms - self.expiration_ms, is_sparse)
            if entry is not None and not reason and not is_sparse:
                began = self._open.get(producer_id, NO_OFFSET)
                is_past = NO_OFFSET < entry.transaction_start < self._from
                if began != entry.transaction_start and not is_past:
                    reason = f"its open transaction begins at {entry.transaction_start}, in the log at {began}"
            if reason:
                findings.fail(Check.PRODUCER_SNAPSHOT, place, f"producer {producer_id}: {reason}")
        for entry in expected.values():
            if entry.last_offset >= self._from and not is_sparse:
                text = f"producer {entry.producer_id}: its last batch, to offset {entry.last_offset}, is not in the log"
                findings.fail(Check.PRODUCER_SNAPSHOT, place, text)

    def adopt(self, entries: Sequence[SnapshotEntry], offset: int) -> None:
        """Go on from what a snapshot says, behind a segment that could not be read as a whole."""
        self.begin(offset)
        for entry in entries:
            self._known[entry.producer_id] = _Producer(
                entry.producer_epoch, entry.last_sequence, entry.last_offset, entry.last_timestamp
            )
            if entry.transaction_start != NO_OFFSET:
                self._open[entry.producer_id] = entry.transaction_start


def _snapshot_complaint(known: _Producer, entry: SnapshotEntry | None, expired_ms: int, is_sparse: bool) -> str:
    if entry is None:
        return "" if known.last_timestamp <= expired_ms else "the snapshot does not have it"
    if entry.producer_epoch != known.epoch and not (is_sparse and entry.producer_epoch > known.epoch):
        return f"epoch {entry.producer_epoch}, in the log {known.epoch}"
    if entry.producer_epoch != known.epoch or (known.last_sequence == NO_SEQUENCE and known.last_offset == NO_OFFSET):
        return ""
    if is_sparse and entry.last_offset >= known.last_offset:
        return ""
    if (entry.last_sequence, entry.last_offset) != (known.last_sequence, known.last_offset):
        return (
            f"sequence {entry.last_sequence} at offset {entry.last_offset}, "
            f"in the log {known.last_sequence} at {known.last_offset}"
        )
    return ""
