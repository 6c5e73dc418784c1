"""What Spark's own processes for Python keep between tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_offload.reading.data_source import TidelogSource
from tests.spark_offload.tier_builder import TierBuilder, plain_batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceReader, InputPartition


def looking_source() -> type[TidelogSource]:
    """Reads as ever, but its rows say what the search for garbage had before it and what was left out. Made in here, so
    that it reaches Spark's process by value: an import of this file there would add to the sum."""
    from spark_offload.reading.batch_reader import TierReader  # noqa: PLC0415

    class Looking(TidelogSource):
        @classmethod
        def name(cls) -> str:
            return "looking"

        def reader(self, schema: object) -> DataSourceReader:
            class Reader(TierReader):
                def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
                    import gc  # noqa: PLC0415

                    searched, spared = len(gc.get_objects()), gc.get_freeze_count()
                    for batch in super().read(partition):
                        columns = batch.to_pydict() | {
                            "partition": [searched] * len(batch),
                            "offset": [spared] * len(batch),
                        }
                        yield type(batch).from_pydict(columns, schema=batch.schema)

            return Reader(TidelogSource(self.options).schema(), self._options())

    return Looking


def test_what_a_task_has_imported_is_not_searched_for_garbage_again(spark: SparkSession, tmp_path: Path) -> None:
    tier = TierBuilder(tmp_path)
    words = tier.partition("words")
    words.add(plain_batches(0, 1))
    words.publish()
    spark.dataSource.register(looking_source())
    frame = spark.read.format("looking").option("tier", tier.uri).option("topic", "words").load()
    (first,), (second,) = (frame.collect() for _ in range(2))
    assert first["offset"] == 0
    assert second["offset"] > 10 * second["partition"]
