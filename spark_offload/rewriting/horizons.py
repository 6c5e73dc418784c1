"""Records under another base timestamp: a batch with a delete horizon keeps the horizon where that one was.

Source: KIP-534 and Apache Kafka's DefaultRecordBatch: with attribute bit 6 the base timestamp of a batch is the time
after which its tombstones and markers may go, and the timestamps of its records count from there.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_offload.segments.arrow_columns import binary_column
from spark_offload.segments.batch_scan import Flags, bytes_of
from spark_offload.segments.payload import Payload
from spark_offload.segments.record_table import RecordTable
from spark_offload.segments.varints import VARINT_BYTES_MAX, Bytes, Integers, read_varints, write_varints


def with_base_timestamps(payload: Payload, records: RecordTable, rows: Integers, base_ms: Integers) -> pa.Array:
    """The bytes of the records at `rows`, lengths included, each for a batch with its `base_ms`; binary, no nulls."""
    data = bytes_of(payload.view)
    start, end = records.start[rows], records.end[rows]
    delta, rest_at = read_varints(data, start + 1)
    delta = delta + payload.batches.base_timestamp[records.batch[rows]] - base_ms
    rest = binary_column(payload.view, rest_at, end - rest_at)
    times, time_sizes = write_varints(delta)
    lengths, length_sizes = write_varints(1 + time_sizes + end - rest_at)
    attributes = data[start].reshape(-1, 1)
    matrix = np.concatenate((lengths, attributes, times), axis=1)
    used = np.concatenate(
        (_used(length_sizes), np.ones((len(rows), 1), np.bool_), _used(time_sizes)),
        axis=1,
    )
    heads = _column(matrix[used], length_sizes + 1 + time_sizes)
    return pc.binary_join_element_wise(heads, rest, pa.scalar(b"", pa.binary()))


def _used(sizes: Integers) -> Flags:
    flags: Flags = np.arange(VARINT_BYTES_MAX) < sizes.reshape(-1, 1)
    return flags


def _column(data: Bytes, sizes: Integers) -> pa.Array:
    bounds = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
