"""The codec against kafka-python, record by record, and against bytes that lie."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from records.batch import HEADER_BYTES, TIMESTAMP_TYPE, read_header, seal, write_header
from records.builder import build_batch, empty_batch
from records.compression import Compression
from records.control import MarkerKind
from records.record import Record, decode_records, varint
from spark_offload.reading.decoding import Bounds, Decoder
from spark_offload.segments.aborted import AbortedRanges, AbortedTransaction
from spark_offload.segments.arrow_columns import TIMESTAMP_MAX
from spark_offload.segments.batch_scan import scan_batches
from spark_offload.segments.payload import payloads
from spark_offload.segments.record_table import ACROSS_MIN, locate_in_parts, locate_records
from spark_offload.segments.varints import DamagedRecords, read_varints
from tests.records.control_batches import build_control_batch
from tests.spark_offload.segment_bytes import NOW, SCHEMA, by_kafka_python, of_arrow, segment

ALL = Bounds(0, 2**62)
CODECS = list(Compression)
EDGES = (0, 1, 0x7F, 0x80, 0xFF)

field = st.none() | st.binary(max_size=40) | st.integers(0, 300).map(bytes)
header = st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=200))
records = st.builds(
    Record,
    st.just(0),
    st.integers(-1, NOW) | st.integers(NOW - 300, NOW + 300),
    field,
    field,
    st.lists(header, max_size=4).map(tuple) | st.just(()),
)
segments = st.lists(st.lists(records, min_size=1, max_size=8), min_size=1, max_size=6)


def decoder(columns: Sequence[str] = (), **options: Any) -> Decoder:
    schema = pa.schema([SCHEMA.field(name) for name in columns]) if columns else SCHEMA
    options.setdefault("aborted", AbortedRanges())
    return Decoder(schema, "t", 3, **options)


def decode(data: bytes | memoryview, bounds: Bounds = ALL, **options: Any) -> list[pa.RecordBatch]:
    return list(decoder(**options).decode(memoryview(data), bounds))


@pytest.mark.parametrize("codec", CODECS)
@given(batches=segments, across=st.booleans())
def test_it_agrees_with_kafka_python(codec: Compression, batches: list[list[Record]], across: bool) -> None:
    """One batch after the other where they are few, and across all of them where each is there often enough."""
    data = segment(batches * (ACROSS_MIN if across else 1), codec)
    assert of_arrow(decode(data)) == by_kafka_python(data)


def test_many_small_and_one_long_batch_use_both_ways_to_find_records() -> None:
    some = [Record(0, NOW + i, b"k%d" % i, bytes(i % 300), (("h", b"%d" % i),) * (i % 3)) for i in range(3_000)]
    data = segment([some[i : i + 1 + i % 4] for i in range(600)] + [some], Compression.LZ4)
    assert of_arrow(decode(data)) == by_kafka_python(data)


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_may_change_from_batch_to_batch(codec: Compression) -> None:
    batch = [Record(0, NOW, b"k", b"v" * 100)] * 5
    data = build_batch(batch, compression=codec) + build_batch(batch, base_offset=5)
    data += build_batch(batch, base_offset=10, compression=Compression.ZSTD)
    assert of_arrow(decode(bytes(data))) == by_kafka_python(bytes(data))


def test_log_append_time_counts_for_all_records_of_its_batch() -> None:
    batch = [Record(0, NOW + i, None, b"v") for i in range(4)]
    data = segment([batch], timestamp_type=TIMESTAMP_TYPE) + bytes(build_batch(batch, base_offset=4))
    seen = of_arrow(decode(data))
    assert seen == by_kafka_python(data)
    assert [one.timestamp_type for one in seen] == [1] * 4 + [0] * 4
    assert {one.timestamp for one in seen[:4]} == {NOW + 3}


def test_control_batches_and_batches_emptied_by_compaction_give_no_rows() -> None:
    data = bytearray(segment([[Record(0, NOW, b"a", b"1")]]))
    data += build_control_batch(
        MarkerKind.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOW, base_offset=1
    )
    gone = build_batch([Record(0, NOW, b"b", b"2")] * 2, base_offset=2, compression=Compression.GZIP)
    data += empty_batch(read_header(gone, 0))
    data += build_batch([Record(0, NOW, b"c", b"3")], base_offset=4)
    assert [one.offset for one in of_arrow(decode(bytes(data)))] == [0, 4]
    assert decode(bytes(empty_batch(read_header(gone, 0)))) == []
    assert decode(b"") == []


def test_gaps_that_compaction_left_are_kept() -> None:
    whole = build_batch([Record(0, NOW + i, b"k%d" % i, b"v") for i in range(3)], base_offset=10)
    header = read_header(whole, 0)
    first = decode_records(memoryview(whole), 0, len(whole), inflated_bytes_max=1_000)[0]
    assert first.offset == 10
    kept = build_batch([first], base_offset=10)
    write_header(kept, 0, replace(read_header(kept, 0), last_offset_delta=header.last_offset_delta))
    seal(kept, 0, len(kept))
    for columns in ([], ["offset"]):
        (batch,) = decode(bytes(kept), columns=columns)
        assert batch.column("offset").to_pylist() == [10]


@given(batches=segments, names=st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True))
def test_narrow_schemas_agree_with_the_whole_one(batches: list[list[Record]], names: list[str]) -> None:
    data = segment(batches, Compression.LZ4)
    narrow = pa.Table.from_batches(decode(data, columns=names))
    assert narrow.equals(pa.Table.from_batches(decode(data)).select(names))


@given(batches=segments, start=st.integers(0, 50), length=st.integers(0, 50), names=st.sampled_from([[], ["offset"]]))
def test_bounds_cut_inside_batches(batches: list[list[Record]], start: int, length: int, names: list[str]) -> None:
    data = segment(batches)
    found = [row for batch in decode(data, Bounds(start, start + length), columns=names) for row in batch["offset"]]
    total = sum(map(len, batches))
    assert [value.as_py() for value in found] == [i for i in range(total) if start <= i < start + length]


def test_offsets_alone_are_told_by_the_headers() -> None:
    """Records that lie are not looked at when nothing of them is asked for."""
    batch = build_batch([Record(0, NOW, b"k", b"v")] * 3)
    batch[HEADER_BYTES] = 0xFF
    seal(batch, 0, len(batch))
    (found,) = decode(bytes(batch), columns=["partition", "offset"])
    assert found.to_pydict() == {"partition": [3, 3, 3], "offset": [0, 1, 2]}
    with pytest.raises(DamagedRecords, match="t-3, offsets 0 to 2"):
        decode(bytes(batch))


def test_rows_come_in_pieces() -> None:
    data = segment([[Record(0, NOW, None, b"v")] * 10] * 3)
    assert [batch.num_rows for batch in decode(data, rows_max=12)] == [12, 12, 6]


def test_large_values_come_in_batches_of_some_megabytes() -> None:
    data = segment([[Record(0, NOW, None, b"v" * 300_000)] * 5] * 4)
    assert [batch.num_rows for batch in decode(data)] == [6, 6, 6, 2]
    assert [batch.num_rows for batch in decode(segment([[Record(0, NOW, None, b"v" * 3_000_000)] * 2]))] == [1, 1]


def test_bytes_behind_the_view_are_not_looked_at() -> None:
    """Whole batches are what a chunk begins with; the rest of it is the beginning of another one."""
    data = segment([[Record(0, NOW, b"k", b"v")] * 2])
    assert of_arrow(decode(memoryview(data + b"\xff" * 7)[: len(data)])) == of_arrow(decode(data))
    assert of_arrow(decode(memoryview(b"\xff" * 7 + data)[7:])) == of_arrow(decode(data))


def test_a_damaged_batch_is_named() -> None:
    good = [Record(0, NOW, b"k", b"v")] * 2
    bad = build_batch(good, base_offset=2)
    bad[HEADER_BYTES + 1] ^= 0xFF
    bad[HEADER_BYTES] = 2
    seal(bad, 0, len(bad))
    data = segment([good]) + bytes(bad) + bytes(build_batch(good, base_offset=4))
    with pytest.raises(DamagedRecords, match=r"t-3, offsets 2 to 3: "):
        decode(data)


@pytest.mark.parametrize("at", [5, 17, 22, 30, 61, 70])
def test_a_changed_byte_never_goes_through(at: int) -> None:
    data = bytearray(segment([[Record(0, NOW, b"key", b"value")] * 2] * 2))
    data[at] ^= 0x40
    with pytest.raises(ValueError):  # noqa: PT011  the text depends on the byte
        decode(bytes(data))


def test_truncated_bytes_are_refused() -> None:
    data = segment([[Record(0, NOW, b"key", b"value")] * 2] * 2)
    for end in range(1, len(data)):
        if end != len(data) // 2:
            with pytest.raises(DamagedRecords):
                decode(data[:end])


def test_inflation_stops_at_its_cap() -> None:
    data = segment([[Record(0, NOW, None, bytes(1_000_000))]], Compression.ZSTD)
    assert len(data) < 1_000
    with pytest.raises(DamagedRecords, match="more than 1000 bytes"):
        decode(data, inflated_bytes_max=1_000)


def test_a_count_that_lies_allocates_nothing() -> None:
    batch = build_batch([Record(0, NOW, b"k", b"v")])
    write_header(batch, 0, replace(read_header(batch, 0), count=2**31 - 1, last_offset_delta=2**31 - 2))
    seal(batch, 0, len(batch))
    with pytest.raises(DamagedRecords, match="fewer records than counted"):
        decode(bytes(batch))


def test_timestamps_beyond_microseconds_are_held_at_the_end() -> None:
    (batch,) = decode(segment([[Record(0, 2**62, None, b"v")]]), columns=["timestamp"])
    assert batch.column(0).cast(pa.int64()).to_pylist() == [TIMESTAMP_MAX * 1_000]


def test_a_header_key_that_is_no_text_gets_replacement_characters() -> None:
    batch = build_batch([Record(0, NOW, None, None, (("ab", b"v"),))])
    at = bytes(batch).index(b"ab")
    batch[at : at + 2] = b"\xff\xfe"
    seal(batch, 0, len(batch))
    (found,) = decode(bytes(batch), columns=["headers"])
    assert found.to_pylist() == [{"headers": [{"key": "��", "value": b"v"}]}]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-130, 130), min_size=1))
def test_varints(values: list[int]) -> None:
    parts = [varint(value) for value in values]
    starts = np.cumsum([0] + [len(part) for part in parts[:-1]])
    found, after = read_varints(np.frombuffer(b"".join(parts), np.uint8), starts)
    assert found.tolist() == values
    assert after.tolist() == [start + len(part) for start, part in zip(starts.tolist(), parts, strict=True)]


def test_a_varint_without_an_end_is_damage() -> None:
    with pytest.raises(DamagedRecords):
        read_varints(np.full(20, 0x80, np.uint8), np.array([0]))


@pytest.mark.parametrize("among", [0, ACROSS_MIN])
@pytest.mark.parametrize("last", [b"\x01", b"\x7f"])
def test_a_length_far_below_zero_is_damage(last: bytes, among: int) -> None:
    record = Record(0, NOW, None, b"v" * 40)
    batch = build_batch([record], base_offset=among)
    batch[HEADER_BYTES : HEADER_BYTES + 10] = b"\xff" * 9 + last
    seal(batch, 0, len(batch))
    with pytest.raises(DamagedRecords):
        decode(segment([[record]] * among) + bytes(batch))


@given(batches=segments, part=st.integers(1, 20))
def test_parts_are_the_whole_cut_between_batches(batches: list[list[Record]], part: int) -> None:
    data = memoryview(segment(batches, Compression.NONE))
    (payload,) = payloads(data, scan_batches(data), inflated_bytes_max=10**6)
    parts = list(locate_in_parts(payload, part))
    whole = locate_records(payload)
    assert [at for one, _ in parts for at in one.batches.at.tolist()] == payload.batches.at.tolist()
    assert all(len(one.batches) == 1 or len(records) <= part for one, records in parts)
    for name in ("start", "end", "offset", "timestamp", "key_at", "value_length", "header_count"):
        assert [v for _, one in parts for v in getattr(one, name).tolist()] == getattr(whole, name).tolist()


@pytest.mark.parametrize(("copies", "headers"), [(1, (0, 1, 2)), (8, (0, 2, 2))], ids=["one by one", "across"])
def test_fuzzed_records_end_in_value_errors_alone(copies: int, headers: tuple[int, ...]) -> None:
    """CRCs fit, so every byte reaches the decoder; what it accepts, Arrow and our own plain decoder accept too. Of the
    copies there are enough for records, and their headers, to be found across all of them."""
    chance = random.Random(copies)
    some = [Record(0, NOW + i, b"k" * (i % 4), b"v" * (i * 7 % 90), (("h", b"x"),) * headers[i % 3]) for i in range(12)]
    sound = [build_batch(some[i % 12 : i % 12 + 4], base_offset=i) for i in range(0, 12 * copies, 4)]
    accepted = 0
    for _ in range(1_500):
        spoilt = [bytearray(batch) for batch in sound[:3]]
        batches = spoilt + sound[3:]
        for _ in range(chance.randrange(1, 4)):
            batch = chance.choice(spoilt)
            batch[chance.randrange(HEADER_BYTES, len(batch))] = chance.choice(
                (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
            )
        for batch in spoilt:
            seal(batch, 0, len(batch))
        try:
            seen = of_arrow(decode(b"".join(batches)))
        except ValueError:
            continue
        accepted += 1
        plain = [
            one
            for batch in batches
            for one in decode_records(memoryview(batch), 0, len(batch), inflated_bytes_max=10**6)
        ]
        assert [(one.offset, one.key, one.value, one.headers) for one in seen] == [
            (one.offset, one.key, one.value, tuple(one.headers)) for one in plain
        ]
    assert accepted > 100


def test_aborted_records_are_left_out() -> None:
    def batch(producer: int, base: int, transactional: bool = True) -> bytes:
        some = [Record(0, NOW, b"%d" % producer, b"v")] * 2
        return bytes(
            build_batch(some, base_offset=base, producer_id=producer, producer_epoch=0, base_sequence=0,
                        transactional=transactional)
        )  # fmt: skip

    data = batch(1, 0) + batch(2, 2) + batch(1, 4, transactional=False) + batch(1, 6) + batch(1, 8) + batch(2, 10)
    aborted = AbortedRanges([AbortedTransaction(1, 0, 5), AbortedTransaction(2, 10, 12), AbortedTransaction(1, 8, 9)])
    for columns in ([], ["offset"]):
        found = [row.as_py() for one in decode(data, aborted=aborted, columns=columns) for row in one["offset"]]
        assert found == [2, 3, 4, 5, 6, 7]
