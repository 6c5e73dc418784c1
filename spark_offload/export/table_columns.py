"""The columns of an exported table, and how batches of records become rows of it.

Without a schema for values they are those of the data source. With one, the fields of a value are columns beside the
record's own, and a value that is not what the schema says is kept as it is in `undecoded_value`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_offload.export.avro_resolution import check_resolution, resolved
from spark_offload.export.avro_schema import AvroNode, parse_avro
from spark_offload.export.avro_values import decode_avro, scattered
from spark_offload.export.ddl import parse_ddl
from spark_offload.export.json_values import JsonValues
from spark_offload.export.years import TICKS_MAX, TICKS_MIN
from spark_offload.options import OptionError
from spark_offload.segments.column_names import HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, TIMESTAMP_TYPE, TOPIC, VALUE
from spark_offload.segments.varints import Bytes, Integers

Flags = npt.NDArray[np.bool_]

DAY = "timestamp_day"  # in the paths of Parquet files and in no file; Iceberg tables have a partition of that name
TOMBSTONE, UNDECODED = "tombstone", "undecoded_value"
FORMATS = ("raw", "json", "avro")
CONFLUENT_BYTES = 5
_OWN = {
    KEY: pa.binary(),
    VALUE: pa.binary(),
    TOPIC: pa.string(),
    PARTITION: pa.int32(),
    OFFSET: pa.int64(),
    TIMESTAMP: pa.timestamp("us", tz="UTC"),
    TIMESTAMP_TYPE: pa.int32(),
    HEADERS: pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
}


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """What values are. `schema` is the text of the schema, "" for raw bytes; `by_id` are the writers' schemas as
    (id, text), when values begin with Confluent's header: a zero byte and the id in four bytes, the highest first."""

    name: str = "raw"
    schema: str = ""
    has_header: bool = False
    by_id: tuple[tuple[int, str], ...] = ()


RAW = ValueFormat()


class ValueDecoder(Protocol):
    @property
    def columns(self) -> pa.Schema: ...

    def decode(self, values: pa.BinaryArray) -> tuple[list[pa.Array], Flags]:
        """The columns, and which rows could be decoded; all columns are null in the others."""
        ...


class AvroValues:
    """Raises OptionError for schemas that make no columns or do not go together."""

    def __init__(self, value_format: ValueFormat) -> None:
        self._reader = parse_avro(value_format.schema)
        self._has_header = value_format.has_header
        self._writers: dict[int, AvroNode] = {}
        for number, text in value_format.by_id:
            if number in self._writers:
                raise OptionError(f"the schema id {number} is given twice")
            self._writers[number] = parse_avro(text)
            check_resolution(self._writers[number], self._reader)
        self.columns = pa.schema(list(self._reader.arrow))

    def decode(self, values: pa.BinaryArray) -> tuple[list[pa.Array], Flags]:
        good = np.zeros(len(values), np.bool_)
        data, at, end = _spans(values)
        held = np.asarray(values.is_valid())
        found: list[tuple[pa.StructArray, npt.NDArray[np.intp]]] = []
        for writer, rows in self._by_writer(data, at, end, held):
            skipped = CONFLUENT_BYTES if self._has_header else 0
            records, fine = decode_avro(writer, data, at[rows] + skipped, end[rows])
            good[rows] = fine
            found.append((resolved(records, writer, self._reader), rows))
        if not found:
            return [pa.nulls(len(values), field.type) for field in self.columns], good
        records = pa.concat_arrays([part for part, _ in found])
        rows = np.concatenate([rows for _, rows in found])
        place = np.zeros(len(values), np.int64)
        place[rows] = np.arange(len(rows))
        if not good.all() or len(found) > 1:
            records = records.take(pa.array(place, mask=~good))
        return records.flatten(), good

    def _by_writer(
        self, data: Bytes, at: Integers, end: Integers, held: Flags
    ) -> list[tuple[AvroNode, npt.NDArray[np.intp]]]:
        """Rows with the schema that wrote them. Without schemas by id, whatever the header says is the table's."""
        if not self._has_header:
            return [(self._reader, np.flatnonzero(held))] if held.any() else []
        rows = np.flatnonzero(held & (end - at >= CONFLUENT_BYTES))
        rows = rows[data[at[rows]] == 0]
        if not self._writers:
            return [(self._reader, rows)] if len(rows) else []
        places = at[rows][:, None] + np.arange(1, CONFLUENT_BYTES)
        ids = np.ascontiguousarray(data[places]).view(">u4").reshape(-1)
        chosen = ((writer, rows[ids == number]) for number, writer in self._writers.items())
        return [(writer, some) for writer, some in chosen if len(some)]


