"""Code inside a Spark task. It imports no planning, because every new worker pays for its imports."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from weakref import ref

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from object_store.blocking import BlockingStore
from spark_offload.options import ReadOptions
from spark_offload.reading.decoding import Decoder
from spark_offload.reading.segment_reading import read_split
from spark_offload.segments.aborted import AbortedRanges

STORES_MAX = 4
CLOSE_AT_EXIT_S = 1.0


@lru_cache(STORES_MAX)
def store_at(uri: str) -> BlockingStore:
    """One store per process and place: a Spark worker lives through many tasks, and opening S3 takes its time."""
    store = BlockingStore(uri)
    atexit.register(_close_at_exit, ref(store))
    return store


def _close_at_exit(opened: ref[BlockingStore]) -> None:
    """Close it: no other code does. Spark plans a stream in a process that ends like any other, and aiohttp would log
    what is still open."""
    store = opened()
    if store is not None:
        store.close_within(CLOSE_AT_EXIT_S)


@contextmanager
def spared_collector() -> Iterator[None]:
    """Around a task: at the end of a process's first one, all that it has imported leaves the search for garbage.

    Spark's processes for Python make such a search after every task, and walking through some hundred thousand objects
    that live as long as the process took it longer than many a task. At the end, because half of what a task needs is
    imported on its way. No other process is touched: the driver may be anybody's.
    """
    try:
        yield
    finally:
        if _is_sparks_own():
            _spare_the_collector()


@lru_cache(1)
def _spare_the_collector() -> None:
    gc.collect()
    gc.freeze()


def _is_sparks_own() -> bool:
    """Whether Spark's Python daemon has started this process, for tasks or for planning."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"


def attempt_id() -> int:
    """The id of the current Spark task; 0 outside of one."""
    from pyspark import TaskContext  # noqa: PLC0415  the driver's planning needs none of it

    context = TaskContext.get()
    return context.taskAttemptId() if context is not None else 0


def read_input(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task's splits. If there are no tasks, Spark passes one whose value is None."""
    with spared_collector():
        fields = to_arrow_schema(schema, timezone="UTC")
        for split in partition.value or ():
            decoder = Decoder(
                fields,
                split.topic,
                split.partition,
                AbortedRanges(split.aborted),
                inflated_bytes_max=options.inflated_batch_bytes,
            )
            yield from read_split(store_at(options.tier), split, decoder, chunk_bytes=options.chunk_bytes)
