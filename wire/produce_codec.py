"""Produce by hand: requests read from positions of the receive buffer, replies packed straight into bytes.

Source: ProduceRequest and ProduceResponse of Apache Kafka 4.1; KIP-467 (record errors), KIP-951 (leader hints),
KIP-516 (topic ids, v13).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

import msgspec

from common.errors import MalformedFrame
from common.pacing import Work
from wire.apis import ApiKey
from wire.primitives import (
    EMPTY_ARRAY,
    INT32,
    NULL_STRING,
    PARTS_MAX,
    Endpoint,
    LeaderHint,
    begun_frame,
    put_count,
    put_endpoints,
    put_string,
    skip_tags,
    string_at,
    uvarint,
)
from wire.topic_lists import PART_COST, PARTS_AT_ONCE, TopicList, by_topic, grouping

PRODUCE = int(ApiKey.PRODUCE)  # a plain number compares faster than a member
PRODUCE_VERSIONS = (3, 13)
_FLEXIBLE_FROM, _IDS_FROM = 9, 13

_ACKS = Struct(">hi")
_ROW_3, _ROW_5, _LEADER = Struct(">ihqq"), Struct(">ihqqq"), Struct(">ii")
_ONE_HEAD = Struct(">iiBB")  # length, correlation id, no tagged fields, one topic
_ONE_ROW = Struct(">BihqqqBBBBiB")  # one partition; no error, message or tagged fields; throttle time


class ProducedPart(msgspec.Struct, frozen=True, gc=False):
    """Records for one partition: `start:end` in the receive buffer, equal for null or empty records."""

    topic: bytes
    partition: int
    start: int
    end: int


class ProduceCall(msgspec.Struct, frozen=True, gc=False):
    transactional_id: bytes | None
    acks: int
    timeout_ms: int
    parts: list[ProducedPart]


class RecordError(NamedTuple):
    """A record that made its batch fail: its index in the batch, and the reason."""

    batch_index: int
    message: bytes | None


class ProducedRow(msgspec.Struct, frozen=True, gc=False):
    """The response for one partition. `topic`: from the request; the defaults are those of a success."""

    topic: bytes
    partition: int
    error: int
    base_offset: int
    log_append_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    error_message: bytes | None = None
    leader: LeaderHint | None = None


def _read_parts(
    buffer: bytearray, at: int, end: int, version: int, topic: bytes, count: int, parts: list[ProducedPart]
) -> int:
    flexible = version >= _FLEXIBLE_FROM
    for _ in range(count):
        (index,) = INT32.unpack_from(buffer, at)
        if flexible:
            at += 4
            size = buffer[at]
            if size < 0x80:
                at += 1
            else:
                size, at = uvarint(buffer, at)
            size -= 1
        else:
            (size,) = INT32.unpack_from(buffer, at + 4)
            at += 8
        if not -1 <= size <= end - at:
            raise MalformedFrame("produce: length of records")
        stop = at + size if size > 0 else at
        parts.append(ProducedPart(topic, index, at, stop))
        if not flexible:
            at = stop
        else:
            at = skip_tags(buffer, stop, end) if buffer[stop] else stop + 1
    return at


_TOPICS = TopicList(_FLEXIBLE_FROM, _IDS_FROM, _read_parts)


def decode_produce(
    buffer: bytearray,
    at: int,
    end: int,
    version: int,
    prefix: bytes = b"",
    most: int = PARTS_MAX,
    listed: tuple[list[ProducedPart], int] | None = None,
) -> ProduceCall:
    """The body at `at` (after the request header) of a frame that ends at `end`. Raises MalformedFrame.

    ManyParts when it names more than `most` topics or partitions. Topics that the request names get `prefix` before
    their names, and so does the transactional id. `listed` is its list of topics, if that was read before.
    """
    flexible = version >= _FLEXIBLE_FROM
    try:
        transactional_id, at = string_at(buffer, at, end, flexible)
        if prefix and transactional_id is not None:
            transactional_id = prefix + transactional_id
        acks, timeout_ms = _ACKS.unpack_from(buffer, at)
        parts, at = listed or _TOPICS.read(buffer, at + _ACKS.size, end, version, prefix, most)
        if flexible:
            at = skip_tags(buffer, at, end) if buffer[at] else at + 1
    except (IndexError, struct_error) as error:
        raise MalformedFrame("produce: cut short") from error
    if at > end:  # bytes behind the body are ignored, as Apache Kafka does
        raise MalformedFrame("produce: length of the body")
    return ProduceCall(transactional_id, acks, timeout_ms, parts)


def produce_decoding(buffer: bytearray, at: int, end: int, version: int, prefix: bytes = b"") -> Work[ProduceCall]:
    """`decode_produce` of any number of partitions as work."""
    try:
        _, topics_at = string_at(buffer, at, end, version >= _FLEXIBLE_FROM)
    except (IndexError, struct_error) as error:
        raise MalformedFrame("produce: cut short") from error
    listed = yield from _TOPICS.reading(buffer, topics_at + _ACKS.size, end, version, prefix)
    return decode_produce(buffer, at, end, version, prefix, listed=listed)


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
    if len(rows) == 1 and version >= _FLEXIBLE_FROM and not endpoints and _is_plain(rows[0]):
        return _one_plain(version, correlation, rows[0], throttle_ms, len(prefix))
    topics = by_topic(rows)
    out = _begun(version, correlation, len(topics))
    for topic, of_topic in topics.items():
        _TOPICS.put_head(out, version, topic, len(of_topic), len(prefix))
        _put_rows(out, version, of_topic)
        if version >= _FLEXIBLE_FROM:
            out.append(0)
    return _ended(out, version, throttle_ms, endpoints)


def _is_plain(row: ProducedRow) -> bool:
    return not (row.error or row.record_errors) and row.error_message is None and row.leader is None


def _one_plain(version: int, correlation: int, row: ProducedRow, throttle_ms: int, cut: int) -> bytes:
    """What nearly all responses are, in two calls instead of one for each field."""
    topic = row.topic if version >= _IDS_FROM else put_string(row.topic[cut:] if cut else row.topic, True)
    size = _ONE_HEAD.size + len(topic) + _ONE_ROW.size - INT32.size
    packed = _ONE_ROW.pack(
        2, row.partition, 0, row.base_offset, row.log_append_ms, row.log_start_offset, 1, 0, 0, 0, throttle_ms, 0
    )
    return _ONE_HEAD.pack(size, correlation, 0, 2) + topic + packed


def produce_encoding(
    version: int,
    correlation: int,
    rows: list[ProducedRow],
    throttle_ms: int = 0,
    endpoints: Sequence[Endpoint] = (),
    prefix: bytes = b"",
) -> Work[bytes]:
    """`encode_produce_response` as work."""
    topics = yield from grouping(rows)
    out = _begun(version, correlation, len(topics))
    for topic, of_topic in topics.items():
        _TOPICS.put_head(out, version, topic, len(of_topic), len(prefix))
        for begin in range(0, len(of_topic), PARTS_AT_ONCE):
            some = of_topic[begin : begin + PARTS_AT_ONCE]
            _put_rows(out, version, some)
            yield len(some) * PART_COST
        if version >= _FLEXIBLE_FROM:
            out.append(0)
    return _ended(out, version, throttle_ms, endpoints)


def _begun(version: int, correlation: int, topics: int) -> bytearray:
    out = begun_frame(correlation, version >= _FLEXIBLE_FROM)
    out += put_count(topics, version >= _FLEXIBLE_FROM)
    return out


def _put_rows(out: bytearray, version: int, rows: list[ProducedRow]) -> None:
    for row in rows:
        if version >= 5:
            out += _ROW_5.pack(row.partition, row.error, row.base_offset, row.log_append_ms, row.log_start_offset)
        else:
            out += _ROW_3.pack(row.partition, row.error, row.base_offset, row.log_append_ms)
        if not _is_plain(row):
            out += _row_end(version, row)
        elif version >= _FLEXIBLE_FROM:
            out += b"\1\0\0"
        elif version == 8:
            out += EMPTY_ARRAY + NULL_STRING


def _ended(out: bytearray, version: int, throttle_ms: int, endpoints: Sequence[Endpoint]) -> bytes:
    out += INT32.pack(throttle_ms)
    if version >= _FLEXIBLE_FROM:
        out += put_endpoints(endpoints) if endpoints and version >= 10 else b"\0"
    INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def _row_end(version: int, row: ProducedRow) -> bytes:
    if version < 8:
        return b""
    flexible, leader = version >= _FLEXIBLE_FROM, row.leader
    out = bytearray(put_count(len(row.record_errors), flexible))
    for index, text in row.record_errors:
        out += INT32.pack(index) + put_string(text, flexible)
        if flexible:
            out.append(0)
    out += put_string(row.error_message, flexible)
    if flexible:
        out += b"\0" if leader is None or version < 10 else b"\1\0\x09" + _LEADER.pack(*leader) + b"\0"
    return bytes(out)
