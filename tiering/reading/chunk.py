"""A chunk: a run of whole batches of one tiered segment. CRC-checked on arrival, then read by offset.

A damaged batch is a hole, which is never served; the batches around it are. A damaged batch's own length and offsets
cannot be trusted, so the next valid batch marks the end of the hole.

Pure except for the file that it writes or reads.

`store_checked` runs in a thread beside a busy event loop. It releases the interpreter's lock after at most a few
hundred batches, because each write of a slice releases it, as does the checksum of a long batch.

`check_in_place` runs in steps on the loop itself. Its work is so small that a thread waiting while it holds that lock
would cost the loop more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from common.checksum import crc32c
from common.errors import ErrorCode, ProtocolError
from common.ports import File
from common.whole_files import write_fully
from records.batch import CRC_FROM, HEADER_BYTES, MAGIC, PREFIX_BYTES, BatchHeader, read_header
from storage.segments.batch_walk import walk

SPACING_BYTES = 8_192  # from one entry of a chunk's own index to the next, at least
SLICE_BYTES = 256 << 10
SLICE_BATCHES = 200
PIECE_BYTES = 256 << 10  # of a chunk that is checked in place; fits into the processor's cache
OFFSET_MAX = 2**63 - 1
STEP_BYTES, STEP_BATCHES = 1 << 20, 256  # of such a chunk at a time: 0.2 ms or so, and few turns of the event loop


class DamagedChunk(Exception):
    """No part of the chunk is valid: `args[0]` describes its beginning."""


class InForce(NamedTuple):
    """A leader epoch, and the offsets [start, end) of a chunk's segment that are its own."""

    epoch: int
    start: int
    end: int


class Expected(NamedTuple):
    """Conditions on the batches of a chunk besides their CRC, which covers neither base offset nor leader epoch.

    Offsets are in [low, high) and ascending; only a segment's first batch may begin below. `first_last`: last offset of
    the chunk's first batch, -1 if the offset index does not have it. `dense`: no offset is missing. `epochs`: (leader
    epoch, start offset), ascending; empty: any epoch is valid.
    """

    low: int
    high: int
    first_last: int = -1
    dense: bool = False
    epochs: Sequence[tuple[int, int]] = ()

    def in_force(self, offset: int) -> InForce:
        """The leader epoch of a batch at `offset`, where there are epochs."""
        at = max(bisect_right(self.epochs, offset, key=_start_of) - 1, 0)
        epoch, start = self.epochs[at]
        end = self.epochs[at + 1][1] if at + 1 < len(self.epochs) else self.high
        return InForce(epoch, start, min(end, self.high))


class Hole(NamedTuple):
    """Damage from `position` on in the file, between sound batches: some of the offsets [low, high) are lost.

    `low` is -1 at the chunk's beginning, `high` at its end: then the neighbouring chunk has the bound.
    """

    position: int
    low: int
    high: int
    reason: str


class Cut(NamedTuple):
    """Whole batches [start, end) of a chunk; the reader's next offset after them."""

    start: int
    end: int
    next_offset: int


