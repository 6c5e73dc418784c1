"""Avro schemas as trees of nodes, each with the Arrow type of its column.

What cannot be a column is refused: a union of several types beside null, a type that holds itself, and an array or map
whose items may take no bytes. Source: the Apache Avro 1.12 specification.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_offload.options import OptionError

NESTING_MAX = 32
PRECISION_MAX = 38
DECIMAL_BYTES_MAX = 16
FIXED_BYTES_MAX = 1 << 20
_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time64("us"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


@dataclass(frozen=True, slots=True)
class AvroField:
    """`default`: the reader's value for a field that the writer lacks; None stands for both null and no default."""

    name: str
    node: AvroNode
    aliases: tuple[str, ...] = ()
    default: str | int | float | bool | None = None
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class AvroNode:
    """`kind` is Avro's type, `optional` for a union of null and `items`, or one of null and nothing.

    `size` is that of a fixed type in bytes; `null_first` tells which branch of an optional one is 0.
    """

    kind: str
    arrow: pa.DataType
    logical: str = ""
    fields: tuple[AvroField, ...] = ()
    items: AvroNode | None = None
    symbols: tuple[str, ...] = ()
    size: int = 0
    null_first: bool = True

    @property
    def bytes_min(self) -> int:
        if self.kind == "record":
            return sum(one.node.bytes_min for one in self.fields)
        return {"null": 0, "fixed": self.size, "float": 4, "double": 8}.get(self.kind, 1)


