"""Values that begin with the id of their Avro schema, as texts of JSON. No I/O but the schemas' own."""

from __future__ import annotations

import io
import json
import math
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
import msgspec
from fastavro.schema import SchemaParseException

from tidelog.streams.schema_registry import NoSchema, Schema

HEADER = struct.Struct(">bI")
"""A zero byte and the schema's id, as Confluent's serializers write them."""
PARSED_MAX = 1_000
_PRIMITIVES_WITH_BYTES = {"boolean", "int", "long", "float", "double", "bytes", "string"}


class Undecoded(Exception):
    """A value is not what its schema says; the text says how."""


class AvroText:
    """A decoder. What it cannot decode becomes an object with the reason and the bytes, and is counted."""

    def __init__(self, schema: Callable[[int], Schema]) -> None:
        self._schema = schema
        self._parsed: dict[int, Any] = {}
        self.undecoded = 0

    def __call__(self, data: bytes) -> bytes:
        """Passes on what the registry raises when it does not answer."""
        try:
            return msgspec.json.encode(_plain(self._value(data)))
        except (Undecoded, NoSchema) as error:
            self.undecoded += 1
            return msgspec.json.encode({"undecoded": str(error), "base64": b64encode(data).decode()})

    def _value(self, data: bytes) -> Any:
        if len(data) < HEADER.size or data[0]:
            raise Undecoded("it does not begin with a zero byte and the id of a schema")
        number = HEADER.unpack_from(data)[1]
        schema = self._parsed.get(number)
        if schema is None:
            schema = parse(self._schema(number))
            if len(self._parsed) >= PARSED_MAX:
                self._parsed.pop(next(iter(self._parsed)))
            self._parsed[number] = schema
        # the library takes the end of the bytes for that of a text, so a byte more shows what reads past it
        body = io.BytesIO(data + b"\0")
        body.seek(HEADER.size)
        try:
            value = fastavro.schemaless_reader(body, schema, None)
        except Exception as error:  # the library raises of many kinds for bytes that do not fit
            raise Undecoded(f"it does not fit schema {number}: {type(error).__name__} {error}".rstrip()) from None
        if rest := len(data) - body.tell():
            how = f"{rest} bytes are left over" if rest > 0 else "it ends too early"
            raise Undecoded(f"it does not fit schema {number}: {how}")
        return value


def parse(schema: Schema) -> Any:
    """As the library wants it. Raises Undecoded for no Avro schema, or one by which few bytes make endless values."""
    named: dict[str, Any] = {}
    try:
        for text in schema.referenced:
            fastavro.parse_schema(json.loads(text), named_schemas=named)
        parsed = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
    except (ValueError, RecursionError, SchemaParseException, KeyError, TypeError) as error:
        raise Undecoded(f"schema {schema.number} is no Avro schema: {error}") from None
    _check_items(parsed, named, schema.number)
    for definition in named.values():
        _check_items(definition, named, schema.number)
    return parsed


def _check_items(schema: Any, named: Mapping[str, Any], number: int) -> None:
    """A count of 2^40 takes six bytes: the items of an array must take some as well."""
    if isinstance(schema, list):
        for one in schema:
            _check_items(one, named, number)
    elif isinstance(schema, dict):
        if schema.get("type") == "array" and _may_be_empty(schema["items"], named, frozenset()):
            raise Undecoded(f"schema {number} has an array whose items take no bytes")
        for one in (schema.get("items"), schema.get("values"), *(field["type"] for field in schema.get("fields", ()))):
            _check_items(one, named, number)
        if isinstance(schema.get("type"), (dict, list)):
            _check_items(schema["type"], named, number)


def _may_be_empty(schema: Any, named: Mapping[str, Any], seen: frozenset[str]) -> bool:
    """Whether a value of it may take no bytes."""
    if isinstance(schema, str):
        if schema in named and schema not in seen:
            return _may_be_empty(named[schema], named, seen | {schema})
        return schema == "null"
    if not isinstance(schema, dict):
        return False  # a union has the number of its branch
    kind = schema.get("type")
    if kind in ("record", "error"):
        own = seen | {str(schema.get("name"))}
        return all(_may_be_empty(field["type"], named, own) for field in schema.get("fields", ()))
    if kind == "fixed":
        return not schema.get("size")
    return kind not in _PRIMITIVES_WITH_BYTES | {"array", "map", "enum"} and _may_be_empty(kind, named, seen)


def _plain(value: Any) -> Any:
    """What JSON has: a number that is none becomes null, as elsewhere."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
