"""Columns of one Avro schema as those of another: how values that were written with an older schema, or a newer one,
become rows of the same table. Source: "Schema Resolution" of the Apache Avro 1.12 specification.
"""

from __future__ import annotations

import pyarrow as pa

from spark_offload.export.avro_schema import AvroField, AvroNode
from spark_offload.options import OptionError

_WIDER = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
}


def check_resolution(writer: AvroNode, reader: AvroNode, path: str = "") -> None:
    """Raises OptionError if values of `writer` cannot be stored in the columns of `reader`."""
    writer, reader = _inner(writer), _inner(reader)
    if reader.kind == writer.kind == "record":
        for field in reader.fields:
            name = f"{path}{field.name}"
            written = _written(writer, field)
            if written is not None:
                check_resolution(written.node, field.node, f"{name}.")
            elif not field.has_default:
                raise OptionError(f"a schema of values has no {name}, for which the table's has no default")
        return
    if reader.kind == writer.kind and reader.kind in ("array", "map"):
        assert writer.items is not None and reader.items is not None
        check_resolution(writer.items, reader.items, path)
        return
    same = reader.kind == writer.kind and reader.arrow == writer.arrow and reader.size == writer.size
    if not same and (reader.logical or writer.logical or reader.kind not in _WIDER.get(writer.kind, ())):
        raise OptionError(f"a schema of values has {writer.kind} for {path.rstrip('.')}, the table's {reader.kind}")


def resolved(column: pa.Array, writer: AvroNode, reader: AvroNode) -> pa.Array:
    """Converts a column decoded with `writer` to a column of `reader`; the pair has passed `check_resolution`."""
    if column.type == reader.arrow:
        return column
    writer, reader = _inner(writer), _inner(reader)
    if reader.kind == "record":
        parts = []
        names = [field.name for field in writer.fields]
        for field in reader.fields:
            written = _written(writer, field)
            if written is None:
                parts.append(_default(field, len(column)))
            else:
                parts.append(resolved(column.field(names.index(written.name)), written.node, field.node))
        return pa.StructArray.from_arrays(parts, fields=list(reader.arrow), mask=column.is_null())
    if reader.kind in ("array", "map"):
        assert writer.items is not None and reader.items is not None
        mask = column.is_null() if column.null_count else None
        if reader.kind == "array":
            values = resolved(column.values, writer.items, reader.items)
            return pa.ListArray.from_arrays(column.offsets, values, type=reader.arrow, mask=mask)
        values = resolved(column.items, writer.items.fields[1].node, reader.items.fields[1].node)
        return pa.MapArray.from_arrays(column.offsets, column.keys, values, mask=mask).cast(reader.arrow)
    return column.cast(reader.arrow, safe=False)


def _inner(node: AvroNode) -> AvroNode:
    """Ignores nullability, because columns allow nulls anyway."""
    while node.kind in ("optional", "union") and node.items is not None:
        node = node.items
    return node


def _written(writer: AvroNode, field: AvroField) -> AvroField | None:
    for name in (field.name, *field.aliases):
        for one in writer.fields:
            if one.name == name:
                return one
    return None


def _default(field: AvroField, rows: int) -> pa.Array:
    value: str | bytes | float | None = field.default
    if value is None:
        return pa.nulls(rows, field.node.arrow)
    if isinstance(value, str) and _inner(field.node).kind in ("bytes", "fixed"):
        value = value.encode("latin-1")  # as Avro writes bytes in JSON
    return pa.repeat(pa.scalar(value).cast(field.node.arrow), rows)
