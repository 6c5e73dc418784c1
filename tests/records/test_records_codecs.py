"""Encoding against outside readers and builders: kafka-python, and aiokafka where kafka-python lacks snappy."""

from typing import Any

import pytest
from aiokafka.record import default_records as aiokafka_records
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import default_records as kafka_records
from msgspec.structs import replace

from common.errors import ErrorCode, ProtocolError
from records.batch import COMPRESSION_MASK, DELETE_HORIZON, ProduceLimits, check_produced, read_header, write_header
from records.builder import assemble, build_batch, empty_batch, recompress
from records.compression import Compression, DamagedData, InflatedTooLarge, compress, decompress
from records.control import MarkerKind, read_marker
from records.record import (
    InvalidRecords,
    Record,
    check_keys,
    decode_records,
    encode_record,
    inflate_records,
    read_varint,
    scan_records,
    varint,
    with_timestamp_delta,
)
from tests.records.control_batches import build_control_batch

CAP = 1 << 22
CODECS = list(Compression)
optional_bytes = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=8), optional_bytes), max_size=3)
timestamps = st.integers(0, 2**41)
records_strategy = st.lists(
    st.builds(Record, st.just(0), timestamps, optional_bytes, optional_bytes, headers.map(tuple)),
    min_size=1,
    max_size=30,
)


def outside(codec: Compression) -> Any:
    return aiokafka_records if codec is Compression.SNAPPY else kafka_records


def numbered(records: list[Record], base_offset: int) -> list[Record]:
    return [record._replace(offset=base_offset + index) for index, record in enumerate(records)]


@settings(max_examples=60, deadline=None)
@given(records_strategy, st.sampled_from(CODECS))
def test_outside_readers_read_what_we_build(records: list[Record], codec: Compression) -> None:
    batch = build_batch(records, base_offset=42, compression=codec, producer_id=9, producer_epoch=1, base_sequence=3)
    reader = outside(codec).DefaultRecordBatch(bytes(batch))
    assert reader.validate_crc()
    assert (reader.base_offset, reader.producer_id, reader.base_sequence) == (42, 9, 3)
    found = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in reader]
    assert found == numbered(records, 42)


@settings(max_examples=60, deadline=None)
@given(records_strategy, st.sampled_from(CODECS))
def test_we_read_what_outside_builders_build(records: list[Record], codec: Compression) -> None:
    builder = outside(codec).DefaultRecordBatchBuilder(
        magic=2, compression_type=int(codec), is_transactional=0, producer_id=9, producer_epoch=1, base_sequence=3,
        batch_size=CAP,
    )  # fmt: skip
    for index, record in enumerate(records):
        builder.append(index, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    check_produced(memoryview(batch), 0, len(batch), ProduceLimits(timestamp_after_max_ms=2**60), 0)
    assert decode_records(memoryview(batch), 0, len(batch), inflated_bytes_max=CAP) == numbered(records, 0)


@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_inverts_itself_and_shrinks(codec: Compression) -> None:
    for data in (b"", b"x", b"ab" * 100_000, bytes(range(256)) * 1000):
        packed = compress(codec, data)
        assert decompress(codec, packed, len(data)) == data
        if codec is not Compression.NONE and len(data) > 1000:
            assert len(packed) < len(data) / 10


@pytest.mark.parametrize("codec", CODECS)
def test_inflation_stops_at_the_cap(codec: Compression) -> None:
    packed = compress(codec, b"\0" * 3_000_000)
    assert len(decompress(codec, packed, 3_000_000)) == 3_000_000
    for cap in (0, 1, 65_536, 2_999_999):
        with pytest.raises(InflatedTooLarge):
            decompress(codec, packed, cap)


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec is not Compression.NONE])
def test_noise_is_no_compressed_data(codec: Compression) -> None:
    for noise in (b"\xff" * 40, b"noise and nothing else, certainly no frame"):
        with pytest.raises((DamagedData, InflatedTooLarge)):
            decompress(codec, noise, CAP)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
