"""Rows of one partition to Parquet files, one for each day (UTC) that their timestamps lie in."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_offload.export.table_columns import DAY, UNDECODED
from spark_offload.segments.column_names import HEADERS, OFFSET, TIMESTAMP, VALUE

DAY_US = 86_400_000_000
ROW_GROUP_BYTES = 32 << 20  # of Arrow columns, encoded at once
HELD_BYTES_MAX = 256 << 20
OPEN_DAYS_MAX = 64
COMPRESSION, COMPRESSION_LEVEL = "zstd", 1
_NOT_COMPARED = (VALUE, UNDECODED, HEADERS)  # queries do not ask for a range of these
UNCOMPARED_LEAVES = (VALUE, UNDECODED, f"{HEADERS}.element.key", f"{HEADERS}.element.value")
_NO_DICTIONARY = (VALUE, UNDECODED, OFFSET, TIMESTAMP)


class FileTarget(Protocol):
    """The destination of files, a value that is sent to executors."""

    def put(self, name: str, data: pa.Buffer) -> str:
        """Write a new file; returns its path for a commit. Raises StoreError, OSError."""
        ...


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file. `day` is like `2013-07-01`; offsets are of the first and the last row."""

    path: str
    topic: str
    partition: int
    day: str
    rows: int
    bytes: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class _OpenDay:
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_bytes: int = 0
    sink: pa.BufferOutputStream | None = None
    writer: pq.ParquetWriter | None = None
    rows: int = 0
    first_offset: int = -1
    last_offset: int = -1

    @property
    def held_bytes(self) -> int:
        return self.pending_bytes + (self.sink.tell() if self.sink is not None else 0)


class DayFiles:
    """Takes batches in the order of their offsets. Nothing is there before `close`, which gives what was written."""

    def __init__(
        self, schema: pa.Schema, target: FileTarget, topic: str, partition: int, suffix: str, file_bytes: int
    ) -> None:
        """`suffix` makes the names of this writer's files its own; partition and first offset stand before it."""
        self._schema = schema
        self._target = target
        self._topic = topic
        self._partition = partition
        self._suffix = suffix
        self._file_bytes = file_bytes
        self._open: dict[int, _OpenDay] = {}
        self._written: list[WrittenFile] = []
        names = _leaves(schema)
        self._dictionary = [name for top, name in names if top not in _NO_DICTIONARY]
        self._compared = [name for top, name in names if top not in _NOT_COMPARED]

    def add(self, batch: pa.RecordBatch) -> None:
        ticks = np.asarray(batch.column(TIMESTAMP).cast(pa.int64()))
        if not len(ticks):
            return
        days = ticks // DAY_US
        if days[0] == days[-1] and (days == days[0]).all():
            self._add(int(days[0]), batch)
            return
        if (days[1:] < days[:-1]).any():
            order = np.argsort(days, kind="stable")
            batch, days = batch.take(pa.array(order)), days[order]
        bounds = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
        for first, end in pairwise(bounds):
            self._add(int(days[first]), batch.slice(first, end - first))

    def close(self) -> list[WrittenFile]:
        for day in sorted(self._open):
            self._finish(day)
        return self._written

    def _add(self, day: int, batch: pa.RecordBatch) -> None:
        one = self._open.setdefault(day, _OpenDay())
        if not one.rows:
            one.first_offset = batch.column(OFFSET)[0].as_py()
        one.last_offset = batch.column(OFFSET)[-1].as_py()
        one.rows += batch.num_rows
        one.pending.append(batch)
        one.pending_bytes += batch.nbytes
        if one.pending_bytes >= ROW_GROUP_BYTES:
            self._encode(one)
        if one.held_bytes >= self._file_bytes:
            self._finish(day)
        while len(self._open) > OPEN_DAYS_MAX or self._held_bytes() > HELD_BYTES_MAX:
            self._finish(max(self._open, key=lambda number: self._open[number].held_bytes))

    def _held_bytes(self) -> int:
        return sum(one.held_bytes for one in self._open.values())

    def _encode(self, one: _OpenDay) -> None:
        """Write pending rows as a row group."""
        if one.writer is None:
            one.sink = pa.BufferOutputStream()
            one.writer = pq.ParquetWriter(
                one.sink,
                self._schema,
                compression=COMPRESSION,
                compression_level=COMPRESSION_LEVEL,
                use_dictionary=self._dictionary,
                write_statistics=self._compared,
            )
        table = pa.Table.from_batches(one.pending, self._schema)
        one.writer.write_table(table, row_group_size=max(1, table.num_rows))
        one.pending, one.pending_bytes = [], 0

    def _finish(self, day: int) -> None:
        one = self._open.pop(day)
        if one.pending:
            self._encode(one)
        assert one.writer is not None and one.sink is not None
        one.writer.close()
        data = one.sink.getvalue()
        text = day_text(day)
        # What a path says by `name=value` must not be a column too: readers differ in the type that they give it.
        first = f"{self._topic}-{self._partition}-{one.first_offset:020}"
        name = f"{DAY}={text}/{first}-{len(self._written)}-{self._suffix}.parquet"
        path = self._target.put(name, data)
        self._written.append(
            WrittenFile(
                path, self._topic, self._partition, text, one.rows, data.size, one.first_offset, one.last_offset
            )
        )


def day_text(day: int) -> str:
    """Days since 1970 as `2013-07-01`; years have as many digits as they need."""
    text: str = pc.strftime(pa.array([day], pa.int32()).cast(pa.date32()).cast(pa.timestamp("s")), "%Y-%m-%d")[
        0
    ].as_py()
    return text


def _leaves(schema: pa.Schema) -> list[tuple[str, str]]:
    """(column, path of the leaf) of all leaves, as Parquet names them."""
    found: list[tuple[str, str]] = []

    def walk(top: str, path: str, kind: pa.DataType) -> None:
        if pa.types.is_struct(kind):
            for child in kind:
                walk(top, f"{path}.{child.name}", child.type)
        elif pa.types.is_map(kind):
            walk(top, f"{path}.key_value.key", kind.key_type)
            walk(top, f"{path}.key_value.value", kind.item_type)
        elif pa.types.is_list(kind):
            walk(top, f"{path}.list.element", kind.value_type)
        else:
            found.append((top, path))

    for one in schema:
        walk(one.name, one.name, one.type)
    return found
