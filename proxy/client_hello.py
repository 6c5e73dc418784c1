"""The server name of a TLS ClientHello, read before any TLS state exists.

`read_hello` is pure. It takes peeked bytes and returns None while bytes are missing, the hello once it is whole, and
raises BadHello otherwise. It rejects everything that a TLS library would reject or could read in two ways, so that the
handshake never sees another name than the one routed here. Source: RFC 8446 sections 4.1.2, 4.2 and 5.1, RFC 6066
section 3.
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

ACCESS_DENIED, DECODE_ERROR, UNEXPECTED_MESSAGE, UNRECOGNIZED_NAME = 49, 50, 10, 112
RECORD_HEAD_BYTES = 5
RECORDS_MAX = 64  # of one hello
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME = 22, 1, 0
_RECORD_BYTES_MAX = 1 << 14
_MESSAGE_HEAD_BYTES = 4
_RANDOM_END = 34  # a version of 2 bytes, then 32 random ones
_SESSION_ID_BYTES_MAX = 32
_NAME_CHARACTERS_MAX = 253
NAMES_MAX = 4_096  # valid names in the cache
_U16, _EXTENSION, _NAME = Struct(">H"), Struct(">HH"), Struct(">HBH")
_HOST = re.compile(rb"(?!-)[a-z0-9-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9-]{1,63}(?<!-))*")


class BadHello(Exception):
    """The bytes are no hello, or one that is not served. `alert` is the TLS alert for the client."""

    def __init__(self, alert: int, reason: str) -> None:
        super().__init__(reason)
        self.alert = alert


class ClientHello(NamedTuple):
    """`server_name` in lower case, None when the client sent none; `size` in bytes, with the heads of its records."""

    server_name: str | None
    size: int


def alert_record(alert: int) -> bytes:
    """A fatal alert in the clear, as TLS allows before any key is agreed."""
    return bytes((21, 3, 3, 0, 2, 2, alert))


def peek_bytes(hello_bytes_max: int) -> int:
    """How many bytes to peek at for a hello of at most `hello_bytes_max`, with the heads of its records."""
    return _MESSAGE_HEAD_BYTES + hello_bytes_max + RECORD_HEAD_BYTES * (RECORDS_MAX + 1)


def read_hello(view: memoryview, hello_bytes_max: int) -> ClientHello | None:
    """Raises BadHello at the first byte that no ClientHello within the bounds can have."""
    found = _message(view, hello_bytes_max)
    if found is None:
        return None
    body, size = found
    try:
        return ClientHello(_server_name_of(body), size)
    except (IndexError, struct_error):
        raise BadHello(DECODE_ERROR, "a field runs past its bounds") from None


def _message(view: memoryview, limit: int) -> tuple[bytes, int] | None:
    """The body of the handshake message and the size of its records. Records may cut a hello anywhere."""
    have, want, at = b"", -1, 0
    seen = len(view)
    for _ in range(RECORDS_MAX):
        if seen > at and view[at] != _HANDSHAKE:
            raise BadHello(UNEXPECTED_MESSAGE, "no TLS handshake record")
        if seen > at + 1 and view[at + 1] != 3:
            raise BadHello(UNEXPECTED_MESSAGE, "no version of a TLS record")
        if seen < at + RECORD_HEAD_BYTES:
            return None
        length = view[at + 3] << 8 | view[at + 4]
        if not 0 < length <= _RECORD_BYTES_MAX:
            raise BadHello(DECODE_ERROR, "a record of a length out of range")
        start = at + RECORD_HEAD_BYTES
        at = start + length
        have += view[start:at]
        if want < 0 and len(have) >= _MESSAGE_HEAD_BYTES:
            if have[0] != _CLIENT_HELLO:
                raise BadHello(UNEXPECTED_MESSAGE, "the first message is no ClientHello")
            want = _MESSAGE_HEAD_BYTES + int.from_bytes(have[1:_MESSAGE_HEAD_BYTES], "big")
            if want > _MESSAGE_HEAD_BYTES + limit:
                raise BadHello(DECODE_ERROR, f"a ClientHello of more than {limit} bytes")
        if at > seen:
            return None
        if 0 <= want <= len(have):
            if len(have) > want:
                raise BadHello(UNEXPECTED_MESSAGE, "bytes behind the ClientHello in its record")
            return have[_MESSAGE_HEAD_BYTES:], at
    raise BadHello(DECODE_ERROR, f"a ClientHello in more than {RECORDS_MAX} records")


def _server_name_of(body: bytes) -> str | None:
    if body[_RANDOM_END] > _SESSION_ID_BYTES_MAX:
        raise BadHello(DECODE_ERROR, "a session id that is too long")
    at = _RANDOM_END + 1 + body[_RANDOM_END]
    (suites,) = _U16.unpack_from(body, at)
    if suites < 2 or suites % 2:
        raise BadHello(DECODE_ERROR, "cipher suites of an odd size")
    at += 2 + suites
    if body[at] < 1:
        raise BadHello(DECODE_ERROR, "no compression method")
    at += 1 + body[at]
    if at == len(body):
        return None
    (extensions,) = _U16.unpack_from(body, at)
    at += 2
    if at + extensions != len(body):
        raise BadHello(DECODE_ERROR, "extensions of another size than the rest of the hello")
    return _walk_extensions(body, at)


def _walk_extensions(body: bytes, at: int) -> str | None:
    name: str | None = None
    seen: set[int] = set()
    end = len(body)
    unpack = _EXTENSION.unpack_from
    while at < end:
        kind, length = unpack(body, at)
        at += 4
        if kind in seen:
            raise BadHello(DECODE_ERROR, "one extension twice")
        seen.add(kind)
        if at + length > end:
            raise BadHello(DECODE_ERROR, "an extension that runs past its bounds")
        if kind == _SERVER_NAME:
            name = _host_name(body[at : at + length])
        at += length
    return name


@lru_cache(maxsize=NAMES_MAX)
def _host_name(value: bytes) -> str:
    listed, kind, length = _NAME.unpack_from(value)
    host = value[_NAME.size :].lower()
    if listed != len(value) - 2 or kind != 0 or length != len(host):
        raise BadHello(DECODE_ERROR, "a server_name that is not one host name")
    if length > _NAME_CHARACTERS_MAX or _HOST.fullmatch(host) is None or host.rpartition(b".")[2].isdigit():
        raise BadHello(UNRECOGNIZED_NAME, "a server_name that is no host name")
    return host.decode("ascii")