def test_data_that_ends_early_is_damage(codec: Compression) -> None:
    packed = compress(codec, bytes(range(256)) * 1000)
    for cut in (len(packed) - 1, len(packed) // 2, 18):
        with pytest.raises(DamagedData):
            decompress(codec, packed[:cut], CAP)


@given(
    data=st.binary(min_size=1, max_size=60).map(lambda some: some * 40),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), max_size=2),
    cut=st.integers(0, 20),
    behind=st.binary(max_size=4),
)
def test_lz4_is_inflated_alike_at_once_and_under_a_cap(
    data: bytes, changes: list[tuple[int, int]], cut: int, behind: bytes
) -> None:
    """Only what cannot reach its cap is inflated in one call."""
    packed = bytearray(compress(Compression.LZ4, data))
    for place, bits in changes:
        packed[place % len(packed)] ^= bits
    packed = packed[: len(packed) - cut] + behind

    def inflated(cap: int) -> bytes | None:
        try:
            return decompress(Compression.LZ4, bytes(packed), cap)
        except DamagedData:
            return None

    assert inflated(CAP * 100) == inflated(max(len(packed) * 255 - 1, 0))


def test_an_lz4_frame_that_says_it_inflates_to_much_allocates_nothing() -> None:
    import lz4.frame  # noqa: PLC0415

    honest = lz4.frame.compress(b"few", store_size=True)
    size_at, checksum_at = 6, 14
    for checksum in range(256):  # the right one is among them
        packed = bytearray(honest)
        packed[size_at:checksum_at] = (1 << 40).to_bytes(8, "little")
        packed[checksum_at] = checksum
        with pytest.raises(DamagedData):
            decompress(Compression.LZ4, bytes(packed), 1 << 50)


def test_bare_snappy_blocks_and_gzip_members_are_read() -> None:
    import cramjam  # noqa: PLC0415

    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(b"bare" * 9)), CAP) == b"bare" * 9
    two = compress(Compression.GZIP, b"one") + compress(Compression.GZIP, b"two")
    assert decompress(Compression.GZIP, two, CAP) == b"onetwo"


@given(
    st.lists(st.binary(max_size=40).map(lambda some: some * 400), min_size=1, max_size=6),
    st.integers(-1, 9),
    st.integers(0, 30),
)
def test_gzip_members_of_any_size_are_read_to_the_end(parts: list[bytes], level: int, cut: int) -> None:
    packed = b"".join(compress(Compression.GZIP, part, level) for part in parts)
    assert decompress(Compression.GZIP, packed, CAP) == b"".join(parts)
    last = len(compress(Compression.GZIP, parts[-1], level))
    if 0 < cut < last:
        with pytest.raises(DamagedData):
            decompress(Compression.GZIP, packed[:-cut], CAP)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_invert(value: int) -> None:
    encoded = varint(value)
    assert read_varint(encoded + b"\x7f", 0) == (value, len(encoded))
    assert len(encoded) <= 10


def test_a_varint_must_end() -> None:
    with pytest.raises(ProtocolError):
        read_varint(b"\x80" * 11, 0)


@given(st.integers(-(2**40), 2**40), st.integers(-(2**40), 2**40), optional_bytes, optional_bytes)
def test_a_new_timestamp_delta_changes_nothing_else(old: int, new: int, key: bytes | None, value: bytes | None) -> None:
    data = encode_record(old, 0, key, value, [("h", b"x")])
    header = read_header(build_batch([Record(0, 0, key, value)]), 0)
    (span,) = scan_records(header, data)
    assert with_timestamp_delta(data, span, new) == encode_record(new, 0, key, value, [("h", b"x")])


@settings(max_examples=200, deadline=None)
@given(records_strategy, st.data())
def test_damaged_records_raise_errors_of_the_protocol_only(records: list[Record], data: st.DataObject) -> None:
    batch = build_batch(records)
    body = bytearray(batch[61:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(0, len(body) - 1)) :]
    damaged = assemble(read_header(batch, 0), body)
    try:
        found = decode_records(memoryview(damaged), 0, len(damaged), inflated_bytes_max=CAP)
    except ProtocolError as error:
        assert error.code is ErrorCode.CORRUPT_MESSAGE  # noqa: PT017
    else:
        assert len(found) == len(records)


def test_a_header_may_not_count_other_records_than_there_are() -> None:
    records = [Record(0, 5, b"k", b"v")] * 3
    batch = build_batch(records)
    for fields in ({"count": 2}, {"count": 4, "last_offset_delta": 9}, {"last_offset_delta": 1}):
        lying = assemble(replace(read_header(batch, 0), **fields), batch[61:])
        with pytest.raises(ProtocolError):
            decode_records(memoryview(lying), 0, len(lying), inflated_bytes_max=CAP)


