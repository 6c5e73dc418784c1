"""What runs inside a Spark task. It imports no planning, for every new worker pays for what it imports."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from object_store.blocking import BlockingStore
from spark_offload.aborted import AbortedRanges
from spark_offload.decoding import Decoder
from spark_offload.options import ReadOptions
from spark_offload.segment_reading import read_split
from spark_offload.splits import Split

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
