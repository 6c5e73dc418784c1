"""JSON values to columns, a whole batch at a time, and which of the values are not what the schema says.

Arrow's own reader parses all values of a batch as lines of one text. A value can only be one line, and never part of
its neighbour's, when it begins with a brace and ends with one: Arrow accepts neither a control character inside a text
nor an object where a comma is due. When a batch fails, halves of it are tried until the values that fail are alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spark_offload.export.years import DAY_MAX, DAY_MIN, TICKS_MAX, TICKS_MIN

Flags = npt.NDArray[np.bool_]

TEXT_BYTES_MAX = 64 << 20  # parsed at once, whatever the size of a batch
_SPACE = b" \t\r\n"


class JsonValues:
    """Decodes into `columns`, whose types are those of `spark_offload.export.ddl`."""

    def __init__(self, columns: pa.Schema) -> None:
        self.columns = pa.schema([pa.field(field.name, _stored(field.type)) for field in columns])
        self._parsed = pa.schema([pa.field(field.name, _parsed(field.type)) for field in columns])
        self._checked = columns

    def decode(self, values: pa.BinaryArray) -> tuple[list[pa.Array], Flags]:
        """The columns, and which rows could be decoded; in the others, null values among them, all columns are null."""
        good = _may_be_object(values)
        rows = np.flatnonzero(good)
        tables: list[pa.Table] = []
        for part in _parts(values, rows):
            self._parse(values, part, good, tables)
        table = pa.concat_tables(tables) if tables else self.columns.empty_table()
        arrays = [_one(column) for column in table.columns]
        if good.all():
            return arrays, good
        place = pa.array(np.where(good, np.cumsum(good) - 1, 0), mask=~good)
        return [array.take(place) for array in arrays], good

    def _parse(self, values: pa.Array, rows: npt.NDArray[np.intp], good: Flags, tables: list[pa.Table]) -> None:
        """Parse these rows; what fails alone is cleared in `good`."""
        try:
            tables.append(self._table(values.take(pa.array(rows))))
        except pa.ArrowInvalid:
            if len(rows) == 1:
                good[rows] = False
                return
            middle = len(rows) // 2
            self._parse(values, rows[:middle], good, tables)
            self._parse(values, rows[middle:], good, tables)

    def _table(self, values: pa.Array) -> pa.Table:
        values.cast(pa.string())  # ArrowInvalid for what is no UTF-8: the reader does not look
        text = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values), b"\n")
        buffer = text.buffers()[2]
        if buffer is None or not len(self._parsed):
            return pa.table({}, schema=self.columns)
        read = pa.json.read_json(
            pa.BufferReader(buffer),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=buffer.size + 1),
            parse_options=pa.json.ParseOptions(
                explicit_schema=self._parsed, unexpected_field_behavior="ignore", newlines_in_values=True
            ),
        )
        if read.num_rows != len(values):
            raise pa.ArrowInvalid("several objects in one value")
        table = read.cast(self._checked).cast(self.columns)
        for column in table.columns:
            _check_years(column)
        return table


def _check_years(column: pa.Array | pa.ChunkedArray) -> None:
    """ArrowInvalid for a time that tables do not hold."""
    if isinstance(column, pa.ChunkedArray):
        for chunk in column.chunks:
            _check_years(chunk)
        return
    kind = column.type
    if pa.types.is_struct(kind) or pa.types.is_list(kind):
        for child in column.flatten() if pa.types.is_struct(kind) else [column.flatten()]:
            _check_years(child)
        return
    if pa.types.is_date(kind):
        low, high, whole = DAY_MIN, DAY_MAX, pa.int32()
    elif pa.types.is_timestamp(kind):
        low, high, whole = TICKS_MIN, TICKS_MAX, pa.int64()
    else:
        return
    bounds = pc.min_max(column.view(whole))
    if column.null_count < len(column) and not low <= bounds["min"].as_py() <= bounds["max"].as_py() <= high:
        raise pa.ArrowInvalid("a year that is not 1 to 9999")


def _may_be_object(values: pa.BinaryArray) -> Flags:
    """Those that begin with a brace and end with one, spaces aside."""
    if not len(values):
        return np.zeros(0, np.bool_)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    first, last = offsets[:-1], offsets[1:] - 1
    found = np.ones(len(values), np.bool_) if not values.null_count else np.asarray(values.is_valid())
    found = found & (last > first)
    if values.buffers()[2] is None or not found.any():
        return np.zeros(len(values), np.bool_)
    data = np.frombuffer(values.buffers()[2], np.uint8)
    rows = np.flatnonzero(found)
    plain = (data[first[rows]] == ord("{")) & (data[last[rows]] == ord("}"))
    found[rows] = plain
    for row in rows[~plain].tolist():  # rare: with spaces round them, or no objects at all
        text = data[first[row] : last[row] + 1].tobytes().strip(_SPACE)
        found[row] = text[:1] == b"{" and text[-1:] == b"}" and len(text) > 1
    return found


def _parts(values: pa.BinaryArray, rows: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
    """`rows` in parts whose text is bounded, where a single value is."""
    if not len(rows):
        return []
    lengths = np.asarray(pc.binary_length(values).fill_null(0))[rows].astype(np.int64)
    part = np.cumsum(lengths + 1) // TEXT_BYTES_MAX
    return np.split(rows, np.flatnonzero(np.diff(part)) + 1)


def _parsed(kind: pa.DataType) -> pa.DataType:
    """The types for Arrow's reader: dates are read as text, because it accepts them only as numbers."""
    return _mapped(kind, {pa.date32(): pa.string()})


def _stored(kind: pa.DataType) -> pa.DataType:
    """What the table holds: Iceberg has no integers below 32 bits."""
    return _mapped(kind, {pa.int8(): pa.int32(), pa.int16(): pa.int32()})


def _mapped(kind: pa.DataType, types: dict[pa.DataType, pa.DataType]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _mapped(field.type, types)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _mapped(kind.value_type, types)))
    return types.get(kind, kind)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