class ChunkIndex:
    """Where the batches of a chunk begin in its file, sparsely: base offsets and positions.

    The last sound batch ends before `end_offset`, and its bytes in the file before `end`. `holes` ascend.
    """

    __slots__ = ("end", "end_offset", "holes", "offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("i")
        self.end_offset = -1
        self.end = 0
        self.holes: list[Hole] = []

    def add(self, position: int, base_offset: int, next_offset: int, size: int) -> None:
        """The next batch."""
        if position != self.end or not self.positions or position - self.positions[-1] >= SPACING_BYTES:
            self.offsets.append(base_offset)
            self.positions.append(position)
        self.end_offset = next_offset
        self.end = position + size

    @property
    def is_open(self) -> bool:
        """Whether damage at its end hides where it ends."""
        return bool(self.holes) and self.holes[-1].high < 0

    @property
    def known_end(self) -> int:
        """Where the next chunk's offsets begin, at the least; -1 when that is not known."""
        return -1 if self.is_open else self.end_offset

    def is_lost(self, offset: int) -> bool:
        """Whether `offset` is, or may be, one of those in a hole between this chunk's own batches."""
        return any(hole.low <= offset < hole.high for hole in self.holes)

    def cut(
        self, file: File, offset: int, bytes_max: int, until: int = OFFSET_MAX, *, at_least_one: bool
    ) -> Cut | None:
        """Batches from the first one that ends after `offset`, which must not be lost, up to `bytes_max` bytes, a hole,
        or the first batch that begins at `until` or after it.

        None if there is none, or if the first is too long and `at_least_one` is off. ProtocolError
        (KAFKA_STORAGE_ERROR) if the file no longer has the bytes that were written.
        """
        if offset >= self.end_offset:
            return None
        first = max(bisect_right(self.offsets, offset) - 1, 0)
        start, header = self.positions[first], None
        end, end_offset = self._sound_from(start)
        is_bounded = until < end_offset
        if is_bounded:
            end, end_offset = self._end_before(file, until, start, end)
            if end == start:
                return None
        if self.offsets[first] != offset:  # after this entry
            batches = walk(file, start, end)
            found = next((batch for batch in batches if batch[1].next_offset > offset), None)
            if found is None and is_bounded:
                return None
            if found is None:
                raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"offset {offset} is not where it was")
            start, header = found
        if end - start <= bytes_max:
            return Cut(start, end, end_offset)
        last = bisect_right(self.positions, start + bytes_max) - 1
        if self.positions[last] > start:
            return Cut(start, self.positions[last], self.offsets[last])
        if header is None:
            _, header = next(walk(file, start, end))
        fits = at_least_one or header.size <= bytes_max
        return Cut(start, start + header.size, header.next_offset) if fits else None

    def _sound_from(self, position: int) -> tuple[int, int]:
        """Where the sound batches from `position` on end, in the file and in offsets."""
        for hole in self.holes:
            if hole.position > position:
                return hole.position, hole.low
        return self.end, self.end_offset

    def _end_before(self, file: File, offset: int, start: int, end: int) -> tuple[int, int]:
        """Where the batches of [start, end) that begin below `offset` end, in the file and in offsets."""
        known = max(bisect_right(self.offsets, offset) - 1, 0)
        end_offset = offset
        for position, header in walk(file, max(self.positions[known], start), end):
            if header.base_offset >= offset:
                return position, end_offset
            end_offset = max(end_offset, header.next_offset)
        return end, end_offset

    def position_before(self, offset: int) -> int:
        """A batch boundary at or before the batch that holds `offset`."""
        return self.positions[max(bisect_right(self.offsets, offset) - 1, 0)]


def store_checked(file: File, data: bytes, expected: Expected) -> ChunkIndex:
    """Write `data` to `file` from position 0, checking every batch; the index to read it by.

    Raises DamagedChunk when none is sound, OSError; the file is of no use then.
    """
    check = BatchCheck(expected)
    view = memoryview(data)
    at = written = batches = 0
    total = len(view)
    while at < total:
        at += check.take(view, at, at) or total - at
        batches += 1
        if at - written >= SLICE_BYTES or batches >= SLICE_BATCHES or at == total:
            write_fully(file, view[written:at], written)
            written, batches = at, 0
    return check.finish()


def check_in_place(
    file: File,
    start: int,
    length: int,
    expected: Expected,
    scratch: memoryview,
    step_bytes: int = STEP_BYTES,
    step_batches: int = STEP_BATCHES,
) -> Iterator[ChunkIndex]:
    """Check every batch of a chunk in `file` from position `start` on; yields the index for reading it there.

    The index is complete when the iterator ends. Each step checks at most about `step_bytes` or `step_batches`, even
    within a batch. `scratch` has at least HEADER_BYTES, is overwritten, and may be used by others between two steps.
    Raises DamagedChunk if no batch is sound, OSError.
    """
    check = BatchCheck(expected)
    at = position = start  # `at`: of the current batch; `position`: of the bytes to read next
    end = start + length
    header: BatchHeader | None = None
    crc = stepped = batches = 0
    while position < end:
        piece = scratch[: min(len(scratch), end - position)]
        got = file.pread_into(piece, position)
        if got < len(piece):
            piece, end = piece[:got], position + got
        inside = 0
        while inside < got and batches < step_batches:
            if header is None:
                if got - inside < HEADER_BYTES and position + got < end:
                    break  # its header continues in the next piece, which begins with it
                header, crc = check.begin(piece, inside, at, end - at), 0
                if header is None:  # where the next batch begins is unknown
                    yield check.finish()
                    return
                crc_from = inside + CRC_FROM
            else:
                crc_from = inside
            batch_end = at + header.batch_length + PREFIX_BYTES - position
            inside = min(batch_end, got)
            crc = crc32c(piece[crc_from:inside], crc)
            if batch_end <= got:
                check.finish_batch(header, at, crc)
                at, header = position + inside, None
                batches += 1
        position += inside
        stepped += inside
        if position < end and (stepped >= step_bytes or batches >= step_batches):
            yield check.index
            stepped = batches = 0
    if header is not None:
        check.lose(at, f"no batch at position {at}")
    if end < start + length:
        check.lose(end, f"the object ends at position {end}")
    yield check.finish()


