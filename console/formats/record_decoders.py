"""Keys and values as a page shows them: JSON, text, hex, or Avro. No I/O but what gives schemas by their ids.

What is not printable is shown by its number, so that no record hides or turns around text beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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

Decoder = Callable[[bytes], str]


def decoder_of(name: str, schema: str = "", schema_of: SchemaOf | None = None) -> Decoder:
    """Raises BadSchema. What does not fit is shown as hex, with the reason."""
    value = values_of(name, schema, schema_of)
    if value is not None:
        return _with_reason(lambda data: _pretty(value(data)))
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


def visible_headers(headers: Any) -> list[tuple[str, str]]:
    return [(visible(name), "null" if value is None else _auto(value)) for name, value in headers]


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
    try:
        return visible(msgspec.json.format(data, indent=2).decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unfitting("it is no JSON") from None


def _text(data: bytes) -> str:
    return visible(data.decode(errors="backslashreplace"))


def _hex(data: bytes) -> str:
    return data.hex(" ", 4)


def _pretty(value: Any) -> str:
    try:
        return visible(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))
    except RecursionError:
        raise Unfitting("it is nested too deep to be shown") from None


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
