"""Look-ups of aborted transactions: complete, whatever was appended, loaded and cut, and of bounded work."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.batch import iterate_batches
from records.control import MarkerKind
from storage.disk.cold_reads import PagesMissing
from storage.indexes.aborted_look_up import WINDOW_COST, AbortedLookUp, Admits, admit_all, unpack_rows
from storage.indexes.transaction_index import ENTRY_BYTES, AbortedTransaction, encode
from storage.indexes.transaction_windows import WINDOW_ENTRIES, TransactionWindows
from storage.log.aborted_look_ups import TURN_COST, AbortedLookUps
from storage.log.partition_log import PartitionLog
from tests.storage.log_workbench import FOREVER, Workbench, append, marker, produced, truncate

MANY = (TURN_COST // WINDOW_COST + 2) * WINDOW_ENTRIES
RANDOM = st.builds(random.Random, st.integers(0, 2**32))


class Index:
    """A transaction index in memory, the windows of it, and how often a window was read."""

    def __init__(self, entries: list[AbortedTransaction], loaded: int = 0) -> None:
        self.entries = entries
        self.data = b"".join(map(encode, entries))
        self.reads = 0
        self.windows = TransactionWindows.load(self.pread, loaded * ENTRY_BYTES)
        behind = TransactionWindows(loaded)
        for entry in entries[loaded:]:
            behind.add(entry)
        self.windows.extend(behind)
        self.reads = 0

    def pread(self, size: int, position: int) -> bytes:
        self.reads += 1
        return self.data[position : position + size]

    def cut(self, count: int) -> None:
        self.entries = self.entries[:count]
        self.data = self.data[: count * ENTRY_BYTES]
        self.windows.cut(count)

    def append(self, entries: list[AbortedTransaction]) -> None:
        self.entries = self.entries + entries
        self.data += b"".join(map(encode, entries))
        for entry in entries:
            self.windows.add(entry)

    def overlapping(self, start: int, end: int) -> list[tuple[int, int]]:
        return [
            (e.producer_id, e.first_offset) for e in self.entries if e.last_offset >= start and e.first_offset < end
        ]

    def find(self, start: int, end: int, admits: Admits = admit_all) -> list[tuple[int, int]]:
        look_up, is_done = AbortedLookUp(start, end), False
        while not is_done:
            look_up.begin_turn()
            is_done = look_up.search(self.windows, self.pread, len(self.entries), admits)
        return unpack_rows(look_up.rows)


def history(rng: random.Random, count: int, offset: int = 0) -> list[AbortedTransaction]:
    """`count` aborted transactions; some of their producers let many others begin and end meanwhile."""
    begun: dict[int, int] = {}
    entries: list[AbortedTransaction] = []
    patience = rng.choice((0.0, 0.01, 0.3))
    while len(entries) < count:
        producer_id = rng.randrange(6) if rng.random() >= patience else rng.randrange(6, 40)
        first = begun.get(producer_id)
        if first is None:
            begun[producer_id] = offset
        elif producer_id < 6 or rng.random() < 0.02:
            del begun[producer_id]
            if rng.random() < 0.8:
                stable = min(begun.values(), default=offset + 1)
                entries.append(AbortedTransaction(producer_id, first, offset, stable))
        offset += rng.randint(1, 3)
    return entries


def ranges(rng: random.Random, end: int) -> Iterator[tuple[int, int]]:
    for _ in range(10):
        start = rng.randrange(end + 5)
        yield start, start + rng.choice((0, 1, 20, 1_000))


@settings(max_examples=30, deadline=None)
@given(RANDOM, st.integers(0, 400), st.booleans())
def test_a_look_up_finds_what_overlaps(rng: random.Random, count: int, is_cut: bool) -> None:
    index = Index(history(rng, count), loaded=rng.randint(0, count))
    if is_cut and count:
        index.cut(rng.randint(1, count))
        index.append(history(rng, rng.randint(0, 400), index.entries[-1].last_offset + 1))
    end = index.entries[-1].last_offset if index.entries else 0
    for first, behind in ranges(rng, end):
        assert index.find(first, behind) == index.overlapping(first, behind)
        assert index.find(first, behind, lambda cost: rng.random() < 0.3) == index.overlapping(first, behind)


@settings(max_examples=20, deadline=None)
@given(RANDOM, st.integers(1, 400))
def test_nothing_after_a_complete_look_up_overlaps(rng: random.Random, count: int) -> None:
    entries = history(rng, count)
    cut = rng.randint(1, count)
    index = Index(entries[:cut], loaded=rng.randint(0, cut))
    for first, behind in ranges(rng, entries[-1].last_offset):
        look_up = AbortedLookUp(first, behind)
        assert look_up.search(index.windows, index.pread, cut, admit_all)
        if look_up.is_complete(index.windows):
            assert Index(entries).overlapping(first, behind) == index.overlapping(first, behind)


def test_what_was_cut_does_not_say_that_a_look_up_is_complete() -> None:
    """The first entry was left by a truncation at offset 11, after which a transaction ends that began at 6."""
    index = Index([AbortedTransaction(1, 5, 10, 6), AbortedTransaction(2, 12, 20, 21)])
    whole, look_up = AbortedLookUp(0, 12), AbortedLookUp(0, 12)
    assert whole.is_complete(index.windows)
    index.cut(1)
    assert not look_up.is_complete(index.windows)


@pytest.mark.parametrize("loaded", [0, MANY // 2 + 5, MANY])
def test_behind_a_long_transaction_a_look_up_reads_what_it_needs(loaded: int) -> None:
    """All have its start as last stable offset, so none of them says that no later one overlaps the range."""
    index = Index([AbortedTransaction(7, 1 + 2 * n, 2 + 2 * n, 0) for n in range(MANY)], loaded)
    for start in (0, 40, MANY, 2 * MANY - 40, 2 * MANY + 10):
        index.reads = 0
        assert index.find(start, start + 20) == index.overlapping(start, start + 20)
        assert index.reads <= 2


async def test_a_turn_of_the_loop_reads_a_bounded_number_of_windows() -> None:
    """However many aborted transactions overlap the range, and however many look-ups there are."""
    index = Index([AbortedTransaction(n, n, MANY + n, 0) for n in range(MANY)])
    look_ups, admitted = AbortedLookUps(), TURN_COST // WINDOW_COST
    waiting = [AbortedLookUp(MANY, MANY + 1) for _ in range(4)]
    turns = 0
    while waiting:
        turns += 1
        left = []
        for look_up in waiting:
            before = index.reads
            look_up.begin_turn()
            if look_up.search(index.windows, index.pread, MANY, look_ups.admits):
                assert unpack_rows(look_up.rows) == index.overlapping(MANY, MANY + 1)
            else:
                left.append(look_up)
                assert index.reads > before, "each gets on"
        assert index.reads <= admitted + len(waiting)
        waiting, index.reads = left, 0
        await look_ups.next_turn().wait.settled()
    assert 4 <= turns < 10


async def test_a_look_up_of_many_segments_takes_several_turns(tmp_path: Path) -> None:
    """The transaction of producer 1 is open across all of them, and so nothing says that it is done."""
    bench = Workbench(tmp_path, replace(FOREVER, segment_bytes=200))
    log = await bench.log()
    append(log, produced(1, producer_id=1, transactional=True))
    for number in range(TURN_COST // 3):
        append(log, produced(1, producer_id=2, sequence=number, transactional=True))
        append(log, marker(MarkerKind.ABORT, 2))
    append(log, marker(MarkerKind.ABORT, 1))
    assert len(log.segments) > TURN_COST // 3
    await bench.directory.settle()
    turns = 0

    def ask() -> list[tuple[int, int]]:
        nonlocal turns
        turns += 1
        return unpack_rows(log.aborted_rows(1, 4))

    expected = await log.when_in_memory(lambda: unpack_rows(log.aborted_rows(0, 4)))
    assert await log.when_in_memory(ask) == expected == [(2, 1), (2, 3), (1, 0)]
    assert turns > 1
    await bench.directory.close()


def model_of(log: PartitionLog) -> list[tuple[int, int, int]]:
    """(producer id, first offset, offset of the marker) of aborted transactions, from the batches of the log."""
    begun: dict[int, int] = {}
    found: list[tuple[int, int, int]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        region = log.read(offset, 1 << 20, log.log_end_offset)
        assert region is not None
        data = memoryview(region.read())
        for at, header in iterate_batches(data, 0, len(data)):
            if not header.is_control:
                begun.setdefault(header.producer_id, header.base_offset)
            elif (first := begun.pop(header.producer_id, None)) is not None and data[at + 61 + 8] == 0:
                found.append((header.producer_id, first, header.base_offset))
            offset = header.next_offset
        region.release()
    return found


async def check(log: PartitionLog, rng: random.Random) -> None:
    model, stable = model_of(log), log.last_stable_offset(log.log_end_offset)
    for _ in range(40):
        offset = rng.randrange(stable)
        region = await log.when_in_memory(
            partial(log.read, offset, rng.choice((1, 500, 5_000)), stable, only_in_memory=True)
        )
        assert region is not None
        told_of, rows = await log.when_in_memory(partial(log.aborted_in, offset, region, stable))
        headers = [header for _, header in iterate_batches(memoryview(told_of.read()), 0, told_of.length)]
        told_of.release()
        told = unpack_rows(rows)
        needed = [(who, first) for who, first, last in model if last >= offset and first < headers[-1].next_offset]
        possible = [(who, first) for who, first, last in model if last >= offset]
        assert [one for one in told if one[1] < headers[-1].next_offset] == needed
        assert set(told) <= set(possible), "an aborted transaction from before would hide committed records"
        assert log.aborted_transactions(offset, headers[-1].next_offset) == needed


@pytest.mark.parametrize("seed", range(4))
async def test_readers_are_told_of_what_overlaps_after_restarts_and_truncations(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    bench = Workbench(tmp_path, replace(FOREVER, segment_bytes=30_000, index_interval_bytes=300))
    log = await bench.log()
    sequences: dict[int, int] = {}

    def run(steps: int) -> None:
        for _ in range(steps):
            who = rng.randrange(8) if rng.random() < 0.97 else 9
            if who == 9 or rng.random() < 0.5:
                append(log, produced(1, producer_id=who, sequence=sequences.get(who, 0), transactional=True))
                sequences[who] = sequences.get(who, 0) + 1
            else:
                append(log, marker(MarkerKind.ABORT if rng.random() < 0.9 else MarkerKind.COMMIT, who))
        for who in range(10):
            append(log, marker(MarkerKind.ABORT, who))

    run(1_500)
    await check(log, rng)
    log = await bench.restart(clean=True)
    run(300)  # before anybody has looked
    await check(log, rng)
    await truncate(log, rng.randrange(log.log_end_offset // 2, log.log_end_offset))
    sequences.clear()
    for who in range(10):
        append(log, marker(MarkerKind.ABORT, who))
    run(400)
    await check(log, rng)
    log = await bench.restart(clean=False)
    await check(log, rng)
    await bench.directory.close()


async def overlapped(tmp_path: Path) -> tuple[Workbench, PartitionLog]:
    """A log with more aborted transactions than a turn of the loop reads."""
    bench = Workbench(tmp_path)
    log = await bench.log()
    for number in range(MANY):
        append(log, produced(1, producer_id=7, sequence=number, transactional=True))
        append(log, marker(MarkerKind.ABORT, 7))
        if number % 200 == 0:
            await bench.directory.settle()  # a disk that was slow for a moment would hold the rest back
    await bench.directory.settle()
    return bench, log


async def test_a_region_does_not_outgrow_the_look_up_that_goes_on(tmp_path: Path) -> None:
    """Else a log that grows in each turn would begin it again in each."""
    bench, log = await overlapped(tmp_path)
    await log.when_in_memory(partial(log.aborted_rows, 0, 1))
    region = log.read(0, 1 << 30, end := log.log_end_offset)
    assert region is not None
    with pytest.raises(PagesMissing) as missing:
        log.aborted_in(0, region, end)
    region.release()
    turns, told = 0, bytearray()
    while not told:
        await missing.value.wait.settled()
        append(log, produced(1, producer_id=8, sequence=turns))
        longer = log.read(0, 1 << 30, log.log_end_offset)
        assert longer is not None
        assert longer.length > region.length
        turns += 1
        try:
            longer, told = log.aborted_in(0, longer, log.log_end_offset)
            assert longer.length == region.length
        except PagesMissing as again:
            missing.value.wait = again.wait
        longer.release()
    assert turns < 5
    assert unpack_rows(told) == [(7, 2 * number) for number in range(MANY)]
    await bench.directory.close()


async def test_a_look_up_does_not_go_on_in_a_log_that_was_cut(tmp_path: Path) -> None:
    bench, log = await overlapped(tmp_path)
    await log.when_in_memory(partial(log.aborted_rows, 0, 1))
    end = log.log_end_offset
    with pytest.raises(PagesMissing):
        log.aborted_rows(0, end)
    await truncate(log, 20)
    append(log, produced(1, producer_id=3, transactional=True))
    append(log, marker(MarkerKind.ABORT, 3))
    told = unpack_rows(await log.when_in_memory(partial(log.aborted_rows, 0, end)))
    assert told == [*((7, 2 * number) for number in range(10)), (3, 20)]
    assert all(low < high for low, high in pairwise(first for _, first in told))
    await bench.directory.close()


async def test_a_truncation_does_not_read_the_whole_transaction_index(tmp_path: Path) -> None:
    bench, log = await overlapped(tmp_path)
    await bench.directory.settle()
    bench.disk.bytes_read.clear()
    await truncate(log, 5_000)
    read = sum(count for path, count in bench.disk.bytes_read.items() if path.endswith(".txnindex"))
    assert 0 < read < 20_000 < MANY * ENTRY_BYTES
    assert len(log.aborted_transactions(0, log.log_end_offset)) == 2_500
    await bench.directory.close()
