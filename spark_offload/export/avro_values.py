"""Avro values to columns: each field of all values of a batch at a time, and which of the values are damaged.

A position per value moves through the bytes, field by field. A value that does not go on as the schema says is out: its
position waits at its own end, where whatever is read next fails as well, and its row is null in the end. No length or
count that a value claims is believed before it fits the value. Source: the binary encoding of Apache Avro 1.12.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_offload.export.avro_schema import DECIMAL_BYTES_MAX, AvroNode
from spark_offload.export.years import DAY_MAX, DAY_MIN, TICKS_MAX, TICKS_MIN
from spark_offload.segments.arrow_columns import binary_column
from spark_offload.segments.varints import VARINT_BYTES_MAX, Bytes, Integers, unzigzag

Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

INT32_MAX = 2**31 - 1
DAY_MS = 86_400_000
_PAD = bytes(DECIMAL_BYTES_MAX)  # whatever is read at the end of the last value stays inside
_MORE = 0x80


def decode_avro(node: AvroNode, data: Bytes, at: Integers, limit: Integers) -> tuple[pa.StructArray, Flags]:
    """The records at bytes [at, limit) of `data`, which grow and do not overlap, and which of them are whole.

    Rows of others hold anything. Raises nothing.
    """
    decoder = _Decoder(data, len(at))
    records, end = decoder.decode(node, at, limit, np.arange(len(at)))
    decoder.fine &= end == limit
    return records, decoder.fine


class _Decoder:
    """Goes through one batch. Every reading takes positions, limits and the rows that these belong to, in order of
    position, and gives the column and the positions after it."""

    def __init__(self, data: Bytes, rows: int) -> None:
        self._view = memoryview(data.tobytes() + _PAD)
        self._data = np.frombuffer(self._view, np.uint8)
        self.fine = np.ones(rows, np.bool_)

    def decode(self, node: AvroNode, at: Integers, limit: Integers, row: Rows) -> tuple[pa.Array, Integers]:
        match node.kind:
            case "record":
                columns = []
                for field in node.fields:
                    column, at = self.decode(field.node, at, limit, row)
                    columns.append(column)
                return pa.StructArray.from_arrays(columns, fields=list(node.arrow)), at
            case "optional" | "union":
                return self._optional(node, at, limit, row)
            case "array" | "map":
                return self._items(node, at, limit, row)
            case "int" | "long":
                return self._whole(node, at, limit, row)
            case "enum":
                index, at = self._varint(at, limit, row)
                at = self._drop((index < 0) | (index >= len(node.symbols)), at, limit, row)
                known = np.clip(index, 0, len(node.symbols) - 1)
                return pa.array(node.symbols, pa.string()).take(pa.array(known)), at
            case "boolean":
                first, at = self._fixed(1, at, limit, row)
                truth = self._data[first]
                return pa.array(truth == 1), self._drop(truth > 1, at, limit, row)
            case "float" | "double":
                size = 4 if node.kind == "float" else 8
                first, at = self._fixed(size, at, limit, row)
                raw = np.ascontiguousarray(self._data[first[:, None] + np.arange(size)])
                return pa.array(raw.view(f"<f{size}").reshape(-1)), at
            case "fixed":
                first, at = self._fixed(node.size, at, limit, row)
                return self._bytes(node, first, np.where(self.fine[row], node.size, 0), at, limit, row)
        length, first = self._varint(at, limit, row)
        after = self._drop((length < 0) | (length > limit - first), first, limit, row)
        out = after != first
        length = np.where(out | ~self.fine[row], 0, length)
        first = np.where(out, limit, first)
        return self._bytes(node, first, length, first + length, limit, row)

    def _drop(self, bad: Flags, at: Integers, limit: Integers, row: Rows) -> Integers:
        """Mark the rows of `bad` as undecodable; returns `at`, moved to their limits for these."""
        if not bad.any():
            return at
        self.fine[row[bad]] = False
        return np.where(bad, limit, at)

    def _varint(self, at: Integers, limit: Integers, row: Rows) -> tuple[Integers, Integers]:
        byte = self._data[at].astype(np.int64)
        raw, after = byte & 0x7F, at + 1
        going = np.flatnonzero(byte >= _MORE)
        for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
            if not len(going):
                break
            byte = self._data[np.minimum(after[going], len(self._data) - 1)].astype(np.int64)
            raw[going] |= (byte & 0x7F) << shift
            after[going] += 1
            going = going[byte >= _MORE]
        bad = after > limit
        bad[going] = True
        return np.where(bad, 0, unzigzag(raw)), self._drop(bad, after, limit, row)

    def _fixed(self, size: int, at: Integers, limit: Integers, row: Rows) -> tuple[Integers, Integers]:
        """(where it begins, for one that is out at a place that can be read; where it ends)."""
        bad = size > limit - at
        return np.where(bad, 0, at), self._drop(bad, at + size, limit, row)

    def _optional(self, node: AvroNode, at: Integers, limit: Integers, row: Rows) -> tuple[pa.Array, Integers]:
        assert node.items is not None
        branch, at = self._varint(at, limit, row)
        if node.kind == "union":
            return self.decode(node.items, self._drop(branch != 0, at, limit, row), limit, row)
        at = self._drop((branch != 0) & (branch != 1), at, limit, row)
        held = (branch == int(node.null_first)) & self.fine[row]
        chosen = np.flatnonzero(held)
        column, at[chosen] = self.decode(node.items, at[chosen], limit[chosen], row[chosen])
        return column if held.all() else scattered(column, held), at

    def _whole(self, node: AvroNode, at: Integers, limit: Integers, row: Rows) -> tuple[pa.Array, Integers]:
        value, at = self._varint(at, limit, row)
        low, high = (-INT32_MAX - 1, INT32_MAX) if node.kind == "int" else (-(2**63), 2**63 - 1)
        if node.logical.startswith("time-"):
            low, high = 0, DAY_MS * (1 if node.logical == "time-millis" else 1000) - 1
        elif node.logical == "date":
            low, high = DAY_MIN, DAY_MAX
        elif node.logical:
            unit = 1000 if node.logical.endswith("-millis") else 1
            low, high = TICKS_MIN // unit, TICKS_MAX // unit
        bad = (value < low) | (value > high)
        if bad.any():
            at, value = self._drop(bad, at, limit, row), np.where(bad, 0, value)
        if node.kind == "int" and not node.logical.startswith("time-"):
            return pa.array(value.astype(np.int32)).view(node.arrow), at
        return pa.array(value * 1000 if node.logical.endswith("-millis") else value).view(node.arrow), at

    def _bytes(
        self, node: AvroNode, first: Integers, length: Integers, at: Integers, limit: Integers, row: Rows
    ) -> tuple[pa.Array, Integers]:
        """`length` bytes from `first` on, 0 of them for rows that are out, as what `node` makes of them."""
        if node.logical == "decimal":
            return self._decimal(node, first, length, at, limit, row)
        first = np.where(self.fine[row], first, limit)
        column = binary_column(self._view, first, length)
        if node.kind != "string":
            return column, at
        try:
            return column.cast(pa.string()), at
        except pa.ArrowInvalid:
            bad = np.array([not _is_text(value) for value in column.to_pylist()])
            at = self._drop(bad, at, limit, row)
            return binary_column(self._view, first, np.where(bad, 0, length)).cast(pa.string()), at

    def _decimal(
        self, node: AvroNode, first: Integers, length: Integers, at: Integers, limit: Integers, row: Rows
    ) -> tuple[pa.Array, Integers]:
        """Two's complement of any length, the highest byte first, to the sixteen bytes that Arrow has."""
        bad = length < 1
        first = np.where(bad, 0, first)
        end = first + np.maximum(length, 1)
        negative = self._data[first] >= _MORE
        surplus = np.flatnonzero(length > DECIMAL_BYTES_MAX)
        for place in surplus.tolist():  # only signs may stand before the last sixteen bytes
            more = set(bytes(self._view[first[place] : end[place] - DECIMAL_BYTES_MAX]))
            bad[place] |= more != {0xFF if negative[place] else 0}
        back = np.arange(1, DECIMAL_BYTES_MAX + 1)
        places = end[:, None] - back
        inside = places >= first[:, None]
        sign = np.where(negative, 0xFF, 0).astype(np.uint8)[:, None]
        raw = np.ascontiguousarray(np.where(inside, self._data[np.maximum(places, 0)], sign))
        low, high = raw[:, :8].copy().view("<u8").reshape(-1), raw[:, 8:].copy().view("<i8").reshape(-1)
        bad |= (high < 0) != negative
        bad |= ~_below(low, high, 10**node.arrow.precision) | _below(low, high, 1 - 10**node.arrow.precision)
        raw[bad] = 0
        column = pa.Array.from_buffers(node.arrow, len(row), [None, pa.py_buffer(raw)])
        return column, self._drop(bad, at, limit, row)

    def _items(self, node: AvroNode, at: Integers, limit: Integers, row: Rows) -> tuple[pa.Array, Integers]:
        """Read the next item of all lists that have one, until none has."""
        assert node.items is not None
        at = at.copy()
        left = np.zeros(len(at), np.int64)
        going: Rows = np.arange(len(at))
        items: list[pa.Array] = [pa.array([], node.items.arrow)]
        owners: list[Rows] = [going[:0]]
        while len(going):
            due = going[left[going] == 0]
            if len(due):
                left[due], at[due] = self._block(at[due], limit[due], row[due])
                going = going[left[going] > 0]
                if not len(going):
                    break
            column, at[going] = self.decode(node.items, at[going], limit[going], row[going])
            items.append(column)
            owners.append(going)
            left[going] = np.where(self.fine[row[going]], left[going] - 1, 0)
            going = going[self.fine[row[going]]]
        owner = np.concatenate(owners)
        values = pa.concat_arrays(items).take(pa.array(np.argsort(owner, kind="stable")))
        counts = np.bincount(owner, minlength=len(at))
        offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
        if node.kind == "map":
            keys, of_keys = values.flatten()
            return pa.MapArray.from_arrays(offsets, keys, of_keys).cast(node.arrow), at
        return pa.ListArray.from_arrays(offsets, values, type=node.arrow), at

    def _block(self, at: Integers, limit: Integers, row: Rows) -> tuple[Integers, Integers]:
        """How many items follow, 0 at the end, and where. A negative count has the block's bytes behind it."""
        count, at = self._varint(at, limit, row)
        sized = np.flatnonzero(count < 0)
        if len(sized):
            _, at[sized] = self._varint(at[sized], limit[sized], row[sized])
            count[sized] = np.abs(count[sized])
        bad = (count < 0) | (count > limit - at)
        at = self._drop(bad, at, limit, row)
        return np.where(self.fine[row], count, 0), at


def scattered(column: pa.Array, held: Flags) -> pa.Array:
    """The elements of `column` in the rows of `held`, nulls in the others."""
    return column.take(pa.array(np.where(held, np.cumsum(held) - 1, 0), mask=~held))


def _below(low: npt.NDArray[np.uint64], high: Integers, bound: int) -> Flags:
    """Which numbers of 128 bits are less than `bound`."""
    bound_high, bound_low = bound >> 64, np.uint64(bound & (2**64 - 1))
    less: Flags = (high < bound_high) | ((high == bound_high) & (low < bound_low))
    return less


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
