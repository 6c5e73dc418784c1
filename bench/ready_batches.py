"""A data source that has its Arrow batches ready: what Spark takes for rows whoever makes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_offload.reading.columns import whole_schema
from spark_offload.reading.decoding import BATCH_BYTES

KEY_BYTES, OVERHEAD_BYTES = 13, 60  # of a row beside its value, in Arrow


class ReadyBatches(DataSource):
    """The columns of the tier. Options: `records` in all, `size` of a value, `tasks`."""

    @classmethod
    def name(cls) -> str:
        return "ready-batches"

    def schema(self) -> StructType:
        return whole_schema(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self.options
        return _Reader(schema, int(options["records"]), int(options["size"]), int(options["tasks"]))


class _Reader(DataSourceReader):
    def __init__(self, schema: StructType, records: int, size: int, tasks: int) -> None:
        self.schema, self.records, self.size, self.tasks = schema, records, size, tasks

    def partitions(self) -> list[InputPartition]:
        bounds = [self.records * task // self.tasks for task in range(self.tasks + 1)]
        return [InputPartition(end - start) for start, end in pairwise(bounds)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        rows = max(1, BATCH_BYTES // (self.size + OVERHEAD_BYTES))
        whole = self._batch(min(rows, left))
        while left > 0:
            yield whole if left >= rows else whole.slice(0, left)
            left -= rows

    def _batch(self, rows: int) -> pa.RecordBatch:
        columns = {
            "key": [b"k" * KEY_BYTES] * rows,
            "value": [b"v" * self.size] * rows,
            "topic": ["records"] * rows,
            "partition": [0] * rows,
            "offset": range(rows),
            "timestamp": [0] * rows,
            "timestampType": [0] * rows,
        }
        schema = to_arrow_schema(self.schema, timezone="UTC")
        return pa.RecordBatch.from_arrays([pa.array(columns[one.name], one.type) for one in schema], schema=schema)