class _Batch(NamedTuple):
    position: int
    base_offset: int
    next_offset: int
    size: int


class BatchCheck:
    """Adds the batches of a chunk to its index, one after the other; damaged ones become holes.

    After a hole, the base offset of a sound batch is uncertain, because no CRC covers it. In a dense chunk it is
    accepted if the damaged batch's header gives the same end, or if the next batch continues from it.
    """

    __slots__ = ("_claimed", "_expected", "_force", "_hole", "_next", "index")

    def __init__(self, expected: Expected) -> None:
        self.index = ChunkIndex()
        self._force = InForce(-1, 0, 0)  # as of the last batch that was looked at closely
        self._expected = expected
        self._hole: Hole | None = None  # that is not closed yet
        self._claimed = -1  # end offset according to damaged batches
        self._next: _Batch | None = None  # sound, but its offsets are not confirmed yet

    def take(self, view: memoryview, at: int, position: int) -> int:
        """Size of the batch at `at`, whose position in the file is `position`; 0 if it cannot be determined."""
        header = self.begin(view, at, position, len(view) - at)
        if header is None:
            return 0
        size = header.batch_length + PREFIX_BYTES
        self.finish_batch(header, position, crc32c(view[at + CRC_FROM : at + size]))
        return size

    def begin(self, view: memoryview, at: int, position: int, left: int) -> BatchHeader | None:
        """The header at `at`, where `left` bytes of the chunk remain; None if there is no valid batch size.

        `finish_batch` must follow, with the CRC of the bytes from CRC_FROM on.
        """
        if left < HEADER_BYTES:
            self.lose(position, f"{left} bytes at position {position} are no batch")
            return None
        header = read_header(view, at)
        if not HEADER_BYTES <= header.batch_length + PREFIX_BYTES <= left:
            self.lose(position, f"no batch at position {position}")
            return None
        return header

    def finish_batch(self, header: BatchHeader, position: int, crc: int) -> None:
        """Complete the batch at `position`, whose computed CRC is `crc`."""
        size = header.batch_length + PREFIX_BYTES
        base_offset = header.base_offset
        next_offset = base_offset + header.last_offset_delta + 1
        index, force = self.index, self._force
        if (  # nearly always
            base_offset == index.end_offset
            and self._hole is None
            and header.leader_epoch == force.epoch
            and force.start <= base_offset < next_offset <= force.end
            and header.magic == MAGIC
            and header.crc == crc
        ):
            index.add(position, base_offset, next_offset, size)
            return
        batch = _Batch(position, base_offset, next_offset, size)
        trouble = self._misplaced(batch, header)
        fits = trouble is None
        if trouble is None and header.crc != crc:
            trouble = f"wrong CRC of the batch at position {position}, offset {batch.base_offset}"
        if trouble is not None:
            claims = fits and header.count == header.last_offset_delta + 1
            claims = claims and (self._hole is None or self._claimed == batch.base_offset)
            self.lose(position, trouble)
            self._claimed = batch.next_offset if claims else -1
        elif self._hole is None:
            self.index.add(*batch)
        else:
            self._come_after(self._hole, batch)

    def lose(self, position: int, reason: str) -> None:
        """From `position` on nothing is sound, for now."""
        if self._hole is None:
            self._hole = Hole(position, self.index.end_offset, -1, reason)
        self._claimed, self._next = -1, None

    def finish(self) -> ChunkIndex:
        """The index. Raises DamagedChunk when no batch is sound."""
        hole, last = self._hole, self._next
        if hole is not None and last is not None and last.next_offset == self._expected.high:
            self._close(hole, last)
        elif hole is not None:
            self.index.holes.append(hole)
        if not self.index.positions:
            raise DamagedChunk("no batch at all" if hole is None else hole.reason)
        return self.index

    def _misplaced(self, batch: _Batch, header: BatchHeader) -> str | None:
        expected, index = self._expected, self.index
        if header.magic != MAGIC or header.last_offset_delta < 0:
            return f"no batch at position {batch.position}"
        if self._hole is not None:
            least = index.end_offset if index.positions else max(expected.low, expected.first_last + 1)
            fits = batch.base_offset >= least
        elif index.positions:
            dense = expected.dense
            fits = batch.base_offset == index.end_offset if dense else batch.base_offset >= index.end_offset
        else:
            begins = batch.base_offset <= expected.low or not expected.dense or expected.first_last >= 0
            fits = begins and batch.next_offset > expected.low and expected.first_last in (-1, batch.next_offset - 1)
        if not fits or batch.next_offset > expected.high or batch.base_offset < 0:
            return f"offsets [{batch.base_offset}, {batch.next_offset}) at position {batch.position} are out of place"
        if expected.epochs:
            self._force = force = expected.in_force(batch.base_offset)
            if header.leader_epoch != force.epoch:
                changed = f"leader epoch {header.leader_epoch} where it was {force.epoch}"
                return f"{changed}: the batch at position {batch.position}, offset {batch.base_offset}"
        return None

    def _come_after(self, hole: Hole, batch: _Batch) -> None:
        """A sound batch after a hole."""
        before = self._next
        if before is not None and before.next_offset == batch.base_offset:
            self._close(hole, before)
            self.index.add(*batch)
        elif not self._expected.dense or batch.base_offset == self._claimed:
            self._close(hole, batch)
        else:
            self._claimed, self._next = -1, batch

    def _close(self, hole: Hole, batch: _Batch) -> None:
        self.index.holes.append(hole._replace(high=batch.base_offset))
        self.index.add(*batch)
        self._hole, self._claimed, self._next = None, -1, None


