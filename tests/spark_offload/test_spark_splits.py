"""From ranges of offsets to splits, and from splits to rows, without Spark: nothing is missed, nothing comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_store.blocking import BlockingStore
from object_store.errors import ObjectMissing, StoreError
from records.compression import Compression
from records.control import MarkerKind
from records.record import Record
from spark_offload.options import parse_options
from spark_offload.reading.catalog import OffsetRange, PartitionContents, stable_end
from spark_offload.reading.decoding import Decoder
from spark_offload.reading.planning import Planner, plan_tasks
from spark_offload.reading.segment_reading import read_split
from spark_offload.reading.splits import TASK_BYTES_MAX, TASK_BYTES_MIN, Split, bytes_per_task, packed
from spark_offload.reading.timestamps import offset_of_timestamp
from spark_offload.segments.aborted import AbortedRanges
from spark_offload.segments.varints import DamagedRecords
from storage.indexes.transaction_index import AbortedTransaction
from tests.spark_offload.segment_bytes import SCHEMA
from tests.spark_offload.tier_builder import (
    NOW,
    BuiltPartition,
    TierBuilder,
    batch,
    marker,
    plain_batches,
    transactional,
)

OFFSETS = pa.schema([SCHEMA.field("offset"), SCHEMA.field("value")])
SEGMENTS = [(0, 95), (95, 40), (140, 200)]  # (first offset, records): a gap of five offsets


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltPartition:
    partition = TierBuilder(tmp_path_factory.mktemp("tier")).partition("flights")
    for number, (first, count) in enumerate(SEGMENTS):
        partition.add(plain_batches(first, count, codec=Compression(number)))
    return partition


@pytest.fixture(scope="module")
def store(built: BuiltPartition) -> Iterator[BlockingStore]:
    with BlockingStore(built.root.as_uri()) as opened:
        yield opened


def contents_of(built: BuiltPartition) -> PartitionContents:
    end = built.segments[-1].end_offset
    return PartitionContents(built.tier, built.path, built.log_start, end, tuple(built.segments))


def plan(
    store: BlockingStore, wanted: OffsetRange, split_bytes: int = 1 << 20, *, committed: bool = False, **more: int
) -> list[Split]:
    async def run() -> list[Split]:
        return await Planner(store.store, split_bytes, read_committed=committed, **more).plan([wanted])

    return store.wait(run)


def rows(store: BlockingStore, splits: list[Split], chunk_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    found = []
    for split in splits:
        decoder = Decoder(OFFSETS, split.topic, split.partition, AbortedRanges(split.aborted))
        for part in read_split(store, split, decoder, chunk_bytes=chunk_bytes):
            found += list(zip(part["offset"].to_pylist(), part["value"].to_pylist(), strict=True))
    return found


def expected(start: int, end: int) -> list[tuple[int, bytes]]:
    there = [offset for first, count in SEGMENTS for offset in range(first, first + count)]
    return [(offset, b"v%d" % offset) for offset in there if start <= offset < end]


@given(
    start=st.integers(0, 350),
    length=st.integers(1, 350),
    split_bytes=st.integers(60, 9_000),
    chunk_bytes=st.integers(61, 9_000),
    index_parts=st.booleans(),
)
def test_every_record_of_a_range_comes_once_and_in_order(
    built: BuiltPartition, store: BlockingStore, start: int, length: int, split_bytes: int, chunk_bytes: int,
    index_parts: bool,
) -> None:  # fmt: skip
    wanted = OffsetRange(contents_of(built), start, start + length)
    found = plan(store, wanted, split_bytes, partial_bytes_min=0 if index_parts else 1 << 30)
    assert rows(store, found, chunk_bytes) == expected(start, start + length)


def test_a_large_segment_is_read_by_several_tasks(built: BuiltPartition, store: BlockingStore) -> None:
    found = plan(store, OffsetRange(contents_of(built), 140, 340), split_bytes=1_000)
    assert len(found) > 3
    shares = [len(rows(store, [split])) for split in found]
    assert sum(shares) == 200
    assert max(shares) < 80


@given(task_bytes=st.integers(60, 30_000), split_bytes=st.integers(60, 9_000))
def test_tasks_have_all_splits_in_order_and_no_more_than_they_may(
    built: BuiltPartition, store: BlockingStore, task_bytes: int, split_bytes: int
) -> None:
    found = plan(store, OffsetRange(contents_of(built), 0, 340), split_bytes)
    tasks = packed(found, task_bytes)
    assert [split for task in tasks for split in task] == found
    sizes = [sum(split.high - split.low for split in task) for task in tasks]
    assert all(size <= task_bytes or len(task) == 1 for size, task in zip(sizes, tasks, strict=True))
    firsts = [task[0].high - task[0].low for task in tasks[1:]]
    assert all(size + after > task_bytes for size, after in zip(sizes, firsts, strict=False))


def test_small_segments_share_a_task(built: BuiltPartition, store: BlockingStore) -> None:
    options = parse_options({"tier": built.root.as_uri(), "topic": "flights"})
    wanted = [OffsetRange(contents_of(built), 0, 340)]
    (task,) = store.wait(lambda: plan_tasks(store.store, options, wanted))
    assert [split.base_offset for split in task] == [0, 95, 140]
    assert rows(store, list(task)) == expected(0, 340)


def test_tasks_grow_with_what_there_is_to_read() -> None:
    assert bytes_per_task(0) == bytes_per_task(1 << 30) == TASK_BYTES_MIN
    assert bytes_per_task(3 << 29) == 96 << 20
    assert bytes_per_task(1 << 40) == TASK_BYTES_MAX


def test_a_part_of_a_large_segment_reads_only_what_it_needs(built: BuiltPartition, store: BlockingStore) -> None:
    (found,) = plan(store, OffsetRange(contents_of(built), 250, 255), partial_bytes_min=0)
    assert 0 < found.low < found.high < found.log_bytes
    assert found.high - found.low < found.log_bytes / 3
    assert rows(store, [found]) == expected(250, 255)


def test_segments_before_a_timestamp_are_left_out(built: BuiltPartition, store: BlockingStore) -> None:
    found = plan(store, OffsetRange(contents_of(built), 0, 340, timestamp_from=NOW + 95))
    assert [split.base_offset for split in found] == [95, 140]


@pytest.mark.parametrize(
    "timestamp", [0, 1, NOW, NOW + 1, NOW + 94, NOW + 95, NOW + 134, NOW + 135, NOW + 200, NOW + 339]
)
def test_a_timestamp_becomes_the_first_offset_with_it(
    built: BuiltPartition, store: BlockingStore, timestamp: int
) -> None:
    contents = contents_of(built)
    want = next(offset for offset, _ in expected(0, 340) if NOW + offset >= timestamp)
    assert store.wait(lambda: offset_of_timestamp(store.store, contents, timestamp, inflated_bytes_max=10**6)) == want


def test_a_timestamp_after_all_has_no_offset(built: BuiltPartition, store: BlockingStore) -> None:
    contents = contents_of(built)
    search = lambda: offset_of_timestamp(store.store, contents, NOW + 340, inflated_bytes_max=10**6)  # noqa: E731
    assert store.wait(search) is None


def test_a_timestamp_is_looked_for_above_the_log_start_alone(tmp_path: Path) -> None:
    partition = TierBuilder(tmp_path).partition("t")
    late = batch([Record(0, NOW + 1_000, b"k", b"v")] * 2, 0)
    partition.add([late, *plain_batches(2, 30)])
    partition.add(plain_batches(32, 30))
    partition.log_start = 10
    assert find(partition, NOW + 12) == 12
    assert find(partition, NOW + 40) == 40
    assert find(partition, NOW + 900) is None


def find(partition: BuiltPartition, timestamp: int) -> int | None:
    contents = contents_of(partition)
    with BlockingStore(partition.root.as_uri()) as store:
        return store.wait(lambda: offset_of_timestamp(store.store, contents, timestamp, inflated_bytes_max=10**6))


def test_read_committed_leaves_out_what_a_later_segment_says_was_aborted(tmp_path: Path) -> None:
    partition = TierBuilder(tmp_path).partition("t")
    first = [transactional(1, 0, [b"a"] * 3), transactional(2, 3, [b"b"] * 2), *plain_batches(5, 5)]
    partition.add(first, open_transactions=[(1, 0), (2, 3)])
    second = [transactional(1, 10, [b"a"]), marker(MarkerKind.ABORT, 1, 11), marker(MarkerKind.COMMIT, 2, 12)]
    third = [transactional(1, 13, [b"c"]), transactional(2, 14, [b"d"]), *plain_batches(15, 5)]
    partition.add([*second, *third], aborted=[AbortedTransaction(1, 0, 11, 3)], open_transactions=[(1, 13), (2, 14)])
    with BlockingStore(tmp_path.as_uri()) as store:
        contents = contents_of(partition)
        assert store.wait(lambda: stable_end(store.store, contents)) == 13
        committed = rows(store, plan(store, OffsetRange(contents, 0, 13), committed=True))
        assert [offset for offset, _ in committed] == [3, 4, 5, 6, 7, 8, 9]
        alone = rows(store, plan(store, OffsetRange(contents, 0, 2), committed=True))
        assert alone == []
        dirty = rows(store, plan(store, OffsetRange(contents, 0, 20)))
        assert [offset for offset, _ in dirty] == [*range(11), *range(13, 20)]


def change(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def damaged(tmp_path: Path, kind: str) -> Any:
    partition = TierBuilder(tmp_path).partition("t")
    segment = partition.add(plain_batches(0, 100))
    path = partition.file_of(segment)
    index = segment.sections["offset_index"]
    if kind == "record":
        change(path, segment.log_bytes - 10)
    elif kind == "offset":
        change(path, 5)  # of the first batch's base offset, which its CRC does not cover
    elif kind == "index":
        change(path, index.position + 3)
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[: segment.log_bytes // 2])
    else:
        path.unlink()
    with BlockingStore(tmp_path.as_uri()) as store:
        return rows(store, plan(store, OffsetRange(contents_of(partition), 0, 100), split_bytes=1_000), 500)


@pytest.mark.parametrize("kind", ["record", "offset", "index", "truncated", "missing"])
def test_a_damaged_object_is_named_and_never_read_past(tmp_path: Path, kind: str) -> None:
    with pytest.raises((DamagedRecords, StoreError), match=r"0{20}-0{31}1\.segment") as caught:
        damaged(tmp_path, kind)
    assert isinstance(caught.value, DamagedRecords) == (kind in ("record", "offset", "index"))
    assert isinstance(caught.value, ObjectMissing) == (kind == "missing")


def test_a_segment_that_ends_inside_a_batch_is_damage(tmp_path: Path) -> None:
    partition = TierBuilder(tmp_path).partition("t")
    segment = partition.add(plain_batches(0, 100))
    cut = Split(
        "t", 0, partition.tier.segment_key(partition.path, segment.id), 0, 100, 0, 0, segment.log_bytes - 5, 0, 100
    )
    with BlockingStore(tmp_path.as_uri()) as store:
        for chunk in (100, 700, 1 << 20):
            with pytest.raises(DamagedRecords, match="cut off"):
                rows(store, [cut], chunk)
