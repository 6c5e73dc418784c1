"""A record as it is printed: text, a line of JSON, hex, or a template. No I/O.

What goes to a terminal has its control characters escaped, so that no record moves the cursor, changes a title or hides
text. What goes elsewhere is left as it is.
"""

from __future__ import annotations

import base64
import json
import re
import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from tidelog.moments import LATEST_MS, utc

FORMATS = ("text", "json", "hex")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_ESCAPES_LISTED = " ".join(f"\\{name}" for name in _ESCAPES)
_ESCAPE = re.compile(r"\\(.)", re.S)
_SEEN_SPACES = "\n\t"


class BadFormat(Exception):
    """A format is none; the text says why."""


class Incoming(NamedTuple):
    """A record as a consumer gets it. `timestamp_ms` is -1 for one without."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


Shape = Callable[[Incoming], bytes]
"""A record as it is printed, with the end of its line."""


Decode = Callable[[bytes], bytes]
"""Bytes of a record as a text of JSON."""


def shape_of(text: str, *, terminal: bool, key: Decode | None = None, value: Decode | None = None) -> Shape:
    """A name in `FORMATS`, or a template with `{field}`s, of records whose keys or values are decoded first. Raises
    BadFormat."""
    if text == "json":
        return json_shape(key, value)
    shape = _plain_shape(text, terminal)
    if key is None and value is None:
        return shape
    if text == "hex":
        raise BadFormat("hex shows bytes as they are, and decodes nothing")

    def decoded(record: Incoming) -> bytes:
        return shape(record._replace(key=_decoded(key, record.key), value=_decoded(value, record.value)))

    return decoded


def _decoded(decode: Decode | None, data: bytes | None) -> bytes | None:
    return data if decode is None or data is None else decode(data)


def _plain_shape(text: str, terminal: bool) -> Shape:
    if text == "hex":
        return hex_shape
    if text == "text":
        return terminal_shape(_value) if terminal else _value
    if "{" not in text:
        raise BadFormat(f"{text!r} is none of {', '.join(FORMATS)}, and has no {{field}}")
    template = template_shape(text)
    return terminal_shape(template) if terminal else template


def _value(record: Incoming) -> bytes:
    return (record.value or b"") + b"\n"


def json_shape(key: Decode | None = None, value: Decode | None = None) -> Shape:
    """What `tidelog produce --json` reads; bytes that are no UTF-8 are in base64, what is decoded is JSON itself."""

    def shape(record: Incoming) -> bytes:
        fields: dict[str, Any] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms if record.timestamp_ms >= 0 else None,
        }
        for name, decode, data in (("key", key, record.key), ("value", value, record.value)):
            if decode is None or data is None:
                _put(fields, name, data)
            else:
                fields[name] = msgspec.Raw(decode(data))
        if record.headers:
            fields["headers"] = [_header(name, value) for name, value in record.headers]
        text = msgspec.json.encode(fields).decode()
        if not text.isprintable():
            text = "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)
        return text.encode() + b"\n"

    return shape


def _header(name: str, value: bytes | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"key": name}
    _put(fields, "value", value)
    return fields


def _put(fields: dict[str, Any], name: str, value: bytes | None) -> None:
    try:
        fields[name] = None if value is None else value.decode()
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = base64.b64encode(value or b"").decode()


def hex_shape(record: Incoming) -> bytes:
    """Key and value; null is a hyphen."""
    return f"{_hex(record.key)} {_hex(record.value)}\n".encode()


def _hex(value: bytes | None) -> str:
    return "-" if value is None else value.hex()


def template_shape(text: str) -> Shape:
    r"""`{partition}:{offset} {key} {value}\n`; `\n`, `\t`, `\r`, `\0`, `\\` and `{{` are as usual. Raises BadFormat."""
    pieces: list[bytes | Callable[[Incoming], bytes]] = []
    try:
        for literal, field, wanted, conversion in string.Formatter().parse(text):
            if literal:
                pieces.append(_unescaped(literal).encode(errors="surrogateescape"))
            if field is not None:
                pieces.append(_field(field, wanted or "", conversion))
    except ValueError as error:
        raise BadFormat(f"{text!r}: {error}") from None

    def shape(record: Incoming) -> bytes:
        return b"".join([piece if isinstance(piece, bytes) else piece(record) for piece in pieces]) + b"\n"

    return shape


def _unescaped(literal: str) -> str:
    def one(found: re.Match[str]) -> str:
        if found[1] not in _ESCAPES:
            raise BadFormat(f"{found[0]} is no escape; there are {_ESCAPES_LISTED}")
        return _ESCAPES[found[1]]

    if literal.endswith("\\") and (len(literal) - len(literal.rstrip("\\"))) % 2:
        raise BadFormat("it ends within an escape")
    return _ESCAPE.sub(one, literal)


def _field(name: str, wanted: str, conversion: str | None) -> Callable[[Incoming], bytes]:
    if name == "header" and wanted and not conversion:
        return lambda record: dict(record.headers).get(wanted) or b""
    if name not in FIELDS or wanted or conversion:
        raise BadFormat(f"there is no field {{{name}{':' + wanted if wanted else ''}}}; {FIELDS_LISTED}")
    return FIELDS[name]


def _time(record: Incoming) -> bytes:
    return utc(record.timestamp_ms).encode() if 0 <= record.timestamp_ms <= LATEST_MS else b"-"


def _named(record: Incoming) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


FIELDS: dict[str, Callable[[Incoming], bytes]] = {
    "topic": lambda record: record.topic.encode(),
    "partition": lambda record: b"%d" % record.partition,
    "offset": lambda record: b"%d" % record.offset,
    "timestamp": lambda record: b"%d" % record.timestamp_ms,
    "time": _time,
    "key": lambda record: record.key or b"",
    "value": lambda record: record.value or b"",
    "headers": _named,
    "key_hex": lambda record: _hex(record.key).encode(),
    "value_hex": lambda record: _hex(record.value).encode(),
    "key_base64": lambda record: base64.b64encode(record.key or b""),
    "value_base64": lambda record: base64.b64encode(record.value or b""),
    "key_size": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "value_size": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
}
FIELDS_LISTED = f"there are {', '.join(FIELDS)} and header:NAME"


def terminal_shape(shape: Shape) -> Shape:
    r"""The same with all but spaces, tabs and ends of lines in a form that can be seen: `\x1b`, `\u202e`."""

    def seen(record: Incoming) -> bytes:
        return visible(shape(record)).encode()

    return seen


def visible(data: bytes) -> str:
    text = data.decode(errors="backslashreplace")
    if text.isascii() and text.translate(_NO_SPACES).isprintable():
        return text
    return "".join(one if one.isprintable() or one in _SEEN_SPACES else _escaped(one) for one in text)


_NO_SPACES = str.maketrans("", "", _SEEN_SPACES)


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode()