def _start_of(epoch: tuple[int, int]) -> int:
    return epoch[1]


class ChunkPlan:
    """The division of a tiered segment's log bytes into chunks, from its offset index.

    An index entry has the *last* offset of the batch at its position. So a chunk's first offset is known only after the
    previous chunk was read: `learn`.
    """

    __slots__ = ("_ends", "_lasts", "_log_bytes", "_starts")

    def __init__(self, log_bytes: int) -> None:
        self._log_bytes = log_bytes
        self._starts = array("q", (0,))
        self._lasts = array("q", (-1,))  # last offset of the first batch; below everything for the first chunk
        self._ends = array("q", (-1,))  # end offsets, where they were learned

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def memory_bytes(self) -> int:
        return 24 * len(self._starts) + 300

    def begin_chunk(self, position: int, last_offset: int) -> None:
        self._starts.append(position)
        self._lasts.append(last_offset)
        self._ends.append(-1)

    def learn(self, number: int, end_offset: int) -> None:
        """Chunk `number` ends before `end_offset`."""
        self._ends[number] = end_offset

    def range(self, number: int) -> tuple[int, int]:
        """Position and length of a chunk in the object."""
        start = self._starts[number]
        end = self._starts[number + 1] if number + 1 < len(self._starts) else self._log_bytes
        return start, end - start

    def first_last(self, number: int) -> int:
        """The last offset of a chunk's first batch; -1 for the segment's first chunk."""
        return self._lasts[number]

    def number_at(self, offset: int) -> int:
        """The chunk in which the batch with `offset` begins, or the one before it if that is not known yet.

        The number of chunks if `offset` is after all of them.
        """
        number = bisect_right(self._lasts, offset) - 1
        while number < len(self._ends) and 0 <= self._ends[number] <= offset:
            number += 1
        return number


def plan_chunks(data: bytes, entry_bytes: int, base_offset: int, end_offset: int, log_bytes: int, chunk_bytes: int
                ) -> ChunkPlan:  # fmt: skip
    """The plan from an offset index's bytes. Looks at a few entries only; ValueError when one cannot be right."""
    plan = ChunkPlan(log_bytes)
    entries = range(len(data) // entry_bytes)
    low, start, last = 0, 0, base_offset - 1
    while log_bytes - start > chunk_bytes + chunk_bytes // 4:
        low = bisect_left(entries, start + chunk_bytes, lo=low, key=lambda slot: _position(data, slot * entry_bytes))
        if low == len(entries):
            break
        at = low * entry_bytes
        position, offset = _position(data, at), base_offset + int.from_bytes(data[at : at + 4], "big", signed=True)
        if not start < position < log_bytes or not last < offset < end_offset:
            raise ValueError(f"entry {low} of an offset index points to offset {offset}, position {position}")
        plan.begin_chunk(position, offset)
        start, last = position, offset
    return plan


def _position(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 4 : at + 8], "big", signed=True)