def parse_avro(text: str) -> AvroNode:
    """The record that a schema file describes. Raises OptionError."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise OptionError(f"the Avro schema is no JSON: {error}") from None
    node = _Reader().node(schema, "", 0)
    if node.kind != "record":
        raise OptionError("the Avro schema is no record, so it makes no columns")
    return node


@dataclass(slots=True)
class _Reader:
    """The types named so far; None for one that is being read."""

    named: dict[str, AvroNode | None] = field(default_factory=dict)

    def node(self, schema: Any, namespace: str, depth: int) -> AvroNode:
        if depth > NESTING_MAX:
            raise OptionError(f"the Avro schema is nested deeper than {NESTING_MAX} levels")
        if isinstance(schema, str):
            return AvroNode(schema, _PLAIN[schema]) if schema in _PLAIN else self._reference(schema, namespace)
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if not isinstance(schema, dict):
            raise OptionError(f"no Avro type: {_short(schema)}")
        kind = schema.get("type")
        makers: dict[Any, Callable[[dict[str, Any], str, int], AvroNode]] = {
            "record": self._record,
            "error": self._record,
            "enum": self._enum,
            "fixed": self._fixed,
            "array": self._array,
            "map": self._map,
        }
        if not isinstance(kind, str):
            return self.node(kind, namespace, depth + 1)
        if kind in makers:
            return makers[kind](schema, namespace, depth)
        if kind in _PLAIN:
            return _with_logical(AvroNode(kind, _PLAIN[kind]), schema)
        return self._reference(kind, namespace)

    def _reference(self, name: str, namespace: str) -> AvroNode:
        for full in dict.fromkeys((_full_name(name, namespace), name)):
            if full in self.named:
                node = self.named[full]
                if node is None:
                    raise OptionError(f"the Avro type {name} holds itself, so it is no column")
                return node
        raise OptionError(f"the Avro schema has no type {_short(name)}")

    def _union(self, branches: list[Any], namespace: str, depth: int) -> AvroNode:
        nodes = [self.node(branch, namespace, depth + 1) for branch in branches]
        others = [node for node in nodes if node.kind != "null"]
        if len(nodes) == 1 and others:
            return AvroNode("union", others[0].arrow, items=others[0])
        if len(nodes) != 2 or len(others) != 1:
            raise OptionError(f"a union is null and one type, not {_short(branches)}, which is no column")
        return AvroNode("optional", others[0].arrow, items=others[0], null_first=nodes[0].kind == "null")

    def _record(self, schema: dict[str, Any], namespace: str, depth: int) -> AvroNode:
        name, namespace = self._begin(schema, namespace)
        fields: list[AvroField] = []
        for one in schema.get("fields") or []:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str) or "type" not in one:
                raise OptionError(f"no field of an Avro record: {_short(one)}")
            if any(known.name.lower() == one["name"].lower() for known in fields):
                raise OptionError(f"the Avro schema names {one['name']} twice")
            fields.append(_field(one, self.node(one["type"], namespace, depth + 1)))
        if not fields:
            raise OptionError(f"the Avro record {name} has no fields, so it is no column")
        arrow = pa.struct([pa.field(one.name, one.node.arrow) for one in fields])
        return self._end(name, AvroNode("record", arrow, fields=tuple(fields)))

    def _enum(self, schema: dict[str, Any], namespace: str, depth: int) -> AvroNode:
        name, _ = self._begin(schema, namespace)
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not symbols or not all(isinstance(one, str) for one in symbols):
            raise OptionError(f"the Avro enum {name} has no symbols")
        return self._end(name, AvroNode("enum", pa.string(), symbols=tuple(symbols)))

    def _fixed(self, schema: dict[str, Any], namespace: str, depth: int) -> AvroNode:
        name, _ = self._begin(schema, namespace)
        size = schema.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= FIXED_BYTES_MAX:
            raise OptionError(f"the Avro type {name} has no size from 0 to {FIXED_BYTES_MAX}")
        return self._end(name, _with_logical(AvroNode("fixed", pa.binary(), size=size), schema))

    def _array(self, schema: dict[str, Any], namespace: str, depth: int) -> AvroNode:
        items = self._items(schema, "items", namespace, depth)
        return AvroNode("array", pa.list_(pa.field("element", items.arrow)), items=items)

    def _map(self, schema: dict[str, Any], namespace: str, depth: int) -> AvroNode:
        values = self._items(schema, "values", namespace, depth)
        entry = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", values.arrow)])
        fields = (AvroField("key", AvroNode("string", pa.string())), AvroField("value", values))
        return AvroNode("map", pa.map_(pa.string(), values.arrow), items=AvroNode("record", entry, fields=fields))

    def _items(self, schema: dict[str, Any], name: str, namespace: str, depth: int) -> AvroNode:
        node = _column(self.node(schema.get(name), namespace, depth + 1), name)
        if not node.bytes_min and name == "items":
            raise OptionError("an Avro array whose items may take no bytes is no column")
        return node

    def _begin(self, schema: dict[str, Any], namespace: str) -> tuple[str, str]:
        """(full name, namespace of nested names)."""
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise OptionError(f"an Avro {schema.get('type')} without a name")
        full = _full_name(name, str(schema.get("namespace") or namespace))
        if full in self.named:
            raise OptionError(f"the Avro schema defines {full} twice")
        self.named[full] = None
        return full, full.rpartition(".")[0]

    def _end(self, name: str, node: AvroNode) -> AvroNode:
        self.named[name] = node
        return node


def _field(schema: dict[str, Any], node: AvroNode) -> AvroField:
    name, default = schema["name"], schema.get("default")
    aliases = tuple(str(alias) for alias in schema.get("aliases") or ())
    simple = default is None or isinstance(default, (str, int, float, bool))
    return AvroField(
        name,
        _column(node, name),
        aliases,
        default=default if simple else None,
        has_default="default" in schema and simple,
    )


def _column(node: AvroNode, name: str) -> AvroNode:
    if node.kind == "null":
        raise OptionError(f"{name} of the Avro schema is always null, so it is no column")
    return node


def _with_logical(node: AvroNode, schema: dict[str, Any]) -> AvroNode:
    """Avro requires that unknown or invalid logical types are ignored."""
    logical = schema.get("logicalType")
    if (node.kind, logical) in _LOGICAL:
        return AvroNode(node.kind, _LOGICAL[node.kind, str(logical)], logical=str(logical), size=node.size)
    if logical == "decimal" and node.kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= PRECISION_MAX:
            arrow = pa.decimal128(max(precision, 1), scale)
            return AvroNode(node.kind, arrow, logical="decimal", size=node.size)
    return node


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _short(schema: Any) -> str:
    return json.dumps(schema, default=str)[:120]
