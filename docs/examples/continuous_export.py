"""Exports a topic for as long as it runs: whatever reaches the tier is in the table with the next micro-batch.

    python docs/examples/continuous_export.py TIER TOPIC WAREHOUSE CHECKPOINTS [SECONDS]

With SECONDS there is a batch that often, without it the stream ends when it has caught up. The table is an Apache
Iceberg one, `tidelog.<topic>`, in a catalog in SQLite; `tidelog spark export` may go on with it, and may have begun it.
"""

import sys

from pyspark.sql import SparkSession

from spark_offload.export.options import ExportOptions
from spark_offload.export.streaming import StreamExport


def main(tier: str, topic: str, warehouse: str, checkpoints: str, seconds: str = "") -> None:
    spark = SparkSession.builder.appName(f"export of {topic}").getOrCreate()
    records = (
        spark.readStream.format("tidelog")
        .option("tier", tier)
        .option("topic", topic)
        .option("isolation", "read_committed")
        .option("maxOffsetsPerTrigger", 10_000_000)
        .load()
    )
    writer = records.writeStream.foreachBatch(
        StreamExport(ExportOptions(tier=tier, topics=(topic,), to="iceberg", output=warehouse))
    ).option("checkpointLocation", checkpoints)
    writer = writer.trigger(processingTime=f"{seconds} seconds") if seconds else writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
