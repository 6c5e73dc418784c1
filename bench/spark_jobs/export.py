"""`python -m bench.spark_jobs.export`: the export job beside a writer that takes row after row.

Both read the same tiered topic with Spark on two cores, write the same columns as Parquet with the same compression,
and end in one commit of an Iceberg table. The row writer is what `foreachPartition` invites to: it reads through the
same source, builds a row of Python values for each record (with `json.loads` where values are columns) and hands ten
thousand of them at a time to pyarrow. In turns, after a round that does not count. Prints medians and ratios, saves
bench/results/spark_export.json, and ends 1 when a goal is missed, 2 without Java.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bench.spark_jobs.made_tier import MadeTopic
from bench.spark_jobs.row import BenchRow, Figures, timed
from spark_offload.export.day_files import COMPRESSION, COMPRESSION_LEVEL
from spark_offload.export.iceberg_table import open_catalog
from spark_offload.export.job import open_table, run
from spark_offload.export.options import ExportOptions
from spark_offload.export.table_columns import ValueFormat
from spark_offload.running.job import SilentProgress

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

ROWS_AT_ONCE = 10_000
JSON_COLUMNS = ValueFormat("json", "key bigint, offset bigint, carrier string, origin string, text string")


class Case(NamedTuple):
    name: str
    size: int
    records: int
    values: ValueFormat
    goal: float = 2.0


CASES = [
    Case("100 B", 100, 600_000, ValueFormat()),
    Case("1 KiB", 1_024, 120_000, ValueFormat()),
    Case("JSON columns, 100 B", 100, 400_000, JSON_COLUMNS),
]


@dataclass(frozen=True)
class RowWriter:
    """Called in executors with the rows of a partition."""

    folder: str
    schema: pa.Schema
    is_json: bool

    def __call__(self, rows: Iterator[Row]) -> None:
        """One file for each partition of the topic that the rows are of."""
        writers: dict[int, pq.ParquetWriter] = {}
        while taken := [self._fields(row) for row in islice(rows, ROWS_AT_ONCE)]:
            for number in sorted({fields["partition"] for fields in taken}):
                some = [fields for fields in taken if fields["partition"] == number]
                if number not in writers:
                    writers[number] = pq.ParquetWriter(
                        f"{self.folder}/{number}-{some[0]['offset']}.parquet",
                        self.schema,
                        compression=COMPRESSION,
                        compression_level=COMPRESSION_LEVEL,
                    )
                writers[number].write_table(pa.Table.from_pylist(some, schema=self.schema))
        for writer in writers.values():
            writer.close()

    def _fields(self, row: Row) -> dict[str, Any]:
        fields: dict[str, Any] = row.asDict()
        if not self.is_json:
            return fields
        value = fields.pop("value")
        for name, found in json.loads(value).items():
            fields[f"value_{name}" if name in fields else name] = found
        return fields | {"tombstone": False, "undecoded_value": None}


def by_rows(spark: SparkSession, options: ExportOptions, folder: Path) -> None:
    """Into a table that the job's own code has made, so that both have the same columns and partitions."""
    folder.mkdir(parents=True)
    records = spark.read.format("tidelog").options(**options.source_options({"isolation": "read_committed"})).load()
    records.foreachPartition(RowWriter(str(folder), options.columns().schema, options.values.name == "json"))
    catalog = open_catalog(options)
    try:
        table = catalog.load_table(options.table_name)
        table.add_files([path.as_uri() for path in sorted(folder.glob("*.parquet"))])
    finally:
        catalog.close()


def rows_in(options: ExportOptions) -> int:
    catalog = open_catalog(options)
    try:
        return catalog.load_table(options.table_name).scan().count()
    finally:
        catalog.close()


def measure(spark: SparkSession, case: Case, folder: Path, rounds: int) -> list[Figures]:
    topic = MadeTopic(folder / "tier", f"t{case.size}", size=case.size, records=case.records, keys=case.records // 10)
    topic.make()
    job: list[float] = []
    plain: list[float] = []
    for number in range(rounds + 1):
        ours, theirs = (
            ExportOptions(
                tier=topic.uri, topics=(topic.name,), to="iceberg", table=f"bench.{who}{number}",
                output=(folder / "tables").as_uri(), values=case.values, orphan_hours=0,
            )
            for who in ("job", "rows")
        )  # fmt: skip
        reports = []
        seconds = timed(lambda: reports.append(run(spark, ours, SilentProgress())))  # noqa: B023  called at once
        prepare(theirs)
        beside = timed(lambda: by_rows(spark, theirs, folder / f"rows-{number}"))  # noqa: B023
        if not rows_in(ours) == rows_in(theirs) == case.records:
            raise SystemExit(f"{case.name}: {rows_in(ours)} and {rows_in(theirs)} rows of {case.records}")
        if number:
            job.append(round(seconds, 3))
            plain.append(round(beside, 3))
    ratio = statistics.median(there / here for here, there in zip(job, plain, strict=True))
    figures = {
        "case": case.name,
        "records": case.records,
        "bytes": topic.bytes,
        "file_bytes": reports[0].file_bytes,
        "job_s": job,
        "rows_s": plain,
        "records_per_s": round(case.records / statistics.median(job)),
        "log_mb_per_s": round(topic.bytes / statistics.median(job) / 1e6),
        "ratio": round(ratio, 2),
        "goal": case.goal,
        "met": ratio >= case.goal,
    }
    return [figures]


def prepare(options: ExportOptions) -> None:
    table = open_table(options)
    table.prepare(options.columns().schema)
    table.close()


def line(one: Figures) -> str:
    return (
        f"{one['case']}: job {statistics.median(one['job_s']):.2f} s, {one['records_per_s']:,} records/s, "
        f"{one['log_mb_per_s']} MB/s of log, row writer {statistics.median(one['rows_s']):.2f} s"
    )


ROW = BenchRow("export", __doc__ or "", CASES, measure, line)

if __name__ == "__main__":
    sys.exit(ROW.main())
