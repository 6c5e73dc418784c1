"""Values that begin with the id of their Avro schema, as texts of JSON. No I/O but the schemas' own."""

from __future__ import annotations

import math
import struct
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec

from tidelog.streams.avro_schemas import BadSchema, Schema, Unfitting, parse_schema, read_value
from tidelog.streams.schema_registry import ANSWER_BYTES_MAX, NoSchema
from tidelog.streams.schema_registry import Schema as Registered

HEADER = struct.Struct(">bI")
"""A zero byte and the schema's id, as Confluent's serializers write them."""
PARSED_MAX = 1_000


class Undecoded(Exception):
    """A value is not what its schema says; the text says how."""


class AvroText:
    """A decoder. What it cannot decode becomes an object with the reason and the bytes, and is counted."""

    def __init__(self, schema: Callable[[int], Registered]) -> None:
        self._schema = schema
        self._parsed: dict[int, Schema] = {}
        self.undecoded = 0

    def __call__(self, data: bytes) -> bytes:
        """Passes on what the registry raises when it does not answer."""
        try:
            return _text_of(self._value(data))
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
        try:
            return read_value(schema, data, HEADER.size)
        except Unfitting as error:
            raise Undecoded(f"it does not fit schema {number}: {error.how}") from None


def parse(schema: Registered) -> Schema:
    """Raises Undecoded for no Avro schema, or one by which few bytes make endless values."""
    try:
        return parse_schema(schema.text, schema.referenced, ANSWER_BYTES_MAX)
    except BadSchema as error:
        raise Undecoded(f"schema {schema.number} is no Avro schema that can be used: {error}") from None


def _text_of(value: Any) -> bytes:
    """Raises Undecoded."""
    try:
        return msgspec.json.encode(_plain(value))
    except RecursionError:
        raise Undecoded("it is nested too deep to be shown") from None


def _plain(value: Any) -> Any:
    """What JSON has: a number that is none becomes null, as elsewhere."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
