"""A chunk: a run of whole batches of one tiered segment. Checked when it arrives, then found its way in by offset.

Pure but for the file that it is written to or lies in. `store_checked` runs in a thread beside a busy event loop: it
hands the interpreter over after a few hundred batches at most, because each write of a slice releases the interpreter's
lock, as the checksum of a long batch does. `check_in_place` runs on the loop itself, in steps: so little is left to do
that a thread, which may be made to wait just while it holds that lock, would cost the loop more than the work does.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from common.errors import ErrorCode, ProtocolError
from common.ports import File
from records.batch import HEADER_BYTES, MAGIC, PREFIX_BYTES, has_valid_crc, read_header
from storage.batch_walk import walk

SPACING_BYTES = 8_192  # from one entry of a chunk's own index to the next, at least
SLICE_BYTES = 256 << 10
SLICE_BATCHES = 200
PIECE_BYTES = 128 << 10  # of a chunk that is checked where it lies: it stays in the processor's own cache meanwhile
STEP_BATCHES = 64


class DamagedChunk(Exception):
    """The bytes are not what was copied: `args[0]` says where."""


class Expected(NamedTuple):
    """What the batches of a chunk have to be like, beside sound: a batch's CRC does not cover its base offset.

    Offsets lie in [low, high) and ascend; only a segment's first batch may begin below. `first_last` is the last offset
    of the chunk's first batch, -1 where the offset index does not tell. `dense`: no offset is missing.
    """

    low: int
    high: int
    first_last: int = -1
    dense: bool = False


class Cut(NamedTuple):
    """Whole batches [start, end) of a chunk; the reader's next offset after them."""

    start: int
    end: int
    next_offset: int


class ChunkIndex:
    """Where the batches of a chunk begin in its file, sparsely: base offsets and positions.

    The chunk ends before `end_offset`, and its bytes in the file before `end`.
    """

    __slots__ = ("end", "end_offset", "offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("i")
        self.end_offset = -1
        self.end = 0

    def add(self, position: int, base_offset: int, next_offset: int, size: int) -> None:
        """The next batch."""
        if not self.positions or position - self.positions[-1] >= SPACING_BYTES:
            self.offsets.append(base_offset)
            self.positions.append(position)
        self.end_offset = next_offset
        self.end = position + size

    def cut(self, file: File, offset: int, bytes_max: int, *, at_least_one: bool) -> Cut | None:
        """Batches from the first one that ends after `offset`, up to `bytes_max` bytes.

        None when all end before, or when the first is too long and `at_least_one` is off. ProtocolError
        (KAFKA_STORAGE_ERROR) when the file no longer holds what was written to it.
        """
        if offset >= self.end_offset:
            return None
        first = max(bisect_right(self.offsets, offset) - 1, 0)
        batches = walk(file, self.positions[first], self.end)
        found = next((batch for batch in batches if batch[1].next_offset > offset), None)
        if found is None:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"offset {offset} is not where it was")
        start, header = found
        if self.end - start <= bytes_max:
            return Cut(start, self.end, self.end_offset)
        last = bisect_right(self.positions, start + bytes_max) - 1
        if self.positions[last] > start:
            return Cut(start, self.positions[last], self.offsets[last])
        fits = at_least_one or header.size <= bytes_max
        return Cut(start, start + header.size, header.next_offset) if fits else None

    def position_before(self, offset: int) -> int:
        """A batch boundary at or before the batch that holds `offset`."""
        return self.positions[max(bisect_right(self.offsets, offset) - 1, 0)]


def store_checked(file: File, data: bytes, expected: Expected) -> ChunkIndex:
    """Write `data` to `file` from position 0, checking every batch; the index to read it by.

    Raises DamagedChunk, OSError; the file is of no use then.
    """
    index = ChunkIndex()
    view = memoryview(data)
    at = written = batches = 0
    total = len(view)
    while at < total:
        at += _check_batch(view, at, at, expected, index)
        batches += 1
        if at - written >= SLICE_BYTES or batches >= SLICE_BATCHES or at == total:
            _write(file, view[written:at], written)
            written, batches = at, 0
    if not at:
        raise DamagedChunk("no batch at all")
    return index


def check_in_place(file: File, start: int, length: int, expected: Expected) -> Iterator[ChunkIndex]:
    """Check every batch of a chunk that lies in `file` from position `start` on; yields the index to read it there.

    The index is complete when the iterator ends. Each step checks STEP_BATCHES, PIECE_BYTES or one longer batch at
    most. Raises DamagedChunk, OSError.
    """
    index = ChunkIndex()
    at, end, wanted = start, start + length, PIECE_BYTES
    while at < end:
        wanted = min(wanted, end - at)
        piece = memoryview(file.pread(wanted, at))
        if len(piece) < wanted:
            raise DamagedChunk(f"the object ends at position {at + len(piece)}")
        inside = size = batches = 0
        while inside < wanted:
            left = wanted - inside
            size = _batch_size(piece, inside) if left >= HEADER_BYTES else HEADER_BYTES
            if size > left and at + wanted < end:
                break  # it goes on in the next piece
            inside += _check_batch(piece, inside, at + inside, expected, index)
            batches += 1
            if batches % STEP_BATCHES == 0:
                yield index
        at += inside
        wanted = PIECE_BYTES if inside else size
        yield index
    if not index.positions:
        raise DamagedChunk("no batch at all")


def _batch_size(view: memoryview, at: int) -> int:
    return read_header(view, at).batch_length + PREFIX_BYTES


def _check_batch(view: memoryview, at: int, position: int, expected: Expected, index: ChunkIndex) -> int:
    """Size of the batch at `at`, which is then in the index with its position in the file."""
    total = len(view)
    if total - at < HEADER_BYTES:
        raise DamagedChunk(f"{total - at} bytes at position {position} are no batch")
    header = read_header(view, at)
    size = header.batch_length + PREFIX_BYTES
    if not HEADER_BYTES <= size <= total - at or header.magic != MAGIC or header.last_offset_delta < 0:
        raise DamagedChunk(f"no batch at position {position}")
    base_offset, next_offset = header.base_offset, header.base_offset + header.last_offset_delta + 1
    if index.positions:
        fits = base_offset == index.end_offset if expected.dense else base_offset >= index.end_offset
    else:
        fits = next_offset > expected.low and expected.first_last in (-1, next_offset - 1)
    if not fits or next_offset > expected.high or base_offset < 0:
        raise DamagedChunk(f"offsets [{base_offset}, {next_offset}) at position {position} are out of place")
    if not has_valid_crc(view, at, header):
        raise DamagedChunk(f"wrong CRC of the batch at position {position}, offset {base_offset}")
    index.add(position, base_offset, next_offset, size)
    return size


def _write(file: File, data: memoryview, position: int) -> None:
    written = 0
    while written < len(data):
        written += file.pwrite(data[written:], position + written)


class ChunkPlan:
    """How the log bytes of one tiered segment are divided into chunks, from its offset index.

    An index entry tells the *last* offset of the batch at its position, so where a chunk's first offset lies is
    learned only when the chunk before it has been read: `learn`.
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
        """The chunk in which the batch with `offset` begins, or the one before it while that is not known better.

        The number of chunks when `offset` lies behind all of them.
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
