"""Keys and values as a page shows them: JSON, text, hex, or Avro. No I/O but what gives schemas by their ids.

What is not printable is shown by its number, so that no record hides or turns around text beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidelog.streams.avro_schemas import (
    NoAnswer,
    SchemaOf,
    Unfitting,
    avro_value,
    parse_schema,
    registered_value,
)

REGISTERED = "registered"
DECODERS = {"auto": "what fits", "json": "JSON", "text": "text", "hex": "hex"}
WITH_SCHEMA = {"avro": "Avro, with the schema below"}
WITH_REGISTRY = {REGISTERED: "Avro by its id"}
SHOWN_BYTES_MAX = 64 << 10
HEADERS_MAX, HEADER_NAME_MAX = 100, 1_000
SHOWN_TIMES, SHOWN_MORE = 8, 16 << 10
"""A value is shown in at most so many times its bytes, and so many characters more: what is nested deep has much more
indentation than content."""

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BREAKS = re.compile(rb"[\[{\]},]")

Decoder = Callable[[bytes], str]


def decoder_of(name: str, schema: str = "", schema_of: SchemaOf | None = None) -> Decoder:
    """Raises BadSchema. What does not fit is shown as hex, with the reason."""
    value = values_of(name, schema, schema_of)
    if value is not None:
        return _with_reason(lambda data: _pretty(value(data), _characters_max(data)))
    return {"json": _with_reason(_formatted), "text": _text, "hex": _hex}.get(name, _auto)


def values_of(name: str, schema: str = "", schema_of: SchemaOf | None = None) -> Callable[[bytes], Any] | None:
    """What decodes values of Avro, and raises Unfitting and NoAnswer; None if `name` is no such decoder. Raises
    BadSchema."""
    if name == "avro":
        parsed = parse_schema(schema)
        return lambda data: avro_value(parsed, data)
    if name == REGISTERED and schema_of is not None:
        return lambda data: registered_value(schema_of, data)
    return None


def visible(text: str) -> str:
    """With the numbers of what cannot be seen, but for ends of lines and tabs."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else _number(one) for one in text)


def visible_headers(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, str]]:
    """All of a record's headers together are cut as its value is."""
    shown, left = list[tuple[str, str]](), SHOWN_BYTES_MAX
    for name, value in headers[:HEADERS_MAX]:
        if left <= 0:
            break
        cut = max(0, len(value or b"") - left)
        text = "null" if value is None else _auto(value[:left])
        shown.append((visible(name[:HEADER_NAME_MAX]), f"{text}… ({cut} bytes more are not shown)" if cut else text))
        left -= len(name[:HEADER_NAME_MAX]) + len(value or b"")
    if more := len(headers) - len(shown):
        shown.append(("…", f"{more} more headers are not shown"))
    return shown


def _number(one: str) -> str:
    code = ord(one)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _auto(data: bytes) -> str:
    if data[:1] in (b"{", b"["):
        try:
            return _formatted(data)
        except Unfitting:
            pass
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _hex(data)
    return (
        visible(text)
        if text.isprintable() or sum(not one.isprintable() for one in text) * 10 < len(text)
        else _hex(data)
    )


def _formatted(data: bytes) -> str:
    """Without more indentation than there is in it, where that would be too much."""
    try:
        compact = msgspec.json.format(data, indent=-1)
        fits = len(compact) + _indentation(compact) <= _characters_max(data)
        return visible((msgspec.json.format(compact, indent=2) if fits else data).decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unfitting("it is no JSON") from None


def _characters_max(data: bytes) -> int:
    return SHOWN_TIMES * len(data) + SHOWN_MORE


def _indentation(compact: bytes) -> int:
    """How many characters `indent=2` adds, or a few more. No string is searched twice, whatever is in it."""
    depth = added = 0
    for one in _BREAKS.findall(_STRINGS.sub(b"", compact)):
        depth += 1 if one in b"[{" else -1 if one in b"]}" else 0
        added += 1 + 2 * depth
    return added + compact.count(b":")


def _text(data: bytes) -> str:
    return visible(data.decode(errors="backslashreplace"))


def _hex(data: bytes) -> str:
    return data.hex(" ", 4)


def _pretty(value: Any, most: int) -> str:
    """In lines if these have at most so many characters, else in one that is cut there."""
    try:
        lines, is_whole = _written(value, most, 2)
        if is_whole:
            return visible(lines)
        line, is_whole = _written(value, most, None)
        return visible(line) if is_whole else f"{visible(line)}… (what follows is not shown)"
    except RecursionError:
        raise Unfitting("it is nested too deep to be shown") from None


def _written(value: Any, most: int, indent: int | None) -> tuple[str, bool]:
    """The JSON of a value, and whether it is all of it. No more is made than is shown."""
    parts, length = list[str](), 0
    for part in _parts(value, indent):
        parts.append(part[: most - length])
        length += len(part)
        if length > most:
            return "".join(parts), False
    return "".join(parts), True


def _parts(value: Any, indent: int | None) -> Iterator[str]:
    return json.JSONEncoder(indent=indent, ensure_ascii=False, default=_plain).iterencode(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return dict(value) if isinstance(value, Mapping) else str(value)


def _with_reason(decoder: Decoder) -> Decoder:
    def shown(data: bytes) -> str:
        try:
            return decoder(data)
        except (Unfitting, NoAnswer) as error:
            is_cut = len(data) >= SHOWN_BYTES_MAX and isinstance(error, Unfitting)
            more = f"; what has more than {SHOWN_BYTES_MAX >> 10} KiB is not decoded" if is_cut else ""
            return f"({visible(str(error))}{more}) {_hex(data)}"

    return shown
