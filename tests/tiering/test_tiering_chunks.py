"""Chunk plans and the sparse indexes of chunks against the plain list of batches; prefetch windows."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.ports import Buffer, FileIdentity
from records.batch import read_header
from storage import offset_index
from storage.offset_index import OffsetIndex
from tests.tiering.tiered_log import values_batch
from tiering.chunk import SPACING_BYTES, ChunkPlan, DamagedChunk, Expected, plan_chunks, store_checked
from tiering.prefetch import ACTIVE_S, READERS_MAX, PrefetchLimits, Sequences

HIGH = 1 << 40


@dataclass
class MemoryFile:
    """Takes at most `most` bytes per write."""

    most: int = 1 << 30
    data: bytearray = field(default_factory=bytearray)
    writes: int = 0

    def pread(self, size: int, position: int) -> bytes:
        return bytes(self.data[position : position + size])

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
@given(batches, st.integers(1, 40_000), st.booleans(), st.integers(1, 5_000))
def test_a_cut_is_what_a_walk_over_all_batches_finds(
    shape: list[tuple[int, int, int]], bytes_max: int, at_least_one: bool, most: int
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
    for offset in range(headers[-1].next_offset + 2):
        first = next((at for at, header in enumerate(headers) if header.next_offset > offset), None)
        cut = index.cut(file, offset, bytes_max, at_least_one=at_least_one)
        if first is None or (len(made[first]) > bytes_max and not at_least_one):
            assert cut is None
            continue
        assert cut is not None
        assert cut.start == ends[first] - len(made[first])
        assert cut.end in ends
        last = ends.index(cut.end)
        if cut.end == ends[-1]:
            assert cut.next_offset == headers[-1].next_offset
        else:
            assert headers[last].next_offset <= cut.next_offset <= headers[last + 1].base_offset
        assert cut.end - cut.start <= bytes_max or last == first
        longest = max((end for end in ends if end - cut.start <= bytes_max), default=cut.end)
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
    for data, expected in [
        (second + first, sound),
        (first + values_batch(13, [b"c"]), Expected(10, 14, dense=True)),
        (first + second, Expected(10, 12)),
        (first + second, Expected(12, 13)),
        (first + second, Expected(0, 13, first_last=10)),
        (first + second + b"\0", sound),
        (first[:-1], sound),
        (b"", sound),
    ]:
        with pytest.raises(DamagedChunk):
            store_checked(MemoryFile(), data, expected)
    store_checked(MemoryFile(), first + second, Expected(11, 13))  # a copy may begin within a batch


LIMITS = PrefetchLimits(window_bytes=64, total_bytes=128, first_bytes=8)


def test_the_window_grows_while_reading_goes_on_and_closes_with_a_jump() -> None:
    sequences: Sequences[str] = Sequences(LIMITS)
    assert [sequences.read("a", at, at + 10, 0.0) for at in range(0, 60, 10)] == [0, 8, 16, 32, 64, 64]
    assert not sequences.jumps("a", 60)
    assert not sequences.jumps("a", 55), "a part of the last answer again"
    assert sequences.read("a", 50, 60, 0.0) == 64
    assert sequences.jumps("a", 5)
    assert sequences.read("a", 5, 15, 0.0) == 0
    assert sequences.read("a", 15, 25, 0.0) == 8


def test_readers_share_what_may_be_ahead() -> None:
    sequences: Sequences[int] = Sequences(LIMITS)
    for at in range(0, 80, 10):
        for reader in range(8):
            window = sequences.read(reader, at, at + 10, 0.0)
            assert window * len(sequences) <= 128
    assert window == 16
    assert sequences.read(0, 80, 90, ACTIVE_S + 1) == 32, "the others have gone"
    assert len(sequences) == 1
    for reader in range(2 * READERS_MAX):
        sequences.read(reader, 0, 10, 20.0)
    assert len(sequences) <= READERS_MAX + 1
