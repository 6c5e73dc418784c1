"""Batch queries over the tier: planned in the driver, read in executors. Both get a copy of the reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from spark_offload.options import ReadOptions
from spark_offload.reading.task import read_input, spared_collector, store_at


class TierReader(DataSourceReader):
    """Reads the selection of its options. Modules that only the driver needs are imported there."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self.schema = schema
        self.options = options
        self.filters: list[Filter] = []

    def partitions(self) -> list[InputPartition]:
        from spark_offload.reading.planning import plan_batch  # noqa: PLC0415
        from spark_offload.reading.pushdown import PushedBounds  # noqa: PLC0415

        with spared_collector():
            store = store_at(self.options.tier)
            bounds = PushedBounds()
            for one in self.filters:
                bounds = bounds.with_filter(one)
            return [InputPartition(task) for task in store.wait(lambda: plan_batch(store.store, self.options, bounds))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_input(self.options, self.schema, partition)


class PushdownReader(TierReader):
    """A class of its own, because Spark refuses a reader with this method unless its pushdown is switched on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Filters leave out partitions and segments; Spark applies all of them again to the rows."""
        self.filters = filters
        return filters
