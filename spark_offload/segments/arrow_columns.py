"""Located records as Arrow arrays.

A field of all records is an array of views into the payload (Arrow's BinaryView: length and position, or the bytes
themselves when they are few), which Arrow casts to plain binary: it adds up the lengths first, so the copying is one
pass into memory of the right size. Positions come from a `RecordTable`, which has checked them; Arrow would follow
wrong ones out of the payload.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_offload.segments.batch_scan import bytes_of
from spark_offload.segments.record_table import RecordTable
from spark_offload.segments.varints import Bytes, DamagedRecords, Integers, read_varints

NO_LENGTH = -1  # of a null key or value
_INLINE_BYTES = 12  # what fits into a view itself has to be there
MICROSECONDS = 1_000
TIMESTAMP_MAX = (2**63 - 1) // MICROSECONDS
_ACROSS_MIN = 64  # records with an i-th header; below, they are read one by one


def binary_column(view: memoryview, at: Integers, length: Integers) -> pa.Array:
    """The bytes at each place; null where the length is -1."""
    views = np.zeros((len(at), 4), np.int32)  # of each: length, its first bytes (never compared), buffer, position
    views[:, 0] = length
    views[:, 3] = at
    present = None
    if len(at) and length.min() <= _INLINE_BYTES:
        if (absent := length < 0).any():
            views[absent, 0] = 0
            present = pa.py_buffer(np.packbits(~absent, bitorder="little"))
        short = length <= _INLINE_BYTES
        _put_inline(views, bytes_of(view), at, slice(None) if short.all() else np.flatnonzero(short))
    buffers = [present, pa.py_buffer(views), pa.py_buffer(view)]
    return pa.Array.from_buffers(pa.binary_view(), len(at), buffers).cast(pa.binary())


def _put_inline(views: npt.NDArray[np.int32], data: Bytes, at: Integers, short: slice | Integers) -> None:
    """The bytes of the `short` rows go into their views, and what follows them in `data` with them."""
    at = at[short]
    inside = max(len(data) - _INLINE_BYTES + 1, 0)  # places that as many bytes follow
    if inside:
        four: npt.NDArray[np.int32] = np.ndarray(inside, np.int32, data, strides=(1,))
        eight: npt.NDArray[np.int64] = np.ndarray(inside, np.int64, data, 4, strides=(1,))
        held = np.minimum(at, inside - 1)
        views[short, 1] = four[held]
        views.view(np.int64)[short, 1] = eight[held]
    for row in np.flatnonzero(at >= inside).tolist():
        last = data[int(at[row]) :].tobytes().ljust(_INLINE_BYTES, b"\0")
        views[row if isinstance(short, slice) else short[row], 1:] = np.frombuffer(last, np.int32)


def timestamp_column(milliseconds: Integers) -> pa.Array:
    """Microseconds in UTC; what a record claims beyond their range is held at its end."""
    if len(milliseconds) and (milliseconds.max() > TIMESTAMP_MAX or milliseconds.min() < -TIMESTAMP_MAX):
        milliseconds = np.clip(milliseconds, -TIMESTAMP_MAX, TIMESTAMP_MAX)
    ticks = milliseconds * MICROSECONDS
    return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(ticks), [None, pa.py_buffer(ticks)])


def headers_column(view: memoryview, records: RecordTable, column_type: pa.ListType) -> pa.Array:
    """Lists of (key, value); null for a record without headers. `column_type` is list<struct<string, binary>>.

    DamagedRecords for headers that leave their record or do not fill it. A key that is no UTF-8 gets replacement
    characters, as everywhere in this product.
    """
    count = records.header_count
    first = np.cumsum(count) - count
    places = _locate_headers(bytes_of(view), records, first)
    keys, values = binary_column(view, places[0], places[1]), binary_column(view, places[2], places[3])
    pairs = pa.StructArray.from_arrays([_as_text(keys), values], fields=list(column_type.value_type))
    bounds = np.append(first, first[-1] + count[-1] if len(count) else 0).astype(np.int32)
    none = count == 0
    return pa.ListArray.from_arrays(
        pa.array(bounds), pairs, type=column_type, mask=pa.array(none) if none.any() else None
    )


def _locate_headers(data: Bytes, records: RecordTable, first: Integers) -> npt.NDArray[np.int64]:
    """Four rows, a column per header in the order of the records: key position and length, value position and length.

    `first` is the number of each record's first header.
    """
    total = int(records.header_count.sum())
    places = np.empty((4, total), np.int64)
    order = np.argsort(-records.header_count, kind="stable")[: int((records.header_count > 0).sum())]
    at, limit, count, slot = records.headers_at[order], records.end[order], records.header_count[order], first[order]
    alive = np.searchsorted(-count, -np.arange(int(count[0]) + 1 if len(count) else 1), side="left").tolist()
    step = 0
    try:
        while alive[step] >= _ACROSS_MIN:
            live = alive[step]
            rows = slot[:live] + step
            places[:, rows], at[:live] = _next_headers(data, at[:live], limit[:live])
            step += 1
        for index in range(alive[step]):
            here, end = at[index : index + 1], limit[index : index + 1]
            for row in range(int(slot[index]) + step, int(slot[index] + count[index])):
                places[:, row : row + 1], here = _next_headers(data, here, end)
            at[index] = here[0]
    except IndexError as error:
        raise DamagedRecords("a header that leaves its record") from error
    if (at != limit).any():
        raise DamagedRecords("bytes after a record's last header")
    return places


def _next_headers(data: Bytes, at: Integers, limit: Integers) -> tuple[Integers, Integers]:
    """One header of each record, as the four rows of its places, and the position after it."""
    key_length, key_at = read_varints(data, at)
    if not ((key_at <= limit) & (key_length >= 0) & (key_length <= limit - key_at)).all():
        raise DamagedRecords("a header key that leaves its record")
    value_length, value_at = read_varints(data, key_at + key_length)
    if not ((value_at <= limit) & (value_length >= NO_LENGTH) & (value_length <= limit - value_at)).all():
        raise DamagedRecords("a header value that leaves its record")
    return np.stack((key_at, key_length, value_at, value_length)), value_at + np.maximum(value_length, 0)


def _as_text(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