class TableColumns:
    """The table's columns for one format of values."""

    def __init__(self, value_format: ValueFormat, *, include_headers: bool) -> None:
        """Raises OptionError for a schema that cannot be."""
        self._decoder = decoder_of(value_format)
        names = [KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE] + [HEADERS] * include_headers
        self.source = pa.schema([pa.field(name, _OWN[name]) for name in names])
        if self._decoder is None:
            self.schema = self.source
            return
        own = [field for field in self.source if field.name != VALUE]
        own += [pa.field(TOMBSTONE, pa.bool_()), pa.field(UNDECODED, pa.binary())]
        taken = {field.name.lower() for field in own} | {VALUE, DAY}
        more = []
        for field in self._decoder.columns:
            name = f"value_{field.name}" if field.name.lower() in taken else field.name
            if name.lower() in taken:
                raise OptionError(f"the field {field.name} of the values has no free name for its column")
            taken.add(name.lower())
            more.append(pa.field(name, field.type))
        self.schema = pa.schema(own + more)

    def rows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """A batch of the columns `source` as rows of the table, and how many of their values could not be decoded."""
        at = batch.schema.get_field_index(TIMESTAMP)
        batch = batch.set_column(at, batch.schema.field(at), within_years(batch.column(at)))
        if self._decoder is None:
            return batch, 0
        values = batch.column(VALUE)
        columns, good = self._decoder.decode(values)
        null = np.asarray(values.is_null())
        undecoded = ~good & ~null
        number = int(undecoded.sum())
        kept = scattered(values.filter(pa.array(undecoded)), undecoded) if number else pa.nulls(len(batch), pa.binary())
        own = [column for name, column in zip(batch.schema.names, batch.columns, strict=True) if name != VALUE]
        arrays = [*own, pa.array(null), kept, *columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema), number


def within_years(moments: pa.TimestampArray) -> pa.TimestampArray:
    """A producer may claim any time, but readers fail at a year that is not 1 to 9999: the nearest one then."""
    ticks = np.asarray(moments.cast(pa.int64()))
    if not len(ticks) or (ticks.min() >= TICKS_MIN and ticks.max() <= TICKS_MAX):
        return moments
    return pa.array(np.clip(ticks, TICKS_MIN, TICKS_MAX)).view(moments.type)


def decoder_of(value_format: ValueFormat) -> ValueDecoder | None:
    if value_format.name not in FORMATS:
        raise OptionError(f"the format of values is {', '.join(FORMATS)}, not {value_format.name!r}")
    if value_format.name == "raw":
        if value_format.schema or value_format.has_header or value_format.by_id:
            raise OptionError("a schema goes with values in JSON or Avro")
        return None
    if not value_format.schema.strip():
        raise OptionError(f"values in {value_format.name} need a schema")
    if value_format.by_id and not value_format.has_header:
        raise OptionError("schemas by id go with values that begin with Confluent's header")
    if value_format.name == "avro":
        return AvroValues(value_format)
    if value_format.has_header:
        raise OptionError("Confluent's header goes with values in Avro")
    return JsonValues(parse_ddl(value_format.schema))


def _spans(values: pa.BinaryArray) -> tuple[Bytes, Integers, Integers]:
    """(all bytes, where each value begins, where it ends)."""
    _, offsets, data = values.buffers()
    if not len(values) or offsets is None:
        return np.zeros(0, np.uint8), np.zeros(len(values), np.int64), np.zeros(len(values), np.int64)
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    base = int(bounds[0])
    whole = np.frombuffer(data, np.uint8)[base : int(bounds[-1])] if data is not None else np.zeros(0, np.uint8)
    return whole, bounds[:-1] - base, bounds[1:] - base
