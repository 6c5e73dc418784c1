"""Scans, decodes and encodes the records inside a batch.

A record is: length | attributes int8, timestamp delta, offset delta, key length, key, value length, value, number of
headers, then per header key length, key, value length, value. Lengths and deltas are zigzag varints, a length of -1
is null. Source: Apache Kafka 4.1 documentation, section "Record".

The bytes may be any that a client sent. Damage raises ProtocolError(CORRUPT_MESSAGE), records that inflate beyond the
caller's cap raise ProtocolError(INVALID_RECORD).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from common.errors import ErrorCode, ProtocolError
from records.batch import HEADER_BYTES, BatchHeader, read_header
from records.compression import Compression, DamagedData, InflatedTooLarge, decompress

Headers = Sequence[tuple[str, bytes | None]]

VARINT_BYTES_MAX = 10
RECORD_ERRORS_MAX = 100


class Record(NamedTuple):
    """`timestamp` in milliseconds since the epoch, -1 for none; a null key or value is None."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class RecordSpan(NamedTuple):
    """A record's position in the inflated records of its batch. A null key or value has the length -1."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta_at: int  # the bytes from here on do not depend on the batch's base timestamp
    offset_delta: int
    key_at: int
    key_length: int
    value_at: int
    value_length: int


class InvalidRecords(ProtocolError):
    """Some records of a batch are rejected; `record_errors` holds their indexes, each with a message."""

    def __init__(self, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)
        self.record_errors = record_errors


def inflate_records(view: memoryview, at: int, size: int, *, inflated_bytes_max: int) -> tuple[BatchHeader, bytes]:
    """The header of the batch at `at` and the bytes of its records, at most `inflated_bytes_max` of them."""
    header = read_header(view, at)
    try:
        codec = Compression(header.compression)
        return header, decompress(codec, view[at + HEADER_BYTES : at + size], inflated_bytes_max)
    except InflatedTooLarge as error:
        raise ProtocolError(ErrorCode.INVALID_RECORD, f"records inflate to more than {inflated_bytes_max} B") from error
    except (DamagedData, ValueError) as error:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, "the records cannot be inflated") from error


def scan_records(header: BatchHeader, data: bytes) -> Iterator[RecordSpan]:
    """Each record of `data`, the inflated records of a batch, in order.

    Damage is lengths that disagree, offsets that do not grow or leave the batch, or another number of bytes or records
    than the header's. Some records may have been yielded before it is found.
    """
    at = 0
    end = len(data)
    last_delta = -1
    try:
        for _ in range(header.count):
            span = _scan_record(data, at, end)
            if not last_delta < span.offset_delta <= header.last_offset_delta:
                raise _damaged(f"offset delta {span.offset_delta} after {last_delta}")
            last_delta = span.offset_delta
            yield span
            at = span.end
    except IndexError as error:
        raise _damaged("fewer records than counted") from error
    if at != end:
        raise _damaged(f"{end - at} bytes after the last record")


def _scan_record(data: bytes, start: int, end: int) -> RecordSpan:
    length, at = read_varint(data, start)
    record_end = at + length
    if length < 0 or record_end > end:
        raise _damaged(f"a record of {length} bytes")
    timestamp_delta, offset_delta_at = read_varint(data, at + 1)
    offset_delta, at = read_varint(data, offset_delta_at)
    key_length, key_at = read_varint(data, at)
    value_length, value_at = read_varint(data, key_at + key_length if key_length > 0 else key_at)
    if key_length < -1 or value_length < -1 or value_at + max(value_length, 0) >= record_end:
        raise _damaged(f"a record with key length {key_length}, value length {value_length}")
    return RecordSpan(
        start, record_end, timestamp_delta, offset_delta_at, offset_delta, key_at, key_length, value_at, value_length
    )


def decode_records(view: memoryview, at: int, size: int, *, inflated_bytes_max: int) -> list[Record]:
    """All records of the batch at `at`, which has `size` bytes, with absolute offsets and timestamps."""
    header, data = inflate_records(view, at, size, inflated_bytes_max=inflated_bytes_max)
    return [record_of(header, data, span) for span in scan_records(header, data)]


def record_of(header: BatchHeader, data: bytes, span: RecordSpan) -> Record:
    """With absolute offset and timestamp."""
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + span.timestamp_delta
    headers = _decode_headers(data, span.value_at + max(span.value_length, 0), span.end)
    return Record(header.base_offset + span.offset_delta, timestamp, key_of(data, span), value_of(data, span), headers)


def record_bounds(header: BatchHeader, data: bytes) -> Iterator[tuple[int, int]]:
    """Where each record of `data` begins and ends, without a look into it. Damage is found as far as lengths show."""
    at, end = 0, len(data)
    try:
        for _ in range(header.count):
            first, second = data[at], data[at + 1]
            if first >= 0x80 > second:  # most lengths have two bytes
                rest = first & 0x7F | second << 7
                record_end = at + 2 + ((rest >> 1) ^ -(rest & 1))
            else:
                length, begin = read_varint(data, at)
                record_end = begin + length
            if not at < record_end <= end:
                raise _damaged(f"a record of {record_end - at} bytes")
            yield at, record_end
            at = record_end
    except IndexError as error:
        raise _damaged("fewer records than counted") from error
    if at != end:
        raise _damaged(f"{end - at} bytes after the last record")


def span_within(data: bytes, bounds: tuple[int, int]) -> RecordSpan:
    """Of a record by its bounds."""
    try:
        return _scan_record(data, *bounds)
    except IndexError as error:
        raise _damaged("a record that ends too early") from error


def key_of(data: bytes, span: RecordSpan) -> bytes | None:
    return None if span.key_length < 0 else data[span.key_at : span.key_at + span.key_length]


def value_of(data: bytes, span: RecordSpan) -> bytes | None:
    return None if span.value_length < 0 else data[span.value_at : span.value_at + span.value_length]


def _decode_headers(data: bytes, at: int, end: int) -> Headers:
    headers: list[tuple[str, bytes | None]] = []
    try:
        count, at = read_varint(data, at)
        if count == 0 and at == end:
            return ()
        if not 0 <= count <= end - at:
            raise _damaged(f"{count} headers in {end - at} bytes")
        for _ in range(count):
            length, at = read_varint(data, at)
            key_end = at + length
            value_length, value_at = read_varint(data, key_end)
            value_end = value_at + max(value_length, 0)
            if length < 0 or value_length < -1 or value_end > end:
                raise _damaged("a header that leaves its record")
            name = data[at:key_end].decode(errors="replace")
            headers.append((name, None if value_length < 0 else data[value_at:value_end]))
            at = value_end
    except IndexError as error:
        raise _damaged("fewer headers than counted") from error
    if at != end:
        raise _damaged(f"{end - at} bytes after the last header")
    return tuple(headers)


def encode_record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Headers = ()
) -> bytes:
    """One record with its length."""
    return b"".join(record_parts(timestamp_delta, offset_delta, key, value, headers))


def record_parts(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | memoryview | None, headers: Headers = ()
) -> list[bytes | memoryview]:
    """What `encode_record` joins."""
    parts: list[bytes | memoryview] = [b"\0", varint(timestamp_delta), varint(offset_delta)]
    for field in (key, value):
        parts += (_NULL,) if field is None else (varint(len(field)), field)
    parts.append(varint(len(headers)))
    for name, content in headers:
        encoded = name.encode()
        parts += (varint(len(encoded)), encoded)
        parts += (_NULL,) if content is None else (varint(len(content)), content)
    return [varint(sum(map(len, parts))), *parts]


def with_timestamp_delta(data: bytes, span: RecordSpan, timestamp_delta: int) -> bytes:
    """The record at `span` with another timestamp delta, otherwise unchanged."""
    _, at = read_varint(data, span.start)
    body = data[at : at + 1] + varint(timestamp_delta) + data[span.offset_delta_at : span.end]
    return varint(len(body)) + body


def check_keys(view: memoryview, at: int, size: int, *, inflated_bytes_max: int) -> None:
    """Raises InvalidRecords with the first `RECORD_ERRORS_MAX` records without a key, for compacted topics.

    Raises ProtocolError as described above. The cost grows with the number of records, so long batches are checked off
    the event loop.
    """
    header, data = inflate_records(view, at, size, inflated_bytes_max=inflated_bytes_max)
    without_key = [index for index, span in enumerate(scan_records(header, data)) if span.key_length < 0]
    if without_key:
        message = "one or more records have been rejected"
        errors = [(index, "a compacted topic takes no record without a key") for index in without_key]
        raise InvalidRecords(message, errors[:RECORD_ERRORS_MAX])


def check_records(view: memoryview, at: int, size: int, *, inflated_bytes_max: int) -> None:
    """Raises ProtocolError for damaged records or headers, at the cost of `check_keys`."""
    header, data = inflate_records(view, at, size, inflated_bytes_max=inflated_bytes_max)
    for span in scan_records(header, data):
        _decode_headers(data, span.value_at + max(span.value_length, 0), span.end)


def varint(value: int) -> bytes:
    """Zigzag, seven bits per byte, least significant first; `value` has at most 64 bits."""
    rest = value << 1 if value >= 0 else (value << 1) ^ -1
    if rest < 0x80:
        return _ONE_BYTE[rest]
    encoded = bytearray()
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def read_varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """(value, position after it). Raises IndexError at the end of `data`, ProtocolError for a longer varint."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    rest = byte & 0x7F
    for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
        at += 1
        byte = data[at]
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1), at + 1
    raise _damaged("a varint without an end")


def _damaged(what: str) -> ProtocolError:
    return ProtocolError(ErrorCode.CORRUPT_MESSAGE, what)


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]
_NULL = varint(-1)
