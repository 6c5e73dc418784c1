"""Decodes parts of a segment to Arrow record batches: only the requested columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_offload.options import INFLATED_BYTES_MAX
from spark_offload.segments.aborted import AbortedRanges
from spark_offload.segments.arrow_columns import binary_column, headers_column, timestamp_column
from spark_offload.segments.batch_scan import BatchTable, scan_batches
from spark_offload.segments.column_names import HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, TIMESTAMP_TYPE, TOPIC, VALUE
from spark_offload.segments.payload import Payload, payloads
from spark_offload.segments.record_table import locate_records
from spark_offload.segments.varints import DamagedRecords, Integers

# Of a yielded batch: Java gets one buffer for each, and takes buffers of up to 4 MiB from a pool, warm in its caches.
BATCH_BYTES = 1_900_000
_FROM_BATCHES = frozenset({TOPIC, PARTITION, OFFSET, TIMESTAMP_TYPE})  # known from the headers of dense batches alone


@dataclass(frozen=True, slots=True)
class Bounds:
    """Records with `start` <= offset < `end` are wanted; the batches that hold them may begin before or end after."""

    start: int
    end: int


EVERYWHERE = Bounds(0, 2**63 - 1)


@dataclass(slots=True)
class Decoder:
    """Decodes pieces of one partition's segments into batches of `schema`, whose fields are those named above."""

    schema: pa.Schema
    topic: str
    partition: int
    aborted: AbortedRanges
    inflated_bytes_max: int = INFLATED_BYTES_MAX
    rows_max: int = 65_536
    check_crc: bool = True

    def decode(self, view: memoryview, bounds: Bounds, segment: Bounds = EVERYWHERE) -> Iterator[pa.RecordBatch]:
        """The records of `view`, whole batches of `segment`, inside `bounds`, without control and aborted records.

        Raises DamagedRecords, naming the offsets of the first batch that cannot be read, or when offsets are not of
        the segment: no CRC covers them.
        """
        batches = scan_batches(view, check_crc=self.check_crc)
        if len(batches) and not segment.start <= batches.base_offset[0] <= batches.last_offset[-1] < segment.end:
            first, last = int(batches.base_offset[0]), int(batches.last_offset[-1])
            raise DamagedRecords(f"offsets {first} to {last} in a segment of {segment.start} to {segment.end - 1}")
        wanted = (batches.last_offset >= bounds.start) & (batches.base_offset < bounds.end) & ~batches.is_control
        if self.aborted:
            wanted &= ~self.aborted.covers(batches)
        if not wanted.all():
            batches = batches.where(wanted)
        if not len(batches):
            return
        if _FROM_BATCHES.issuperset(self.schema.names) and batches.is_dense.all():
            yield from self._rows(self._from_batches(batches, bounds))
            return
        try:
            for payload in payloads(view, batches, inflated_bytes_max=self.inflated_bytes_max):
                yield from self._rows(self._from_records(payload, bounds))
        except DamagedRecords as error:
            raise self._located(view, batches, error) from error

    def _rows(self, whole: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = min(self.rows_max, max(1, whole.num_rows * BATCH_BYTES // max(1, whole.nbytes)))
        for first in range(0, whole.num_rows, rows):
            yield whole.slice(first, rows)

    def _from_batches(self, batches: BatchTable, bounds: Bounds) -> pa.RecordBatch:
        """Every offset of a dense batch is there, so its records need not be looked at."""
        count = batches.count
        batch = np.repeat(np.arange(len(count)), count)
        before = np.cumsum(count) - count
        offset = np.arange(len(batch)) - before[batch] + batches.base_offset[batch]
        low, high = np.searchsorted(offset, (bounds.start, bounds.end)).tolist()
        columns = {name: self._common_column(name, offset, batches, batch) for name in self.schema.names}
        return self._assembled(columns, low, high)

    def _from_records(self, payload: Payload, bounds: Bounds) -> pa.RecordBatch:
        records = locate_records(payload)
        low, high = np.searchsorted(records.offset, (bounds.start, bounds.end)).tolist()
        names = set(self.schema.names)
        columns: dict[str, pa.Array] = {}
        if KEY in names:
            columns[KEY] = binary_column(payload.view, records.key_at, records.key_length)
        if VALUE in names:
            columns[VALUE] = binary_column(payload.view, records.value_at, records.value_length)
        if TIMESTAMP in names:
            columns[TIMESTAMP] = timestamp_column(records.timestamp)
        if HEADERS in names:
            columns[HEADERS] = headers_column(payload.view, records, self.schema.field(HEADERS).type)
        for name in _FROM_BATCHES & names:
            columns[name] = self._common_column(name, records.offset, payload.batches, records.batch)
        return self._assembled(columns, low, high)

    def _common_column(self, name: str, offset: Integers, batches: BatchTable, batch: Integers) -> pa.Array:
        if name == OFFSET:
            return pa.array(offset)
        if name == TOPIC:
            return pa.repeat(pa.scalar(self.topic, pa.string()), len(offset))
        if name == PARTITION:
            return pa.array(np.full(len(offset), self.partition, np.int32))
        return pa.array(batches.is_log_append_time.astype(np.int32)[batch])

    def _assembled(self, columns: dict[str, pa.Array], low: int, high: int) -> pa.RecordBatch:
        arrays = [columns[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema).slice(low, high - low)

    def _located(self, view: memoryview, batches: BatchTable, error: DamagedRecords) -> DamagedRecords:
        """The same error for the first batch alone that raises it."""
        for row in range(len(batches)):
            one = batches.where(slice(row, row + 1))
            try:
                for payload in payloads(view, one, inflated_bytes_max=self.inflated_bytes_max):
                    self._from_records(payload, EVERYWHERE)
            except DamagedRecords as found:
                where = f"offsets {int(one.base_offset[0])} to {int(one.last_offset[0])}"
                return DamagedRecords(f"{self.topic}-{self.partition}, {where}: {found}")
        return error
