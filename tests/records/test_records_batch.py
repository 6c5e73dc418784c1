"""The header checks: what a client may send, and each lie it may tell."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from common.errors import ErrorCode, ProtocolError
from records.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    SEQUENCE_MASK,
    TIMESTAMP_TYPE,
    ProduceLimits,
    check_produced,
    has_valid_crc,
    iterate_batches,
    read_header,
    seal,
    stamp,
    stamp_log_append_time,
    write_header,
)
from records.builder import build_batch
from records.record import Record, decode_records

NOW = 1_700_000_000_000
RECORDS = [Record(0, NOW, b"k", b"v"), Record(0, NOW + 1, None, b"w"), Record(0, NOW - 5, b"k", None)]


def check(
    batch: bytearray, limits: ProduceLimits | None = None, now_ms: int = NOW, *, transactional: bool = False
) -> ErrorCode:
    """The code of the answer; NONE when the batch is accepted."""
    try:
        whole = memoryview(batch)
        check_produced(whole, 0, len(batch), limits or ProduceLimits(), now_ms, transactional=transactional)
    except ProtocolError as error:
        return error.code
    return ErrorCode.NONE


def changed(**fields: int) -> bytearray:
    """A sound batch but for some header fields, with a CRC that fits."""
    batch = build_batch(RECORDS)
    write_header(batch, 0, replace(read_header(batch, 0), **fields))
    seal(batch, 0, len(batch))
    return batch


def test_a_sound_batch_is_accepted_at_any_position() -> None:
    batch = build_batch(RECORDS, producer_id=5, producer_epoch=0, base_sequence=7)
    padded = memoryview(b"x" * 13 + batch + b"y")
    header = check_produced(padded, 13, 13 + len(batch), ProduceLimits(), NOW)
    assert header == read_header(batch, 0)
    assert (header.size, header.last_offset, header.next_offset) == (len(batch), 2, 3)
    assert (header.base_timestamp, header.max_timestamp, header.last_sequence) == (NOW, NOW + 1, 9)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"count": 2}, ErrorCode.INVALID_RECORD),
        ({"count": 0}, ErrorCode.INVALID_RECORD),
        ({"count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 2**31 - 1}, ErrorCode.INVALID_RECORD),
        ({"base_offset": 1}, ErrorCode.INVALID_RECORD),
        ({"base_offset": -1}, ErrorCode.INVALID_RECORD),
        ({"attributes": CONTROL}, ErrorCode.INVALID_RECORD),
        ({"attributes": DELETE_HORIZON}, ErrorCode.INVALID_RECORD),
        ({"attributes": 5}, ErrorCode.INVALID_RECORD),
        ({"attributes": TIMESTAMP_TYPE}, ErrorCode.INVALID_TIMESTAMP),
        ({"producer_id": 1, "producer_epoch": -1, "base_sequence": 0}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"producer_id": -2}, ErrorCode.INVALID_RECORD),
        ({"attributes": 16}, ErrorCode.INVALID_RECORD),
        (
            {"attributes": 16, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0},
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        ({"magic": 0}, ErrorCode.INVALID_RECORD),
        ({"magic": 1}, ErrorCode.INVALID_RECORD),
        ({"magic": 3}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 48}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": -1}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 13}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 2**31 - 1}, ErrorCode.INVALID_RECORD),
        ({"leader_epoch": 99}, ErrorCode.NONE),
    ],
)
def test_each_lie_has_its_code(fields: dict[str, int], code: ErrorCode) -> None:
    assert check(changed(**fields)) is code


def test_transactional_batches_are_up_to_the_caller() -> None:
    batch = changed(attributes=16, producer_id=1, producer_epoch=0, base_sequence=0)
    assert check(batch, transactional=True) is ErrorCode.NONE
    assert check(batch) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_sizes() -> None:
    batch = build_batch(RECORDS)
    assert check(bytearray()) is ErrorCode.INVALID_RECORD
    for cut in (10, 20, 60, len(batch) - 1):
        assert check(batch[:cut]) is ErrorCode.INVALID_RECORD
    assert check(batch + batch) is ErrorCode.INVALID_RECORD
    assert check(batch + b"\0") is ErrorCode.INVALID_RECORD
    assert check(batch, ProduceLimits(batch_bytes_max=len(batch))) is ErrorCode.NONE
    assert check(batch, ProduceLimits(batch_bytes_max=len(batch) - 1)) is ErrorCode.MESSAGE_TOO_LARGE


def test_timestamps_are_held_against_both_bounds() -> None:
    limits = ProduceLimits(timestamp_before_max_ms=100, timestamp_after_max_ms=10)
    at = [(NOW - 100, True), (NOW - 101, False), (NOW + 10, True), (NOW + 11, False), (-1, True)]
    for timestamp, fits in at:
        batch = build_batch([Record(0, timestamp, b"k", b"v")])
        assert (check(batch, limits) is ErrorCode.NONE) is fits, timestamp
        assert check(batch, replace(limits, log_append_time=True)) is ErrorCode.NONE
    late = build_batch([Record(0, NOW, b"k", b"v"), Record(0, NOW + 11, b"k", b"v")])
    assert check(late, limits) is ErrorCode.INVALID_TIMESTAMP


@given(st.data())
def test_any_changed_byte_is_seen(data: st.DataObject) -> None:
    batch = build_batch(RECORDS, producer_id=5, producer_epoch=0, base_sequence=7)
    at = data.draw(st.integers(0, len(batch) - 1).filter(lambda at: not 12 <= at < 16))  # the leader epoch is free
    batch[at] ^= data.draw(st.integers(1, 255))
    assert check(batch) is not ErrorCode.NONE


@given(st.binary(max_size=200))
def test_noise_is_refused_with_an_error_of_the_protocol(noise: bytes) -> None:
    assert check(bytearray(noise)) is not ErrorCode.NONE


@given(st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_stamping_keeps_the_crc(base_offset: int, leader_epoch: int) -> None:
    batch = build_batch(RECORDS)
    before = read_header(batch, 0)
    stamp(batch, 0, base_offset, leader_epoch)
    header = read_header(batch, 0)
    assert header == replace(before, base_offset=base_offset, leader_epoch=leader_epoch)
    assert has_valid_crc(memoryview(batch), 0, header)


def test_log_append_time_is_stamped_under_a_new_crc() -> None:
    batch = build_batch(RECORDS)
    stamp_log_append_time(memoryview(batch), 0, len(batch), NOW + 1000)
    header = read_header(batch, 0)
    assert header.is_log_append_time
    assert header.max_timestamp == NOW + 1000
    assert has_valid_crc(memoryview(batch), 0, header)
    decoded = decode_records(memoryview(batch), 0, len(batch), inflated_bytes_max=1000)
    assert [record.timestamp for record in decoded] == [NOW + 1000] * 3


def test_log_append_time_never_hides_damage() -> None:
    batch = build_batch(RECORDS)
    batch[-1] ^= 1
    with pytest.raises(ProtocolError, match="CRC"):
        stamp_log_append_time(batch, 0, len(batch), NOW)


def test_iteration_stops_before_a_torn_batch() -> None:
    batches = [build_batch(RECORDS, base_offset=offset) for offset in (0, 3, 6)]
    whole = b"".join(batches)
    for cut in range(len(whole) - len(batches[2]), len(whole)):
        found = list(iterate_batches(memoryview(whole), 0, cut))
        assert [header.base_offset for _, header in found] == [0, 3]
        assert [position for position, _ in found] == [0, len(batches[0])]
    assert len(list(iterate_batches(memoryview(whole), 0, len(whole)))) == 3


@pytest.mark.parametrize("at", [8, 16, 30, HEADER_BYTES + 2])
def test_iteration_names_the_first_damaged_batch(at: int) -> None:
    first, second = build_batch(RECORDS), build_batch(RECORDS, base_offset=3)
    second[at] ^= 0xFF
    batches = iterate_batches(memoryview(bytes(first + second)), 0, len(first + second))
    assert next(batches) == (0, read_header(first, 0))
    with pytest.raises(ProtocolError) as caught:
        next(batches)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_the_last_sequence_wraps() -> None:
    header = read_header(changed(producer_id=1, producer_epoch=0, base_sequence=SEQUENCE_MASK), 0)
    assert header.last_sequence == 1
    assert read_header(changed(), 0).last_sequence == -1


def test_the_header_layout_is_that_of_the_documentation() -> None:
    batch = build_batch(RECORDS, base_offset=3, leader_epoch=4, producer_id=5, producer_epoch=6, base_sequence=7)
    assert struct.unpack_from(">qiib", batch) == (3, len(batch) - 12, 4, 2)
    assert struct.unpack_from(">hiqqqhii", batch, 21) == (0, 2, NOW, NOW + 1, 5, 6, 7, 3)
