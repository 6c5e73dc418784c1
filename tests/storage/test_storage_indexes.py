"""Sparse indexes against lists: look-ups, cuts, bytes."""

import bisect
import random
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.indexes import transaction_index
from storage.indexes.offset_index import OffsetIndex, OffsetPosition, search
from storage.indexes.time_index import TimeIndex, TimestampOffset
from storage.indexes.transaction_index import AbortedTransaction

BASE = 1000


class Bytes:
    """A file in memory that counts its reads."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.reads = 0

    def pread(self, size: int, position: int) -> bytes:
        self.reads += 1
        return bytes(self.data[position : position + size])


rising = st.lists(st.integers(1, 50), min_size=0, max_size=600)


@given(rising, st.integers(0, 40_000), st.integers(0, 40_000))
def test_the_offset_index_finds_what_a_list_finds(steps: list[int], target: int, cut: int) -> None:
    file, index = Bytes(), OffsetIndex(BASE)
    entries, offset, position = [], BASE, 0
    for step in steps:
        offset, position = offset + step, position + 3 * step
        file.data += index.append(offset, position)
        entries.append(OffsetPosition(offset, position))
    assert len(file.data) == index.size
    assert index.entries(file.pread) == entries
    wanted = [entry for entry in entries if entry.offset <= BASE + target]
    assert index.lookup(file.pread, BASE + target) == (wanted[-1] if wanted else (BASE, 0))
    del file.data[index.truncate_to(file.pread, BASE + cut) :]
    assert index.entries(file.pread) == [entry for entry in entries if entry.offset < BASE + cut]
    again = OffsetIndex.load(BASE, file.pread, len(file.data))
    assert (again.count, again.last_offset, again.last_position) == (
        index.count,
        index.last_offset,
        index.last_position,
    )


@given(st.lists(st.tuples(st.integers(-3, 20), st.integers(0, 9)), max_size=400), st.integers(-1, 4000))
def test_the_time_index_finds_what_a_list_finds(steps: list[tuple[int, int]], target: int) -> None:
    file, index = Bytes(), TimeIndex(BASE)
    entries: list[TimestampOffset] = []
    timestamp, offset = 0, BASE
    for step, further in steps:
        timestamp, offset = timestamp + step, offset + further
        entry = index.append(timestamp, offset)
        largest = entries[-1].timestamp if entries else -1
        assert (entry is None) == (timestamp <= largest)
        if entry is not None:
            file.data += entry
            entries.append(TimestampOffset(timestamp, offset))
    assert index.entries(file.pread) == entries
    wanted = [entry for entry in entries if entry.timestamp <= target]
    assert index.lookup(file.pread, target) == (wanted[-1] if wanted else (-1, BASE))
    cut = BASE + max(target, 0)
    del file.data[index.truncate_to(file.pread, cut) :]
    assert index.entries(file.pread) == [entry for entry in entries if entry.offset < cut]
    assert TimeIndex.load(BASE, file.pread, len(file.data)).last_timestamp == index.last_timestamp


def test_entries_are_kafkas_bytes() -> None:
    assert OffsetIndex(BASE).append(1007, 4100) == struct.pack(">ii", 7, 4100)
    assert TimeIndex(BASE).append(123456789012, 1007) == struct.pack(">qi", 123456789012, 7)
    entry = AbortedTransaction(5, 10, 20, 21)
    assert transaction_index.encode(entry) == struct.pack(">hqqqq", 0, 5, 10, 20, 21)


def test_a_search_reads_little() -> None:
    file, index = Bytes(), OffsetIndex(0)
    for number in range(1, 100_001):
        file.data += index.append(number * 10, number * 4096 // 100)
    file.reads = 0
    assert index.lookup(file.pread, 555_555).offset == 555_550
    assert file.reads <= 9


@given(st.integers(0, 5_000), st.sampled_from([8, 12, 34]), st.integers(-1, 60_001), st.randoms(use_true_random=False))
def test_a_search_finds_what_a_list_finds_in_an_index_of_any_size(
    count: int, entry_bytes: int, target: int, rng: random.Random
) -> None:
    keys, file = sorted(rng.sample(range(60_000), count)), Bytes()
    file.data += b"".join(key.to_bytes(4, "big").ljust(entry_bytes, b"x") for key in keys)

    def key_at(data: bytes, at: int) -> int:
        return int.from_bytes(data[at : at + 4], "big")

    found = search(file.pread, count, entry_bytes, key_at, target)
    assert found == bisect.bisect_right(keys, target) - 1


def test_entries_that_do_not_grow_or_fit_are_refused() -> None:
    offsets, times = OffsetIndex(BASE), TimeIndex(BASE)
    offsets.append(1010, 100)
    times.append(50, 1010)
    for offset, position in ((1010, 200), (1011, 100), (1011, 2**31), (BASE + 2**31, 200), (999, 200)):
        with pytest.raises(ValueError):  # noqa: PT011
            offsets.append(offset, position)
    for offset in (1009, BASE + 2**31):
        with pytest.raises(ValueError):  # noqa: PT011
            times.append(60, offset)
    assert (offsets.count, times.count) == (1, 1)


@pytest.mark.parametrize("data", [b"x" * 7, bytes(16), struct.pack(">ii", -1, 5)])
def test_a_damaged_offset_index_is_refused(data: bytes) -> None:
    file = Bytes()
    file.data += data
    with pytest.raises(ValueError):  # noqa: PT011
        OffsetIndex.load(BASE, file.pread, len(data))


@pytest.mark.parametrize("data", [b"x" * 13, struct.pack(">qi", 5, -1), struct.pack(">qiqi", 5, 1, 5, 2)])
def test_a_damaged_time_index_is_refused(data: bytes) -> None:
    file = Bytes()
    file.data += data
    with pytest.raises(ValueError):  # noqa: PT011
        TimeIndex.load(BASE, file.pread, len(data))


transactions = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), max_size=20).map(
    lambda steps: [
        AbortedTransaction(number % 3, max(0, last - length), last, max(0, last - length // 2))
        for number, (last, length) in enumerate(
            (sum(step for step, _ in steps[: at + 1]), length) for at, (_, length) in enumerate(steps)
        )
    ]
)


@given(transactions, st.integers(0, 100), st.integers(0, 100))
def test_the_transaction_index(entries: list[AbortedTransaction], start: int, length: int) -> None:
    data = b"".join(transaction_index.encode(entry) for entry in entries)
    assert transaction_index.decode(data) == entries
    assert all(a.last_offset < b.last_offset for a, b in pairwise(entries))
    found, complete = transaction_index.collect(entries, start, start + length)
    touching = [e for e in entries if e.last_offset >= start and e.first_offset < start + length]
    assert found == touching[: len(found)]
    if not complete:
        assert found == touching
    file = Bytes()
    file.data += data
    kept = transaction_index.entries_below(file.pread, len(entries), start)
    assert entries[:kept] == [entry for entry in entries if entry.last_offset < start]


@given(transactions, st.integers(0, 100), st.binary(max_size=80))
def test_a_transaction_index_is_read_up_to_an_offset(
    entries: list[AbortedTransaction], offset: int, behind: bytes
) -> None:
    entries = [entry for entry in entries if entry.first_offset < entry.last_offset]
    data = b"".join(transaction_index.encode(entry) for entry in entries)
    below = [entry for entry in entries if entry.last_offset < offset]
    assert transaction_index.decode_below(data, offset) == below
    if len(below) < len(entries):
        cut = (len(below) + 1) * transaction_index.ENTRY_BYTES
        assert transaction_index.decode_below(data[:cut] + behind, offset) == below


@pytest.mark.parametrize("at", [0, 1])
def test_what_is_no_entry_is_refused_before_the_offset(at: int) -> None:
    """Zeros are what a lost write leaves before one that was kept."""
    entries = [transaction_index.encode(AbortedTransaction(5, n, n + 3, n)) for n in (10, 20)]
    entries.insert(at, bytes(transaction_index.ENTRY_BYTES))
    with pytest.raises(ValueError, match="is damaged"):
        transaction_index.decode_below(b"".join(entries), 100)


def test_a_damaged_transaction_index_is_refused() -> None:
    entry = transaction_index.encode(AbortedTransaction(5, 10, 20, 21))
    backwards = transaction_index.encode(AbortedTransaction(5, 21, 20, 21))
    for data in (entry[:-1], b"\1" + entry[1:], entry + entry, backwards):
        with pytest.raises(ValueError):  # noqa: PT011
            transaction_index.decode(data)
