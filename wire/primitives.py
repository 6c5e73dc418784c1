"""Varints, tagged fields and the values that the hand-written codecs share.

Readers take (buffer, at) and return (value, next position). They may run past the end of a frame inside a larger
buffer; the codec that calls them checks the final position, and its counts on the way.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from common.errors import MalformedFrame

INT8, INT16, INT32, INT64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
NULL_STRING, NULL_ARRAY = b"\xff\xff", b"\xff\xff\xff\xff"
EMPTY_ARRAY = b"\0\0\0\0"
_HEAD = Struct(">hhih")
_VARINT_SHIFT_MAX = 28


class RequestHead(NamedTuple):
    """The start of every request. `body` is where its body begins; `client_id` raw bytes, None for null."""

    api_key: int
    version: int
    correlation: int
    client_id: bytes | None
    body: int


class LeaderHint(NamedTuple):
    """Who leads a partition now (KIP-951); travels with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH."""

    leader: int
    epoch: int


class Endpoint(NamedTuple):
    """Where a node named in a LeaderHint can be reached (KIP-951)."""

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
            body = skip_tags(buffer, body, end)
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


def skip_tags(buffer: bytearray | memoryview, at: int, end: int) -> int:
    """Past the tagged fields at `at`, none of which is of interest."""
    if not buffer[at]:
        return at + 1
    count, at = uvarint(buffer, at)
    for _ in range(count):  # each takes two bytes at least, so a false count ends at `end`
        _, at = uvarint(buffer, at)
        size, at = uvarint(buffer, at)
        at += size
        if at > end:
            raise MalformedFrame("tagged field")
    return at