def test_a_bomb_is_refused_and_not_inflated() -> None:
    batch = build_batch([Record(0, 0, b"k", b"\0" * CAP)], compression=Compression.ZSTD)
    with pytest.raises(ProtocolError) as caught:
        decode_records(memoryview(batch), 0, len(batch), inflated_bytes_max=1 << 20)
    assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("source", CODECS)
def test_recompression_keeps_everything_else(source: Compression, codec: Compression) -> None:
    records = [Record(0, 1000 + i, b"%d" % i, b"v" * i, (("h", None),)) for i in range(20)]
    batch = build_batch(
        records, base_offset=7, compression=source, producer_id=1, producer_epoch=2, base_sequence=3, leader_epoch=4
    )
    again = recompress(memoryview(b"__" + batch), 2, len(batch), codec, None, CAP)
    before, after = read_header(batch, 0), read_header(again, 0)
    fixed = {"batch_length": 0, "crc": 0, "attributes": 0}
    assert replace(after, **fixed) == replace(before, **fixed)
    assert after.attributes & COMPRESSION_MASK == codec
    check_produced(memoryview(again), 0, len(again), ProduceLimits(), 1000) if after.base_offset == 0 else None
    decoded = decode_records(memoryview(again), 0, len(again), inflated_bytes_max=CAP)
    assert decoded == numbered(records, 7)


def test_recompression_does_not_bless_a_lie() -> None:
    batch = build_batch([Record(0, 5, b"k", b"v")] * 3)
    lying = assemble(replace(read_header(batch, 0), count=5, last_offset_delta=4), batch[61:])
    with pytest.raises(ProtocolError):
        recompress(memoryview(lying), 0, len(lying), Compression.LZ4, None, CAP)


@pytest.mark.parametrize("codec", CODECS)
def test_records_without_a_key_are_named(codec: Compression) -> None:
    keys = [b"a", None, b"", None]
    batch = build_batch([Record(0, 5, key, b"v") for key in keys], compression=codec)
    with pytest.raises(InvalidRecords) as caught:
        check_keys(memoryview(batch), 0, len(batch), inflated_bytes_max=CAP)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in caught.value.record_errors] == [1, 3]
    keyed = build_batch([Record(0, 5, b"", b"v")], compression=codec)
    check_keys(memoryview(keyed), 0, len(keyed), inflated_bytes_max=CAP)


@pytest.mark.parametrize("kind", list(MarkerKind))
def test_markers(kind: MarkerKind) -> None:
    batch = build_control_batch(kind, producer_id=8, producer_epoch=2, coordinator_epoch=6, timestamp=77)
    header = read_header(batch, 0)
    assert header.is_control
    assert header.is_transactional
    assert read_marker(memoryview(batch), 0, len(batch)) == (kind, 6, 77)
    (record,) = kafka_records.DefaultRecordBatch(bytes(batch))
    assert (record.abort, record.commit) == (kind is MarkerKind.ABORT, kind is MarkerKind.COMMIT)
    assert read_marker(memoryview(empty_batch(header)), 0, 61) is None


def test_control_records_of_other_types_are_no_markers() -> None:
    batch = build_batch([Record(0, 1, b"\0\0\0\2", b"\0\0")], control=True)
    assert read_marker(memoryview(batch), 0, len(batch)) is None
    for key, value in ((None, b""), (b"\0", b""), (b"\0\0\0\1", None), (b"\0\0\0\0", b"\0")):
        damaged = build_batch([Record(0, 1, key, value)], control=True)
        with pytest.raises(ProtocolError):
            read_marker(memoryview(damaged), 0, len(damaged))


def test_an_emptied_batch_keeps_offsets_and_sequences() -> None:
    batch = build_batch([Record(0, 5, b"k", b"v")] * 4, base_offset=10, compression=Compression.GZIP, producer_id=3)
    header = replace(read_header(batch, 0), attributes=1 | DELETE_HORIZON)
    write_header(batch, 0, header)
    left = read_header(empty_batch(header), 0)
    assert (left.size, left.count, left.attributes, left.base_timestamp) == (61, 0, 0, -1)
    assert (left.base_offset, left.last_offset, left.producer_id, left.max_timestamp) == (10, 13, 3, 5)
    assert inflate_records(memoryview(empty_batch(header)), 0, 61, inflated_bytes_max=0)[1] == b""
