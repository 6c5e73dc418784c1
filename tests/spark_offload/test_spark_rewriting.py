"""Rewritten batches, and what damage in them leads to."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ProtocolError
from object_store.store import FileRange
from records.batch import HEADER_BYTES, iterate_batches, seal
from records.builder import build_batch
from records.compression import Compression
from records.record import Record, decode_records, inflate_records, scan_records
from spark_offload.compaction.latest_keys import Bucket, LatestKeys, hashes
from spark_offload.rewriting.rewriter import NO_HORIZON, BatchPlan, Choice, Rewritten, rewrite
from spark_offload.rewriting.spool import Spool
from spark_offload.segments.batch_scan import scan_batches
from spark_offload.segments.payload import Payload
from spark_offload.segments.record_table import ACROSS_MIN, RecordTable
from spark_offload.segments.varints import read_varints, write_varints
from tests.spark_offload.tier_builder import NOW
from tiering.bucket.segment import OFFSET_INDEX, SegmentState, TieredSegment
from tiering.jobs.segment_writer import SegmentWriter

SOME = [Record(0, NOW + at * 3, b"k%d" % at, b"v" * (at * 40), (("h", b"x"),) * (at % 3)) for at in range(12)]


def log(codec: Compression = Compression.NONE, batches: int = 6) -> bytes:
    return b"".join(bytes(build_batch(SOME, base_offset=at * len(SOME), compression=codec)) for at in range(batches))


def records_of(data: bytes) -> list[Record]:
    view = memoryview(data)
    return [
        record
        for at, header in iterate_batches(view, 0, len(view))
        for record in decode_records(view, at, header.size, inflated_bytes_max=1 << 26)
    ]


def rewritten(data: bytes, modulus: int = 3, horizon_ms: int = NO_HORIZON) -> Rewritten:
    """Records whose offset is no multiple of `modulus` go, in every second batch a horizon comes."""
    view = memoryview(data)
    batches = scan_batches(view)

    def choose(payload: Payload, records: RecordTable) -> Choice:
        second = payload.batches.base_offset % (2 * len(SOME)) == 0
        return Choice(records.offset % modulus == 0, np.where(second, horizon_ms, NO_HORIZON))

    return rewrite(view, batches, BatchPlan.of_data(batches, np.zeros(len(batches), np.bool_)), choose)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("horizon_ms", [NO_HORIZON, NOW + 86_400_000])
def test_records_that_stay_are_what_they_were(codec: Compression, horizon_ms: int) -> None:
    data = log(codec)
    left = rewritten(data, horizon_ms=horizon_ms)
    new = b"".join(left.parts)
    assert records_of(new) == [one for one in records_of(data) if one.offset % 3 == 0]
    headers = [header for _, header in iterate_batches(memoryview(new), 0, len(new))]
    marked = [header.base_offset for header in headers if header.delete_horizon_ms == horizon_ms]
    assert marked == ([] if horizon_ms == NO_HORIZON else [0, 24, 48])
    assert (left.batches_changed, left.batches_dropped, left.records_dropped) == (6, 0, 48)
    assert {header.compression for header in headers} == {codec}


def test_batches_that_lose_nothing_are_not_copied() -> None:
    data = log()
    left = rewritten(data, modulus=1)
    assert left.is_same
    (part,) = left.parts
    assert isinstance(part, memoryview)
    assert part.obj is data


def test_batches_that_lose_everything_go_or_stay_empty() -> None:
    data = log()
    view = memoryview(data)
    batches = scan_batches(view)
    stay = batches.base_offset == 24
    plan = BatchPlan.of_data(batches, stay)
    left = rewrite(view, batches, plan, lambda _, records: Choice(np.zeros(len(records), np.bool_)))
    (empty,) = (bytes(part) for part in left.parts)
    ((_, header),) = iterate_batches(memoryview(empty), 0, len(empty))
    assert (header.base_offset, header.last_offset, header.count) == (24, 35, 0)
    assert left.dropped_end == data[-len(data) // 6 :][:HEADER_BYTES]


@pytest.mark.parametrize("count", [3, ACROSS_MIN])
def test_twenty_thousand_spoiled_payloads_end_in_errors_alone(count: int) -> None:
    """CRCs fit, so every byte reaches the rewriter; what it accepts, a plain decoder finds unchanged. Of many batches
    the i-th records are found together."""
    chance = random.Random(count)
    sound = [build_batch(SOME[at % 12 : at % 12 + 4], base_offset=at) for at in range(0, 4 * count, 4)]
    accepted = 0
    for _ in range(10_000):
        batches = [bytearray(batch) for batch in sound]
        for _ in range(chance.randrange(1, 4)):
            batch = chance.choice(batches)
            spoiled = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            batch[chance.randrange(21, len(batch))] = spoiled
        for batch in batches:
            seal(batch, 0, len(batch))
        data = b"".join(batches)
        try:
            left = rewritten(data, modulus=2, horizon_ms=NOW)
        except ValueError:
            continue
        accepted += 1
        try:
            wanted = plain_spans(data)
        except ProtocolError:
            continue  # a batch that calls itself a control batch is handed on unread
        got = plain_spans(b"".join(left.parts))
        kept_whole = [one for at, one in iterate_batches(memoryview(data), 0, len(data)) if one.is_control]
        if kept_whole:
            continue
        assert got == [one for one in wanted if one[0] % 2 == 0]
    assert accepted > 300


def plain_spans(data: bytes) -> list[tuple[int, int, bytes]]:
    """Offset, timestamp, and all bytes behind them, of each record: found one by one."""
    found = []
    view = memoryview(data)
    for at, header in iterate_batches(view, 0, len(view)):
        _, inflated = inflate_records(view, at, header.size, inflated_bytes_max=1 << 20)
        for span in scan_records(header, inflated):
            rest = inflated[span.offset_delta_at : span.end]
            timestamp = (header.base_timestamp + span.timestamp_delta + 2**63) % 2**64
            found.append((header.base_offset + span.offset_delta, timestamp, rest))
    return found


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-130, 130), min_size=1))
def test_varints_come_back(values: list[int]) -> None:
    rows, sizes = write_varints(np.array(values, np.int64))
    found, after = read_varints(rows.reshape(-1), np.arange(len(values)) * rows.shape[1])
    assert found.tolist() == values
    assert (after - np.arange(len(values)) * rows.shape[1]).tolist() == sizes.tolist()


@given(st.lists(st.binary(max_size=6), max_size=200), st.integers(60, 2_000), st.integers(1, 40))
def test_the_last_place_of_each_key_within_any_budget(keys: list[bytes], budget: int, step: int) -> None:
    found: list[int] = []
    waiting = [Bucket()]
    while waiting:
        latest = LatestKeys(waiting.pop(), budget)
        for at in range(0, len(keys), step):
            some = keys[at : at + step]
            latest.add(pa.array(some, pa.binary()), np.arange(at, at + len(some)))
        places = latest.places().tolist()
        assert places == sorted(places)
        found += places
        waiting += latest.put_off
    assert sorted(found) == sorted({key: place for place, key in enumerate(keys)}.values())
    column = pa.array(keys, pa.binary())
    assert len(set(hashes(column).tolist())) == len(set(keys))
    assert hashes(column.slice(len(keys) // 2)).tolist() == hashes(column).tolist()[len(keys) // 2 :]


@contextmanager
def spool(memory_bytes: int) -> Iterator[Spool]:
    made = Spool(memory_bytes)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("memory_bytes", [0, 25, 1_000])
def test_a_spool_gives_back_what_it_got(memory_bytes: int) -> None:
    with spool(memory_bytes) as made:
        wanted = b""
        for number in range(10):
            parts: list[bytes | memoryview] = [b"%d" % number * number, memoryview(b"abc")]
            made.append(parts)
            wanted += b"".join(parts)
        body = made.body([b"tail"])
        got = b"".join(
            part.file.pread(part.length, part.position) if isinstance(part, FileRange) else part for part in body
        )
        assert got == wanted + b"tail"
        assert made.size == len(wanted)
        assert any(isinstance(part, FileRange) for part in body) == (memory_bytes < len(wanted))
    assert not list(Path(tempfile.gettempdir()).glob("tidelog-??????????"))


def test_a_written_segment_is_described_as_a_broker_would() -> None:
    data = log(batches=40)
    writer = SegmentWriter(0, index_interval_bytes=3_000)
    writer.append(memoryview(data)[: len(data) // 2])
    writer.append(memoryview(data)[len(data) // 2 :])
    covered = TieredSegment(
        uuid="0" * 32, base_offset=0, end_offset=500, max_timestamp=NOW + 33, log_bytes=1, epochs=[(3, 0)],
        state=SegmentState.COPY_FINISHED, broker_id=1, leader_epoch=4, changed_ms=0,
    )  # fmt: skip
    segment, tail = writer.finish("1" * 32, [covered], {"producer_snapshot": b"p"}, b"", NOW)
    assert (segment.base_offset, segment.end_offset, segment.records) == (0, 500, 480)
    assert (segment.max_timestamp, segment.epochs, segment.rewritten) == (NOW + 33, [(3, 0)], True)
    assert segment.object_bytes == len(data) + sum(map(len, tail))
    positions = [at for at, _ in iterate_batches(memoryview(data), 0, len(data))]
    index = tail[0]
    assert segment.sections[OFFSET_INDEX].length == len(index) > 0
    assert {int.from_bytes(index[at + 4 : at + 8], "big") for at in range(0, len(index), 8)} <= set(positions)
    with pytest.raises(ValueError, match="or a later one is due"):
        writer.append(log(batches=1))
    with pytest.raises(ValueError, match="not whole batches"):
        SegmentWriter(0).append(data[:-1])
    with pytest.raises(ValueError, match="without a batch"):
        SegmentWriter(0).finish("1" * 32, [covered], {}, b"", NOW)


def test_large_keys_take_no_more_memory_than_they_may() -> None:
    """However few they are: what waits to be brought together counts too."""
    budget, size, together = 1 << 18, 4_096, 16
    latest = LatestKeys(memory_bytes=budget)
    before, most = pa.total_allocated_bytes(), 0
    for first in range(0, 4_096, together):
        keys = pa.array([b"%0*d" % (size, number) for number in range(first, first + together)], pa.binary())
        latest.add(keys, np.arange(first, first + together))
        del keys
        most = max(most, pa.total_allocated_bytes() - before)
    assert latest.put_off
    assert most < 3 * budget
