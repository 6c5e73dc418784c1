"""Produce by hand: requests read from positions of the receive buffer, replies packed straight into bytes.

Source: ProduceRequest and ProduceResponse of Apache Kafka 4.1; KIP-467 (record errors), KIP-951 (leader hints),
KIP-516 (topic ids, v13).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from common.errors import MalformedFrame
from common.pacing import Work, at_once
from wire.primitives import (
    EMPTY_ARRAY,
    INT32,
    NULL_STRING,
    PART_COST,
    PARTS_AT_ONCE,
    PARTS_MAX,
    Endpoint,
    LeaderHint,
    count_at,
    put_count,
    put_endpoints,
    put_string,
    skip_tags,
    string_at,
    topic_at,
    uvarint,
)

PRODUCE = 0
PRODUCE_VERSIONS = (3, 13)
_FLEXIBLE_FROM, _IDS_FROM = 9, 13

_ACKS = Struct(">hi")
_ROW_3, _ROW_5, _LEADER = Struct(">ihqq"), Struct(">ihqqq"), Struct(">ii")


class ProducedPart(NamedTuple):
    """Records for one partition: `start:end` in the receive buffer, equal for null or empty records."""

    topic: bytes
    partition: int
    start: int
    end: int


class ProduceCall(NamedTuple):
    transactional_id: bytes | None
    acks: int
    timeout_ms: int
    parts: list[ProducedPart]


class RecordError(NamedTuple):
    """One record that made its batch fail: its index in the batch, and why."""

    batch_index: int
    message: bytes | None


class ProducedRow(NamedTuple):
    """The answer for one partition. `topic` is what the request carried; defaults are those of a success."""

    topic: bytes
    partition: int
    error: int
    base_offset: int
    log_append_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    error_message: bytes | None = None
    leader: LeaderHint | None = None


def decode_produce(buffer: bytearray, at: int, end: int, version: int, prefix: bytes = b"") -> ProduceCall:
    """The body at `at` (after the request header) of a frame that ends at `end`. Raises MalformedFrame.

    Topics that the request names get `prefix` before their names.
    """
    return at_once(produce_decoding(buffer, at, end, version, prefix))


def produce_decoding(
    buffer: bytearray, at: int, end: int, version: int, prefix: bytes = b"", at_once_max: int = PARTS_AT_ONCE
) -> Work[ProduceCall]:
    """`decode_produce` as work; it yields only for a request of more than `at_once_max` partitions or topics."""
    flexible, by_id = version >= _FLEXIBLE_FROM, version >= _IDS_FROM
    parts: list[ProducedPart] = []
    pause = topic_pause = at_once_max
    try:
        transactional_id, at = string_at(buffer, at, end, flexible)
        acks, timeout_ms = _ACKS.unpack_from(buffer, at)
        topics, at = count_at(buffer, at + _ACKS.size, end, flexible)
        for number in range(topics):
            if number == topic_pause:
                yield at_once_max * PART_COST
                topic_pause += at_once_max
            topic, at = topic_at(buffer, at, end, flexible, by_id, prefix)
            count, at = count_at(buffer, at, end, flexible)
            if len(parts) + count > PARTS_MAX:
                raise MalformedFrame("produce: too many partitions")
            for _ in range(count):
                if len(parts) == pause:
                    yield at_once_max * PART_COST
                    pause += at_once_max
                (index,) = INT32.unpack_from(buffer, at)
                if flexible:
                    size, at = uvarint(buffer, at + 4)
                    size -= 1
                else:
                    (size,) = INT32.unpack_from(buffer, at + 4)
                    at += 8
                if not -1 <= size <= end - at:
                    raise MalformedFrame("produce: length of records")
                stop = at + size if size > 0 else at
                parts.append(ProducedPart(topic, index, at, stop))
                at = skip_tags(buffer, stop, end) if flexible else stop
            if flexible:
                at = skip_tags(buffer, at, end)
        if flexible:
            at = skip_tags(buffer, at, end)
    except (IndexError, struct_error) as error:
        raise MalformedFrame("produce: cut short") from error
    if at > end:  # bytes behind the body are ignored, as Apache Kafka does
        raise MalformedFrame("produce: length of the body")
    return ProduceCall(transactional_id, acks, timeout_ms, parts)


def encode_produce_response(
    version: int,
    correlation: int,
    rows: list[ProducedRow],
    throttle_ms: int = 0,
    endpoints: Sequence[Endpoint] = (),
    prefix: bytes = b"",
) -> bytes:
    """A whole frame, length and header included; rows of one topic need not be neighbours.

    `prefix` is left out of topics' names, all of which begin with it.

    Fields that `version` lacks (record errors below v8, leader and endpoints below v10) are left out.
    """
    return at_once(produce_encoding(version, correlation, rows, throttle_ms, endpoints, prefix))


def produce_encoding(
    version: int,
    correlation: int,
    rows: list[ProducedRow],
    throttle_ms: int = 0,
    endpoints: Sequence[Endpoint] = (),
    prefix: bytes = b"",
) -> Work[bytes]:
    """`encode_produce_response` as work; it yields only for an answer of more than `PARTS_AT_ONCE` rows."""
    flexible, by_id, cut = version >= _FLEXIBLE_FROM, version >= _IDS_FROM, len(prefix)
    topics: dict[bytes, list[ProducedRow]] = {}
    grouped = 0
    for row in rows:
        if grouped == PARTS_AT_ONCE:
            yield PARTS_AT_ONCE
            grouped = 0
        grouped += 1
        topics.setdefault(row.topic, []).append(row)
    written = 0
    out = bytearray(EMPTY_ARRAY)  # the frame's length, known at the end
    out += INT32.pack(correlation)
    if flexible:
        out.append(0)
    out += put_count(len(topics), flexible)
    for topic, of_topic in topics.items():
        out += topic if by_id else put_string(topic[cut:] if cut else topic, flexible)
        out += put_count(len(of_topic), flexible)
        for row in of_topic:
            if written == PARTS_AT_ONCE:
                yield PARTS_AT_ONCE * PART_COST
                written = 0
            written += 1
            _, index, error, base, append_ms, log_start, record_errors, message, leader = row
            if version >= 5:
                out += _ROW_5.pack(index, error, base, append_ms, log_start)
            else:
                out += _ROW_3.pack(index, error, base, append_ms)
            if error or record_errors or message is not None or leader is not None:
                out += _row_end(version, record_errors, message, leader)
            elif flexible:
                out += b"\1\0\0"
            elif version == 8:
                out += EMPTY_ARRAY + NULL_STRING
        if flexible:
            out.append(0)
    out += INT32.pack(throttle_ms)
    if flexible:
        out += put_endpoints(endpoints if version >= 10 else ())
    INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def _row_end(
    version: int, record_errors: Sequence[RecordError], message: bytes | None, leader: LeaderHint | None
) -> bytes:
    if version < 8:
        return b""
    flexible = version >= _FLEXIBLE_FROM
    out = bytearray(put_count(len(record_errors), flexible))
    for index, text in record_errors:
        out += INT32.pack(index) + put_string(text, flexible)
        if flexible:
            out.append(0)
    out += put_string(message, flexible)
    if flexible:
        out += b"\0" if leader is None or version < 10 else b"\1\0\x09" + _LEADER.pack(*leader) + b"\0"
    return bytes(out)
