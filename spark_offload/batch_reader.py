"""Batch queries over the tier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from object_store.blocking import BlockingStore
from spark_offload.aborted import AbortedRanges
from spark_offload.catalog import Catalog
from spark_offload.decoding import Decoder
from spark_offload.offset_bounds import offset_ranges
from spark_offload.options import ReadOptions
from spark_offload.pushdown import PushedBounds
from spark_offload.segment_reading import read_split
from spark_offload.splits import Planner, Split

STORES_MAX = 4


@lru_cache(STORES_MAX)
def store_at(uri: str) -> BlockingStore:
    """One store per process and place: a Spark worker lives through many tasks, and opening S3 takes its time."""
    return BlockingStore(uri)


def read_input(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one split. Spark stands for no splits at all with one whose value is None."""
    split = partition.value
    if not isinstance(split, Split):
        return
    decoder = Decoder(
        to_arrow_schema(schema, timezone="UTC"),
        split.topic,
        split.partition,
        AbortedRanges(split.aborted),
        inflated_bytes_max=options.inflated_batch_bytes,
    )
    yield from read_split(store_at(options.tier), split, decoder, chunk_bytes=options.chunk_bytes)


class TierReader(DataSourceReader):
    """Plans in the driver, reads in executors; both get a copy of it."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self.schema = schema
        self.options = options
        self.bounds = PushedBounds()

    def partitions(self) -> list[InputPartition]:
        store = store_at(self.options.tier)
        return [InputPartition(split) for split in store.wait(lambda: self._plan(store))]

    async def _plan(self, blocking: BlockingStore) -> list[Split]:
        store = blocking.store
        contents = [one for one in await Catalog(store, self.options).contents() if self.bounds.keeps(one.path)]
        ranges = await offset_ranges(store, self.options, contents)
        planner = Planner(store, self.options.split_bytes, read_committed=self.options.read_committed)
        return await planner.plan(self.bounds.narrowed(ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_input(self.options, self.schema, partition)


class PushdownReader(TierReader):
    """A class of its own, because Spark refuses a reader with this method unless its pushdown is switched on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Filters leave out partitions and segments; Spark applies all of them again to the rows."""
        for one in filters:
            self.bounds = self.bounds.with_filter(one)
            yield one
