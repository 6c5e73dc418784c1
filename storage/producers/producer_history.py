"""Earlier states of the producers: snapshots on disk, and marks in memory shortly before the log's end.

Without marks, a truncated log would restore its producers from the snapshot at a segment's beginning and read all
headers of that segment. After a leader's death followers truncate what was in flight, and nothing is acknowledged until
they follow again.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from storage.producers.producer_state import ProducerStates
from storage.segments.segment import Segment

MARK_BATCHES = 256  # between two marks; a longer run is not divided
MARKS_KEPT = 2
MARKED_PRODUCERS_MAX = 32  # a mark takes about 200 bytes and 5 microseconds for each


class ProducerMark(NamedTuple):
    """`snapshot` was taken at `offset`, at `position` of `segment`, after `batches` appended batches."""

    offset: int
    segment: Segment
    position: int
    batches: int
    snapshot: bytes


class ProducerHistory:
    """One per log. It knows which snapshots exist; the log writes and removes their files."""

    __slots__ = ("_appended", "_due", "_marks", "snapshots")

    def __init__(self, snapshots: list[int]) -> None:
        self.snapshots = snapshots
        """Offsets of the snapshots on disk, at most the log's end; only this class changes them."""
        self._appended = 0  # batches, at least those after the oldest mark
        self._due = MARK_BATCHES
        self._marks: tuple[ProducerMark, ...] = ()

    def before_run(self, batches: int, producers: ProducerStates, offset: int, segment: Segment) -> None:
        """`batches` batches are about to be appended to `segment`, at `offset`."""
        before = self._appended
        self._appended = before + batches
        if before >= self._due:
            self._due = before + MARK_BATCHES
            if 0 < len(producers) <= MARKED_PRODUCERS_MAX:
                mark = ProducerMark(offset, segment, segment.size, before, producers.snapshot())
                self._marks = (*self._marks, mark)[-MARKS_KEPT:]

    def add(self, offset: int) -> None:
        """There is a snapshot at `offset`."""
        self.snapshots.append(offset)
        self.snapshots.sort()

    def cut(self, end_offset: int) -> list[int]:
        """The log was truncated to `end_offset`. Returns the removed snapshots."""
        self._marks = tuple(mark for mark in self._marks if mark.offset <= end_offset)
        return self.drop(lambda offset: offset > end_offset)

    def drop(self, goes: Callable[[int], bool]) -> list[int]:
        """Remove snapshots. Returns them."""
        gone = [offset for offset in self.snapshots if goes(offset)]
        if gone:
            self.snapshots = [offset for offset in self.snapshots if offset not in gone]
        return gone

    def newest_mark(self, segments: Sequence[Segment], end_offset: int) -> ProducerMark | None:
        """The newest mark in a segment that compaction has not replaced. None if a snapshot up to `end_offset` is
        newer."""
        mark = next((mark for mark in reversed(self._marks) if mark.segment in segments), None)
        newest = max((offset for offset in self.snapshots if offset <= end_offset), default=0)
        return mark if mark is not None and mark.offset >= newest else None

    def batches_behind(self, mark: ProducerMark) -> int:
        """An upper bound."""
        return self._appended - mark.batches
