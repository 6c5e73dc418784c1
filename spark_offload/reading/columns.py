"""The table that Spark sees: the columns of Spark's own Kafka source, and schemas that are narrower."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_offload.options import OptionError
from spark_offload.segments.column_names import HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, TIMESTAMP_TYPE, TOPIC, VALUE

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
COLUMNS: dict[str, DataType] = {
    KEY: BinaryType(),
    VALUE: BinaryType(),
    TOPIC: StringType(),
    PARTITION: IntegerType(),
    OFFSET: LongType(),
    TIMESTAMP: TimestampType(),
    TIMESTAMP_TYPE: IntegerType(),
    HEADERS: ArrayType(_HEADER),
}


def whole_schema(*, include_headers: bool) -> StructType:
    """All columns; headers only on request, because they cost more than the others."""
    return StructType([StructField(name, kind) for name, kind in COLUMNS.items() if include_headers or name != HEADERS])


def check_schema(schema: StructType) -> None:
    """Raises OptionError unless every field of a schema that a user gave is one of the columns."""
    known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in COLUMNS.items())
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None or kind.simpleString() != field.dataType.simpleString():
            raise OptionError(f"no column {field.name} {field.dataType.simpleString()}; the columns are {known}")
    if len(set(schema.names)) != len(schema.names) or not schema.fields:
        raise OptionError("a schema names each column once, and at least one")
