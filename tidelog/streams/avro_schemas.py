"""Schemas of Avro that people paste or a registry has, and values by them, for commands and the console. No I/O.

The library decodes in C: it follows a schema that names itself as deep as a record says, beyond the end of the stack,
and makes as many values without bytes as a schema or a record counts. Both would end the process. So the first goes
through the library's decoder in Python, which has a limit, and the second is refused. The library also takes a schema
as it is that says it was parsed before; such a mark is refused, because nothing here would look into that schema.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import fastavro
from fastavro import _read_py

SCHEMA_BYTES_MAX = 256 << 10
CONFLUENT_HEAD = 5  # a zero and the schema's id, four bytes
VALUES_OF_A_BYTE = 16
"""A record may become so many values for each byte that it has at least."""
OWN_MARK = "__"
"""The library's own keys in a schema begin so."""
WHOLE, INNER = "TidelogWhole", "value"
"""A record of one field is written as that field is, and keeps the schemas that it refers to with it."""


class BadSchema(ValueError):
    """This is no schema of Avro."""


class Unfitting(ValueError):
    """The bytes are not what they are decoded as. `how`: what the library found wrong, for who knows the schema."""

    def __init__(self, text: str, how: str = "") -> None:
        super().__init__(text)
        self.how = how


class NoAnswer(Exception):
    """No schema registry has said yet what the bytes are; the text says why."""


class Schema(NamedTuple):
    """As the library parses it. `is_recursive`: it names itself. `is_inner`: it is the one field of WHOLE."""

    parsed: Any
    is_recursive: bool
    is_inner: bool = False


SchemaOf = Callable[[int], Schema]
"""The schema of an id. Raises Unfitting if there is none, and NoAnswer."""


def parse_schema(text: str, referenced: Sequence[str] = (), bytes_max: int = SCHEMA_BYTES_MAX) -> Schema:
    """`referenced`: schemas whose names it uses, each after those that it refers to itself. Raises BadSchema."""
    if len(text) + sum(map(len, referenced)) > bytes_max:
        raise BadSchema(f"a schema has at most {bytes_max} bytes")
    named: dict[str, Any] = {}
    walk = _Walk()
    try:
        for one in referenced:
            walk.weigh(fastavro.parse_schema(json.loads(one, object_hook=_unmarked), named))
        given = json.loads(text, object_hook=_unmarked)
        if referenced:
            given = {"type": "record", "name": WHOLE, "fields": [{"name": INNER, "type": given}]}
        parsed = fastavro.parse_schema(given, named)
        walk.weigh(parsed)
        return Schema(parsed, walk.is_recursive, bool(referenced))
    except BadSchema:
        raise
    except Exception as error:  # the library has no common class for what it finds wrong
        raise BadSchema(
            f"this is no schema of Avro: {' '.join(str(error).split())[:200] or type(error).__name__}"
        ) from None


def avro_value(schema: Schema, data: bytes) -> Any:
    """Of a record with or without the head of a schema registry. Raises Unfitting."""
    if data[:1] == b"\0" and len(data) >= CONFLUENT_HEAD:
        try:
            return read_value(schema, data, CONFLUENT_HEAD)
        except Unfitting:
            pass
    return read_value(schema, data, 0)


def registered_value(schema_of: SchemaOf, data: bytes) -> Any:
    """By the id that the bytes begin with. Raises Unfitting and NoAnswer."""
    if data[:1] != b"\0" or len(data) < CONFLUENT_HEAD:
        raise Unfitting("it does not begin with a zero byte and the id of a schema")
    number = int.from_bytes(data[1:CONFLUENT_HEAD])
    schema = schema_of(number)
    try:
        return read_value(schema, data, CONFLUENT_HEAD)
    except Unfitting:
        raise Unfitting(f"it does not fit schema {number}") from None


def read_value(schema: Schema, data: bytes, begin: int) -> Any:
    """The value that goes from `begin` to the end. Raises Unfitting."""
    read = _read_py.schemaless_reader if schema.is_recursive else fastavro.schemaless_reader
    # the library takes the end of the bytes for that of a text, so a byte more shows what reads past it
    source = io.BytesIO(data + b"\0")
    source.seek(begin)
    value: Any
    try:
        value = read(source, schema.parsed, None)
    except Exception as error:  # whatever the library raises for bytes of another kind
        raise Unfitting("it does not fit the schema", f"{type(error).__name__} {error}".rstrip()) from None
    if rest := len(data) - source.tell():
        how = f"{rest} bytes are left over" if rest > 0 else "it ends too early"
        raise Unfitting("it does not fit the schema", how)
    return value[INNER] if schema.is_inner else value


def _unmarked(given: dict[str, Any]) -> dict[str, Any]:
    if any(key.startswith(OWN_MARK) for key in given):
        raise BadSchema(f"no key in a schema begins with {OWN_MARK}")
    return given


class _Weight(NamedTuple):
    """The values that one value consists of, itself too, and its bytes; both without what arrays, maps and unions
    add."""

    values: int
    bytes: int


ONE, EMPTY = _Weight(1, 1), _Weight(1, 0)


class _Walk:
    """Goes through a schema once. A name is defined before it is used, so a schema that names itself does so within
    the definition of that name."""

    def __init__(self) -> None:
        self._known: dict[str, _Weight] = {}
        self._open: set[str] = set()
        self.is_recursive = False

    def weigh(self, schema: Any) -> _Weight:
        """Raises BadSchema for what becomes too many values."""
        if isinstance(schema, str):
            if schema in self._open:
                self.is_recursive = True
                return ONE
            return self._known.get(schema, EMPTY if schema == "null" else ONE)
        if isinstance(schema, list):
            for one in schema:
                self.weigh(one)
            return ONE
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema)
        if kind in ("enum", "fixed"):
            self._known[schema["name"]] = _Weight(1, schema["size"]) if kind == "fixed" else ONE
            return self._known[schema["name"]]
        if kind == "array" and not self.weigh(schema["items"]).bytes:
            raise BadSchema("an array's items take no bytes, so a record could hold any number of them")
        if kind == "map":
            self.weigh(schema["values"])
        return ONE if kind in ("array", "map") else self.weigh(kind)

    def _record(self, schema: dict[str, Any]) -> _Weight:
        name = schema["name"]
        self._open.add(name)
        fields = [self.weigh(field["type"]) for field in schema["fields"]]
        self._open.remove(name)
        weight = _Weight(1 + sum(one.values for one in fields), sum(one.bytes for one in fields))
        if weight.values > VALUES_OF_A_BYTE * max(1, weight.bytes):
            raise BadSchema(f"{name} has too many values without bytes")
        self._known[name] = weight
        return weight
