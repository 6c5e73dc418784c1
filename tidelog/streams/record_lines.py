"""A line as a record: plain text, a key and a value, or an object of JSON. No I/O."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from common.settings import INT_MAX
from tidelog.moments import LATEST_MS

LINE_BYTES_MAX = 32 << 20
IGNORED = frozenset({"topic", "offset"})
"""What `consume` says of a record and a producer does not choose."""
KNOWN = frozenset({"key", "value", "headers", "partition", "timestamp", "key_base64", "value_base64"})

Headers = tuple[tuple[str, bytes], ...]


class BadLine(Exception):
    """A line is no record; the text says why."""


class Outgoing(NamedTuple):
    """A record to produce. None for `partition` leaves the choice to the client, for `timestamp_ms` to the clock."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None

    @property
    def size(self) -> int:
        """Bytes of what was given."""
        own = len(self.key or b"") + len(self.value or b"")
        return own + sum(len(name) + len(value) for name, value in self.headers)


Parse = Callable[[bytes], Outgoing | None]
"""A line without its end; None for one that stands for no record. Raises BadLine."""


def text_lines(separator: bytes | None) -> Parse:
    """A line is a value; with a separator, a key and a value."""

    def parse(line: bytes) -> Outgoing:
        if separator is None:
            return Outgoing(None, line)
        key, found, value = line.partition(separator)
        if not found:
            raise BadLine(f"it has no {separator.decode(errors='replace')!r} between a key and a value")
        return Outgoing(key, value)

    return parse


def json_line(line: bytes) -> Outgoing | None:
    if not line.strip():
        return None
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine(f"it is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadLine("it is no object of JSON")
    if unknown := sorted(set(fields) - KNOWN - IGNORED):
        raise BadLine(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(KNOWN))}")
    if "value" not in fields and "value_base64" not in fields:
        raise BadLine("value is missing; null makes a tombstone")
    return Outgoing(
        _bytes_of(fields, "key"),
        _bytes_of(fields, "value"),
        _headers(fields.get("headers")),
        _number(fields, "partition", INT_MAX),
        _number(fields, "timestamp", LATEST_MS),
    )


def _bytes_of(fields: Mapping[str, Any], name: str) -> bytes | None:
    """A text as UTF-8, anything else but null as JSON, or the bytes of the base64 form."""
    coded = f"{name}_base64"
    if coded in fields:
        if name in fields:
            raise BadLine(f"{name} and {coded} are both given")
        text = fields[coded]
        if not isinstance(text, str):
            raise BadLine(f"{coded} is no text")
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise BadLine(f"{coded} is no base64") from None
    given = fields.get(name)
    if given is None:
        return None
    return given.encode() if isinstance(given, str) else msgspec.json.encode(given)


def _number(fields: Mapping[str, Any], name: str, most: int) -> int | None:
    given = fields.get(name)
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= most:
        raise BadLine(f"{name} is no whole number from 0 to {most}")
    return given


def _headers(given: Any) -> Headers:
    """`{"name": "value"}`, or a list of `{"key": …, "value": …}`, which may repeat a name."""
    if given is None:
        return ()
    if isinstance(given, dict):
        given = [{"key": name, "value": value} for name, value in given.items()]
    if not isinstance(given, list):
        raise BadLine("headers is neither an object nor a list")
    return tuple(_header(one) for one in given)


def _header(one: Any) -> tuple[str, bytes]:
    if not isinstance(one, dict) or not isinstance(one.get("key"), str):
        raise BadLine('a header is not {"key": …, "value": …}')
    if unknown := sorted(set(one) - {"key", "value", "value_base64"}):
        raise BadLine(f"unknown field {unknown[0]!r} of a header")
    value = _bytes_of(one, "value")
    if value is None:
        raise BadLine(f"header {one['key']!r}: this client cannot send one without a value")
    return one["key"], value


def header_option(text: str) -> tuple[str, bytes]:
    """`NAME=VALUE`. Raises BadLine."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise BadLine(f"{text!r} is not NAME=VALUE")
    return name, value.encode(errors="surrogateescape")
