"""Chunk plans and the sparse indexes of chunks against the plain list of batches; prefetch windows."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.ports import Buffer, FileIdentity
from records.batch import read_header
from storage.indexes import offset_index
from storage.indexes.offset_index import OffsetIndex
from tests.tiering.tiered_log import values_batch
from tiering.reading.chunk import SPACING_BYTES, ChunkPlan, DamagedChunk, Expected, plan_chunks, store_checked

HIGH = 1 << 40
FIRST, SECOND, THIRD = values_batch(10, [b"a", b"b"]), values_batch(12, [b"c"]), values_batch(13, [b"d"])
SOUND = Expected(10, 13, dense=True)
MISPLACED: list[tuple[bytes, Expected, list[tuple[int, int]] | None]] = [
    (SECOND + FIRST, SOUND, None),
    (FIRST + THIRD, Expected(10, 14, dense=True), [(12, -1)]),
    (FIRST + SECOND, Expected(10, 12), [(12, -1)]),
    (FIRST + SECOND, Expected(12, 13), [(-1, 12)]),
    (FIRST + SECOND, Expected(0, 13, first_last=10), [(-1, 12)]),
    (FIRST + SECOND, Expected(10, 13, epochs=((1, 5), (2, 12))), None),
    (FIRST + SECOND, Expected(10, 13, epochs=((0, 5), (2, 12))), [(12, -1)]),
    (FIRST + SECOND + b"\0", SOUND, [(13, -1)]),
    (FIRST + SECOND[:-3] + b"???", SOUND, [(12, -1)]),
    (FIRST[:-1], SOUND, None),
    (b"\0" * 70, SOUND, None),
    (b"\xff" * 70, SOUND, None),
    (b"", SOUND, None),
]
"""Bytes, what they should be, and the holes that they have instead; None where nothing is sound."""


@dataclass
class MemoryFile:
    """Takes at most `most` bytes per write."""

    most: int = 1 << 30
    data: bytearray = field(default_factory=bytearray)
    writes: int = 0

    def pread(self, size: int, position: int) -> bytes:
        return bytes(self.data[position : position + size])

    def pread_into(self, view: memoryview, position: int) -> int:
        data = self.pread(len(view), position)
        view[: len(data)] = data
        return len(data)

    def pread_now(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position)

    def in_memory(self, size: int, position: int) -> int:
        return size

    def pwrite(self, data: Buffer, position: int) -> int:
        taken = bytes(data)[: self.most]
        self.data[position : position + len(taken)] = taken
        self.writes += 1
        return len(taken)

    def truncate(self, size: int) -> None:
        del self.data[size:]

    def size(self) -> int:
        return len(self.data)

    def identity(self) -> FileIdentity:
        raise NotImplementedError

    def fsync(self) -> None: ...

    def close(self) -> None: ...


batches = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 3), st.sampled_from([1, 40, 900, 5_000, 12_000])),
    min_size=1,
    max_size=30,
)


def build(shape: list[tuple[int, int, int]]) -> list[bytes]:
    """(records, offsets that are missing before, bytes of a value) of each batch."""
    made, offset = [], 0
    for count, gap, size in shape:
        offset += gap
        made.append(values_batch(offset, [b"v" * size] * count))
        offset += count
    return made


@settings(max_examples=150, deadline=None)
@given(batches, st.integers(1, 40_000), st.booleans(), st.integers(1, 5_000), st.integers(1, 300))
def test_a_cut_is_what_a_walk_over_all_batches_finds(
    shape: list[tuple[int, int, int]], bytes_max: int, at_least_one: bool, most: int, until: int
) -> None:
    made = build(shape)
    data, file = b"".join(made), MemoryFile(most)
    index = store_checked(file, data, Expected(0, HIGH))
    assert bytes(file.data) == data
    headers = [read_header(batch, 0) for batch in made]
    ends, position = [], 0
    for batch in made:
        position += len(batch)
        ends.append(position)
    assert index.end_offset == headers[-1].next_offset
    below = [end for end, header in zip(ends, headers, strict=True) if header.base_offset < until]
    for offset in range(min(headers[-1].next_offset + 2, until)):
        first = next((at for at, header in enumerate(headers) if header.next_offset > offset), None)
        cut = index.cut(file, offset, bytes_max, until, at_least_one=at_least_one)
        if first is None or first >= len(below) or (len(made[first]) > bytes_max and not at_least_one):
            assert cut is None
            continue
        assert cut is not None
        assert cut.start == ends[first] - len(made[first])
        assert cut.end in below
        last = ends.index(cut.end)
        if cut.end == ends[-1]:
            assert cut.next_offset == headers[-1].next_offset
        else:
            assert headers[last].next_offset <= cut.next_offset <= headers[last + 1].base_offset
        assert cut.end - cut.start <= bytes_max or last == first
        longest = max((end for end in below if end - cut.start <= bytes_max), default=cut.end)
        assert longest - cut.end <= SPACING_BYTES, "as much as fits, but for what the index does not show"


@settings(max_examples=150, deadline=None)
@given(batches, st.integers(500, 30_000), st.integers(0, 3_000))
def test_a_plan_divides_the_log_at_batches_and_leads_to_every_offset(
    shape: list[tuple[int, int, int]], chunk_bytes: int, interval: int
) -> None:
    made = build(shape)
    base = read_header(made[0], 0).base_offset
    index, entries, position, since = OffsetIndex(base), b"", 0, 0
    places: list[tuple[int, int, int]] = []
    for batch in made:
        header = read_header(batch, 0)
        if since > interval:
            entries += index.append(header.last_offset, position)
            since = 0
        since += len(batch)
        places.append((position, header.base_offset, header.next_offset))
        position += len(batch)
    end = places[-1][2]
    plan = plan_chunks(entries, offset_index.ENTRY_BYTES, base, end, position, chunk_bytes)
    starts = {place[0] for place in places}
    at = 0
    for number in range(len(plan)):
        start, length = plan.range(number)
        assert start == at
        assert start in starts
        assert length > 0
        at += length
        if number + 1 < len(plan):
            assert length >= chunk_bytes
    assert at == position

    def holds(number: int, offset: int) -> bool:
        start, length = plan.range(number)
        return any(start <= place[0] < start + length and place[2] > offset for place in places)

    def learn(plan: ChunkPlan, number: int) -> None:
        start, length = plan.range(number)
        plan.learn(number, [place[2] for place in places if place[0] < start + length][-1])

    for offset in range(base, end):
        number = plan.number_at(offset)
        tries = 0
        while not holds(number, offset):
            learn(plan, number)
            number, tries = number + 1, tries + 1
        assert tries <= 1, "at most the chunk before is looked into"
        assert number == 0 or not holds(number - 1, offset), "nothing is left out"
    for number in range(len(plan)):
        learn(plan, number)
    assert all(holds(plan.number_at(offset), offset) for offset in range(base, end))


@pytest.mark.parametrize("entry", [(5, 0), (5, 99), (-1, 50), (90, 50)])
def test_an_index_that_cannot_be_right_is_refused(entry: tuple[int, int]) -> None:
    data = b"".join(number.to_bytes(4, "big", signed=True) for number in entry)
    with pytest.raises(ValueError, match="offset index"):
        plan_chunks(data, 8, 100, 150, 60 if entry[1] == 50 else 99, -1 if entry[1] == 0 else 40)


def test_the_interpreter_is_handed_over_among_small_batches() -> None:
    made = [values_batch(at, [b"x"]) for at in range(1_000)]
    file = MemoryFile()
    store_checked(file, b"".join(made), Expected(0, HIGH))
    assert file.writes >= 5


def test_a_batch_out_of_its_place_is_damage() -> None:
    first, second = values_batch(10, [b"a", b"b"]), values_batch(12, [b"c"])
    sound = Expected(10, 13, dense=True)
    store_checked(MemoryFile(), first + second, sound)
    for data, expected, holes in MISPLACED:
        if holes is None:
            with pytest.raises(DamagedChunk):
                store_checked(MemoryFile(), data, expected)
        else:
            index = store_checked(MemoryFile(), data, expected)
            assert [(hole.low, hole.high) for hole in index.holes] == holes
    store_checked(MemoryFile(), first + second, Expected(11, 13))  # a copy may begin within a batch


FIELDS = {"base offset": (0, 8), "size": (8, 12), "epoch": (12, 16), "magic": (16, 17), "crc": (17, 21),
          "last offset": (23, 27), "body": (61, 1 << 30)}  # fmt: skip
Harm = tuple[int, str, int]
"""The number of a batch, modulo how many there are; a field of it, and one of its bits."""


def harmed(made: list[bytes], harms: list[Harm]) -> list[bytes]:
    data = list(made)
    for number, field_name, bit in harms:
        batch = data[number % len(data)]
        low, high = FIELDS[field_name]
        at, bit = divmod(bit % (8 * (min(high, len(batch)) - low)), 8)
        data[number % len(data)] = batch[: low + at] + bytes([batch[low + at] ^ (1 << bit)]) + batch[low + at + 1 :]
    return data


def served(data: list[bytes], made: list[bytes], *, dense: bool) -> dict[int, bytes]:
    """The first batch that a reader of each offset gets, nothing for one that it is refused; all it gets is sound."""
    low, high = read_header(made[0], 0).base_offset, read_header(made[-1], 0).next_offset
    expected, file = Expected(low, high, -1, dense, ((0, low),)), MemoryFile()
    found: dict[int, bytes] = {}
    try:
        index = store_checked(file, b"".join(data), expected)
    except DamagedChunk:
        return found
    for offset in range(low, high):
        if index.is_lost(offset) or (cut := index.cut(file, offset, 1 << 30, at_least_one=True)) is None:
            continue
        got, at = file.pread(cut.end - cut.start, cut.start), 0
        while at < len(got):
            header = read_header(got, at)
            assert got[at : at + header.size] in made
            found.setdefault(offset, got[: header.size])
            at += header.size
        assert cut.next_offset >= header.next_offset
    return found


@settings(max_examples=200, deadline=None)
@given(batches, st.lists(st.tuples(st.integers(0, 29), st.sampled_from(list(FIELDS)), st.integers(0)), max_size=2))
def test_no_more_is_lost_of_a_dense_chunk_than_what_is_damaged(
    shape: list[tuple[int, int, int]], harms: list[Harm]
) -> None:
    made = build([(count, 0, size) for count, _, size in shape])
    data = harmed(made, harms)
    found = served(data, made, dense=True)
    for at, batch in enumerate(made):
        header = read_header(batch, 0)
        for offset in range(header.base_offset, header.next_offset):
            assert found.get(offset, batch) == batch
            if data[at] != batch:
                assert offset not in found
            elif len(harms) < 2 and not any(field_name == "size" for _, field_name, _ in harms):
                assert offset in found
        if data[at] != batch and any(field_name == "size" for _, field_name, _ in harms):
            break  # of what lies behind no beginning is known


@settings(max_examples=200, deadline=None)
@given(
    batches, st.lists(st.tuples(st.integers(0, 29), st.sampled_from(["epoch", "magic", "crc", "body"]), st.integers(0)))
)
def test_no_sound_batch_of_a_compacted_chunk_is_lost(shape: list[tuple[int, int, int]], harms: list[Harm]) -> None:
    made = build(shape)
    data = harmed(made, harms)
    found = served(data, made, dense=False)
    for at, batch in enumerate(made):
        header = read_header(batch, 0)
        for offset in range(header.base_offset, header.next_offset):
            assert (found.get(offset) == batch) == (data[at] == batch)
