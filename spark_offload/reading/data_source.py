"""`spark.read.format("tidelog")` and `spark.readStream.format("tidelog")`: the class that Spark finds by that name."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_offload.options import ReadOptions, parse_options
from spark_offload.reading.columns import check_schema, whole_schema


class TidelogSource(DataSource):
    """The history of topics as it lies in an object store; no broker is asked. See docs/spark.md for its options."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        return whole_schema(include_headers=self._options().include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        # Not at the top, here and below: each of Spark's short-lived Python processes pays for what it imports.
        from spark_offload.reading.batch_reader import PushdownReader, TierReader  # noqa: PLC0415

        check_schema(schema)
        options = self._options()
        return PushdownReader(schema, options) if options.pushdown else TierReader(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        from common.machine import MachineClock  # noqa: PLC0415
        from spark_offload.reading.stream_reader import TierStreamReader  # noqa: PLC0415

        check_schema(schema)
        return TierStreamReader(schema, self._options(), MachineClock())

    def _options(self) -> ReadOptions:
        return parse_options(self.options)
