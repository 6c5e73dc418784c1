"""Producers as they stood a little before the log's end, in memory: a cut of the last batches need not read far.

Without these, whoever cuts a log knows its producers from the snapshot at the beginning of a segment, and has all
headers of that segment to read. A leader's death has followers cut what was in flight, and nothing is acknowledged
until they follow again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from storage.segment import Segment

if TYPE_CHECKING:
    from storage.log_appends import AppendableLog

MARK_BATCHES = 256  # between two marks; a run of more is not parted
MARKS_KEPT = 2
MARKED_PRODUCERS_MAX = 32  # a mark takes about 200 bytes and 5 microseconds for each


class ProducerMark(NamedTuple):
    """`snapshot` was taken at `offset`, which is at `position` of `segment`; `batches` had been appended then."""

    offset: int
    segment: Segment
    position: int
    batches: int
    snapshot: bytes


class ProducerMarks:
    """One per log."""

    __slots__ = ("_appended", "_due", "_marks")

    def __init__(self) -> None:
        self._appended = 0  # batches, never less than what lies behind the oldest mark
        self._due = MARK_BATCHES
        self._marks: tuple[ProducerMark, ...] = ()

    def before_run(self, log: AppendableLog, batches: int) -> None:
        """So many batches are about to be appended."""
        before = self._appended
        self._appended = before + batches
        if before >= self._due:
            self._due = before + MARK_BATCHES
            if 0 < len(log.producers) <= MARKED_PRODUCERS_MAX:
                mark = ProducerMark(log.log_end_offset, log.active, log.active.size, before, log.producers.snapshot())
                self._marks = (*self._marks, mark)[-MARKS_KEPT:]

    def cut(self, log: AppendableLog) -> None:
        """The log ends earlier now."""
        self._marks = tuple(mark for mark in self._marks if mark.offset <= log.log_end_offset)

    def newest(self, log: AppendableLog) -> ProducerMark | None:
        """In a segment that is still as it was: compaction writes others in its place."""
        return next((mark for mark in reversed(self._marks) if mark.segment in log.segments), None)

    def batches_behind(self, mark: ProducerMark) -> int:
        """At most."""
        return self._appended - mark.batches
