"""Checking one piece of a segment: what runs in a Spark executor. Damage is a finding, never an exception."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from common.checksum import crc32c
from common.machine import MachineClock
from object_store.blocking import Coming
from object_store.errors import ObjectMissing, StoreError
from records.batch import HEADER_BYTES, MAGIC, read_header
from spark_offload.reading.task import spared_collector, store_at
from spark_offload.segments.arrow_columns import binary_column
from spark_offload.segments.sections import OffsetEntries, offset_entries, time_entries
from spark_offload.segments.sound_records import surely_sound
from spark_offload.segments.varints import Integers
from spark_offload.verification.batch_checks import Expected, check_batches
from spark_offload.verification.checks import Check, Findings
from spark_offload.verification.headers import Headers, joined
from spark_offload.verification.index_checks import check_offset_index, check_order, check_time_index
from spark_offload.verification.ledger import key_hashes
from spark_offload.verification.log_walk import LogWalk, Stretch
from spark_offload.verification.pieces import Piece, PieceResult, Sections, TaskOptions
from spark_offload.verification.producer_runs import summarise
from spark_offload.verification.record_checks import Glance, RecordChecker, decode, marker_kinds, sound
from spark_offload.verification.record_reading import Getter
from spark_offload.verification.sections import aborted_entries, epoch_entries
from storage.producers.producer_snapshot import decode_snapshot
from tiering.bucket.segment import LEADER_EPOCHS, OFFSET_INDEX, PRODUCER_SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX

T = TypeVar("T")
SPANS_MAX = 1_000


def check_pieces(settings: TaskOptions, pieces: Sequence[Piece]) -> list[PieceResult]:
    """What a Spark task does."""
    with spared_collector():
        store = store_at(settings.tier)
        return [check_piece(store, settings, piece) for piece in pieces]


def check_piece(store: Getter, settings: TaskOptions, piece: Piece, glance: Glance = surely_sound) -> PieceResult:
    """Everything that can be said of a piece by itself."""
    clock = MachineClock()
    began = clock.monotonic()
    checker = _PieceChecker(store, settings, piece, glance)
    answer = checker.answer
    try:
        checker.check()
    except ObjectMissing:
        checker.fail(Check.OBJECT_MISSING, "the object is not there")
    except StoreError as error:
        checker.fail(Check.OBJECT_UNREADABLE, str(error))
    answer.seconds = clock.monotonic() - began
    return answer


class _PieceChecker:
    def __init__(self, store: Getter, settings: TaskOptions, piece: Piece, glance: Glance) -> None:
        self._store = store
        self._settings = settings
        self._piece = piece
        self._found = Findings()
        self.answer = PieceResult(piece.row, piece.number, findings=self._found)
        self._records = RecordChecker(settings.inflated_batch_bytes, piece.place, self._found, glance)
        if len(piece.writes.offset):
            self.answer.present = np.zeros(len(piece.writes.offset), np.bool_)

    def fail(self, check: Check, reason: str, *, offset: int = -1, position: int = -1) -> None:
        self._found.fail(check, self._piece.place, reason, offset=offset, position=position)

    def check(self) -> None:
        answer = self.answer
        sections = self._sections()
        if self._piece.number == 0:
            answer.sections = sections
        entries = sections.offsets or OffsetEntries(np.empty(0, np.int64), np.empty(0, np.int64))
        low, high = self._bounds(entries)
        answer.begin = answer.end = low
        answer.is_whole = low >= high
        if low < high:
            self._walk(low, high, entries, sections)

    def _walk(self, low: int, high: int, entries: OffsetEntries, sections: Sections) -> None:
        answer, place = self.answer, self._piece.place
        walk = LogWalk(self._begin, low, high, np.sort(entries.position), self._settings.chunk_bytes)
        parts: list[Headers] = []
        kinds: dict[int, int] = {}
        for stretch in walk.stretches():
            parts.append(stretch.headers)
            if stretch.origin == answer.end:
                size = int(stretch.headers.end[-1]) - stretch.origin
                answer.crc = crc32c(stretch.view[:size], answer.crc)
                answer.end += size
            if stretch.headers.has_any_control:
                kinds |= marker_kinds(stretch, sound(stretch.headers), place, self._found)
            if self._settings.deep or answer.present is not None:
                self._look_into(stretch)
        for lost in walk.unreadable:
            text = f"bytes {lost.at} to {lost.resumed} are unreadable: {lost.reason}"
            self.fail(Check.OBJECT_UNREADABLE, text, position=lost.at)
        answer.is_whole = not walk.unreadable
        headers = joined(parts)
        if not len(headers):
            return
        check_batches(headers, self._expected(), place, self._found)
        check_offset_index(headers, entries.within(low, high), place, self._found)
        if sections.times is not None:
            check_time_index(headers, sections.times, place, self._found)
        self._summarise(sound(headers), kinds)

    def _expected(self) -> Expected:
        segment = self._piece.segment
        return Expected(
            segment.base_offset, segment.end_offset, segment.epochs, segment.max_timestamp, self._piece.gaps
        )

    def _summarise(self, good: Headers, kinds: dict[int, int]) -> None:
        answer = self.answer
        if not len(good):
            return
        base, last = good.column("base_offset"), good.last_offset
        answer.first_offset, answer.next_offset = int(base[0]), int(last[-1]) + 1
        answer.batches, answer.records = len(good), int(good.column("count").sum())
        answer.max_timestamp = int(good.column("max_timestamp").max())
        answer.has_transactions = bool(good.is_transactional.any())
        answer.producers = summarise(good, kinds)
        broken = np.flatnonzero(base[1:] != last[:-1] + 1) + 1
        if self._piece.gaps or len(broken) >= SPANS_MAX:
            broken = broken[:0]
        starts, ends = np.append(0, broken), np.append(broken, len(base)) - 1
        answer.spans = list(zip(base[starts].tolist(), (last[ends] + 1).tolist(), strict=True))

    def _begin(self, position: int, size: int) -> Coming:
        return self._store.begin_get(self._piece.key, position, size)

    def _fetch(self, position: int, size: int) -> bytes:
        return self._store.get(self._piece.key, position, size)

    # where the piece lies ------------------------------------------------------------------------------------

    def _bounds(self, entries: OffsetEntries) -> tuple[int, int]:
        """From a batch to a batch, as all parts of the segment find it. A part whose begin the index does not know,
        or where no such batch lies, is left to the part before it."""
        piece = self._piece
        end = min(piece.segment.log_bytes, piece.object_bytes)
        low = self._aligned(piece.number, entries) if piece.number else 0
        if low is None or low >= end:
            return end, end
        for number in range(piece.number + 1, piece.parts):
            high = self._aligned(number, entries)
            if high is not None:
                return low, max(low, min(high, end))
        return low, end

    def _aligned(self, number: int, entries: OffsetEntries) -> int | None:
        """Where part `number` begins, None when it does not."""
        log_bytes = self._piece.segment.log_bytes
        later = np.flatnonzero(entries.position >= self._piece.cut(number))
        if not len(later):
            return log_bytes
        position, offset = int(entries.position[later[0]]), int(entries.offset[later[0]])
        if position + HEADER_BYTES > min(log_bytes, self._piece.object_bytes):
            return None
        header = read_header(self._fetch(position, HEADER_BYTES), 0)
        return position if header.magic == MAGIC and header.last_offset == offset else None

    # the sections --------------------------------------------------------------------------------------------

    def _sections(self) -> Sections:
        """Part 0 reads all of them and reports what is wrong; the others need the indexes alone."""
        segment = self._piece.segment
        base = segment.base_offset
        sections = Sections()
        sections.offsets = self._section(OFFSET_INDEX, lambda data: offset_entries(data, base))
        sections.times = self._section(TIME_INDEX, lambda data: time_entries(data, base))
        if self._piece.number:
            return sections
        sections.aborted = self._section(TRANSACTION_INDEX, aborted_entries)
        if PRODUCER_SNAPSHOT in segment.sections:
            sections.producers = self._section(PRODUCER_SNAPSHOT, lambda data: decode_snapshot(data).entries)
        if LEADER_EPOCHS in segment.sections:
            sections.epochs = self._section(LEADER_EPOCHS, epoch_entries)
        if sections.offsets is not None and sections.times is not None:
            bounds = (base, segment.end_offset)
            check_order(sections.offsets, sections.times, bounds, segment.log_bytes, self._piece.place, self._found)
        return sections

    def _section(self, name: str, decoded: Callable[[bytes], T]) -> T | None:
        """A decoded section, from no bytes if it is absent; None if it cannot be read."""
        section = self._piece.segment.sections.get(name)
        reason, position = "", -1
        data = b""
        if section is not None and section.length:
            position = section.position
            try:
                data = self._fetch(section.position, section.length)
            except ObjectMissing:
                raise
            except StoreError as error:
                reason = str(error)
            else:
                reason = "" if crc32c(data) == section.crc32c else "its CRC-32C is wrong"
        found: T | None = None
        if not reason:
            try:
                found = decoded(data)
            except ValueError as error:
                reason = str(error)
        if self._piece.number == 0:
            self._found.checks(Check.SECTION)
            if reason:
                self.fail(Check.SECTION, f"section {name}: {reason}", position=position)
        return found

    # the records ---------------------------------------------------------------------------------------------

    def _look_into(self, stretch: Stretch) -> None:
        """All records when the run is deep, else those in whose batches acknowledged writes should lie."""
        good = sound(stretch.headers)
        written = self._piece.writes.offset
        if not self._settings.deep:
            first = np.searchsorted(written, good.column("base_offset"), side="left")
            holds = np.searchsorted(written, good.last_offset, side="right") > first
            good = good.where(holds)
        if self.answer.present is None:
            checked = self._records.check(stretch, good)
            self.answer.decoded += checked
            self._found.checks(Check.RECORD, checked)
            return
        limit = self._settings.inflated_batch_bytes
        for payload, records in decode(stretch, good, limit, self._piece.place, self._found):
            self.answer.decoded += len(records)
            self._found.checks(Check.RECORD, len(records))
            if not len(records):
                continue
            rows = np.flatnonzero(_isin(records.offset, written))
            rows = rows[~payload.batches.is_control[records.batch[rows]]]
            keys = binary_column(payload.view, records.key_at[rows], records.key_length[rows])
            self._compare(records.offset[rows], key_hashes(keys.to_pylist()))

    def _compare(self, offset: Integers, hashes: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> None:
        writes = self._piece.writes
        first = np.searchsorted(writes.offset, offset, side="left")
        after = np.searchsorted(writes.offset, offset, side="right")
        present = self.answer.present
        if present is None:
            return
        rows = np.repeat(first, after - first) + _counted(after - first)  # an offset may be noted twice
        present[rows] = True
        wrong = rows[writes.key_hash[rows] != np.repeat(hashes, after - first)]
        if len(wrong):
            row = int(wrong[0])
            text = f"the record has another key than the write that was acknowledged; so have {len(wrong) - 1} more"
            place = self._piece.place
            self._found.fail(Check.LEDGER, place, text, offset=int(writes.offset[row]), more=len(wrong) - 1)


def _isin(values: Integers, ordered: Integers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = ordered[at] == values
    return found


def _counted(lengths: Integers) -> Integers:
    """0 … n-1 for each n."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    counted: Integers = np.arange(total) - np.repeat(ends - lengths, lengths)
    return counted
