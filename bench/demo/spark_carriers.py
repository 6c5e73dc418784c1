"""A Spark job over the tier alone: flights and mean departure delay by carrier, printed as one line of JSON.

Arguments: the tier's URI, the topic.
"""

import json
import sys

from pyspark.sql import functions

from pyspark_tidelog import spark_session


def main(uri: str, topic: str) -> None:
    spark = spark_session("carriers")
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
