"""Varints, tagged fields and the values that the hand-written codecs share.

Readers take (buffer, at) and return (value, next position). They may run past the end of a frame inside a larger
buffer; the codec that calls them checks the final position, and its counts on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

import msgspec

from common.errors import MalformedFrame

INT16, INT32, INT64 = Struct(">h"), Struct(">i"), Struct(">q")
NULL_STRING, NULL_ARRAY = b"\xff\xff", b"\xff\xff\xff\xff"
EMPTY_ARRAY = b"\0\0\0\0"
_HEAD = Struct(">hhih")
_VARINT_SHIFT_MAX = 28
TAGS_MAX = 16  # in one struct of a hand-read message; the schemas have three at most
STRING_BYTES_MAX = 0x7FFF  # Kafka's limit, also where the length is a varint
PARTS_MAX = 250_000  # topics, and partitions over all topics, of one hand-read message


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """The start of every request. `body` is where its body begins; `client_id` raw bytes, None for null."""

    api_key: int
    version: int
    correlation: int
    client_id: bytes | None
    body: int


class LeaderHint(NamedTuple):
    """The current leader of a partition (KIP-951); sent with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH."""

    leader: int
    epoch: int


class Endpoint(NamedTuple):
    """The address of a node named in a LeaderHint (KIP-951)."""

    node: int
    host: bytes
    port: int
    rack: bytes | None = None


def request_head(buffer: bytearray | memoryview, at: int, end: int, flexible: bool) -> RequestHead:
    """Header v1, or v2 when `flexible`; the client id is never compact. Raises MalformedFrame."""
    try:
        key, version, correlation, size = _HEAD.unpack_from(buffer, at)
        body = at + _HEAD.size
        client = None
        if size >= 0:
            client = bytes(buffer[body : body + size])
            body += size
        elif size != -1:
            raise MalformedFrame("client id length")
        if flexible:
            body = skip_tags(buffer, body, end) if buffer[body] else body + 1
    except (IndexError, struct_error) as error:
        raise MalformedFrame("request header") from error
    if body > end:
        raise MalformedFrame("request header")
    return RequestHead(key, version, correlation, client, body)


def uvarint(buffer: bytearray | memoryview, at: int) -> tuple[int, int]:
    byte = buffer[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise MalformedFrame("varint")
            return value, at + 1
        shift += 7
        if shift > _VARINT_SHIFT_MAX:
            raise MalformedFrame("varint")


_SHORT = [bytes((value,)) for value in range(0x80)]


def put_uvarint(value: int) -> bytes:
    if value < 0x80:
        return _SHORT[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def begun_frame(correlation: int, flexible: bool) -> bytearray:
    """An answer's first bytes; its length, which is known at the end, is 0."""
    out = bytearray(INT32.size)
    out += INT32.pack(correlation)
    if flexible:
        out.append(0)
    return out


def skip_tags(buffer: bytearray | memoryview, at: int, end: int) -> int:
    """The position after the tagged fields at `at`, which are ignored."""
    if not buffer[at]:
        return at + 1
    count, at = tag_count(buffer, at)
    for _ in range(count):
        _, _, at = tag_head(buffer, at, end)
    return at


def tag_count(buffer: bytearray | memoryview, at: int) -> tuple[int, int]:
    count, at = uvarint(buffer, at)
    if count > TAGS_MAX:
        raise MalformedFrame("tagged fields")
    return count, at


def tag_head(buffer: bytearray | memoryview, at: int, end: int) -> tuple[int, int, int]:
    """(tag, start of its value, end of its value)."""
    tag, at = uvarint(buffer, at)
    size, at = uvarint(buffer, at)
    if size > end - at:
        raise MalformedFrame("tagged field")
    return tag, at, at + size


def count_at(buffer: bytearray, at: int, end: int, flexible: bool) -> tuple[int, int]:
    """An array's count, not null, at most the number of remaining bytes and `PARTS_MAX`."""
    if flexible:
        count = buffer[at]
        # the usual case; inlined here and elsewhere, because a call per row would cost as much as the rest
        if count < 0x80:
            at += 1
        else:
            count, at = uvarint(buffer, at)
        count -= 1
    else:
        (count,) = INT32.unpack_from(buffer, at)
        at += 4
    if not 0 <= count <= end - at or count > PARTS_MAX:
        raise MalformedFrame("array length")
    return count, at


def string_at(buffer: bytearray, at: int, end: int, flexible: bool) -> tuple[bytes | None, int]:
    """A string's bytes, None for null."""
    if flexible:
        size = buffer[at]
        if size < 0x80:
            at += 1
        else:
            size, at = uvarint(buffer, at)
            if size > STRING_BYTES_MAX + 1:
                raise MalformedFrame("string length")
        size -= 1
    else:
        (size,) = INT16.unpack_from(buffer, at)
        at += 2
    if size < 0:
        if size != -1:
            raise MalformedFrame("string length")
        return None, at
    stop = at + size
    if stop > end:
        raise MalformedFrame("string length")
    return bytes(buffer[at:stop]), stop


def topic_at(
    buffer: bytearray, at: int, end: int, flexible: bool, by_id: bool, prefix: bytes = b""
) -> tuple[bytes, int]:
    """A topic as the version names it: 16 bytes of id, or its name with `prefix` before it."""
    if by_id:
        return bytes(buffer[at : at + 16]), at + 16
    name, at = string_at(buffer, at, end, flexible)
    if name is None:
        raise MalformedFrame("topic name")
    return (prefix + name if prefix else name), at


def put_string(value: bytes | None, flexible: bool) -> bytes:
    if flexible:
        return b"\0" if value is None else put_uvarint(len(value) + 1) + value
    return NULL_STRING if value is None else INT16.pack(len(value)) + value


def put_count(count: int, flexible: bool) -> bytes:
    return put_uvarint(count + 1) if flexible else INT32.pack(count)


def put_endpoints(endpoints: Sequence[Endpoint]) -> bytes:
    """The tagged fields at the end of a Produce or Fetch response: none, or tag 0 with the endpoints (KIP-951)."""
    if not endpoints:
        return b"\0"
    value = bytearray(put_uvarint(len(endpoints) + 1))
    for node, host, port, rack in endpoints:
        value += INT32.pack(node) + put_string(host, True) + INT32.pack(port) + put_string(rack, True) + b"\0"
    return b"\1\0" + put_uvarint(len(value)) + value
