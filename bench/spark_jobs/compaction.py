"""`python -m bench.spark_jobs.compaction`: the compaction job beside the straightforward DataFrame plan.

Both read the same tiered topic with Spark on two cores and write what stays: the job new segments, the plan (the row
number of each record within its key, newest first, and the first ones sorted by offset) Parquet files. In turns, after
a round that does not count. What leaders take to exchange segments is not in it. Prints medians and ratios, saves
bench/results/spark_compaction.json, and ends 1 when a goal is missed, 2 without Java.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.spark_jobs.made_tier import MadeTopic
from bench.spark_jobs.row import BenchRow, Figures, timed
from spark_offload.compaction.job import CompactionOptions, make_plan
from spark_offload.compaction.partition_task import PartitionOutcome, compact_partition
from spark_offload.running.job import SilentStage
from spark_offload.running.task_runs import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Case(NamedTuple):
    name: str
    size: int
    records: int
    keys: int
    goal: float


CASES = [Case("100 B", 100, 2_100_000, 200_000, 6.0), Case("1 KiB", 1_024, 262_000, 93_000, 2.0)]


def by_job(spark: SparkSession, topic: MadeTopic) -> int:
    """How many records stay. New segments are named by nobody, and removed again afterwards."""
    options = CompactionOptions(tier=topic.uri, topics=(topic.name,), assume_compacted=True)
    tasks = make_plan(options).tasks
    outcomes: list[PartitionOutcome] = run_tasks(spark, compact_partition, tasks, SilentStage())
    for outcome in outcomes:
        if outcome.problem is not None:
            raise SystemExit(outcome.problem.line())
    return sum(output.records or 0 for one in outcomes for rewrite in one.rewrites for output in rewrite.outputs)


def by_plan(spark: SparkSession, topic: MadeTopic, target: Path) -> None:
    from pyspark.sql import Window  # noqa: PLC0415  heavy
    from pyspark.sql import functions as f  # noqa: PLC0415

    newest = Window.partitionBy("partition", "key").orderBy(f.desc("offset"))
    (
        spark.read.format("tidelog").option("tier", topic.uri).option("topic", topic.name).load()
        .withColumn("place", f.row_number().over(newest)).where("place = 1").drop("place")
        .repartition(2, "partition").sortWithinPartitions("partition", "offset")
        .write.mode("overwrite").parquet(str(target))
    )  # fmt: skip


def measure(spark: SparkSession, case: Case, folder: Path, rounds: int) -> list[Figures]:
    topic = MadeTopic(folder / "tier", f"t{case.size}", size=case.size, records=case.records, keys=case.keys)
    topic.make()
    inputs = set((folder / "tier").rglob("*.segment"))
    target = folder / "parquet"
    job: list[float] = []
    plain: list[float] = []
    for number in range(rounds + 1):
        kept: list[int] = []
        seconds = timed(lambda: kept.append(by_job(spark, topic)))  # noqa: B023  called at once
        beside = timed(lambda: by_plan(spark, topic, target))
        if spark.read.parquet(str(target)).count() != kept[0]:
            raise SystemExit(f"{case.name}: the job leaves {kept[0]} records, the plan another number")
        for file in set((folder / "tier").rglob("*.segment")) - inputs:
            file.unlink()
        if number:
            job.append(round(seconds, 3))
            plain.append(round(beside, 3))
    ratio = statistics.median(there / here for here, there in zip(job, plain, strict=True))
    figures = {
        "case": case.name,
        "records": case.records,
        "bytes": topic.bytes,
        "kept": kept[0],
        "job_s": job,
        "plan_s": plain,
        "records_per_s": round(case.records / statistics.median(job)),
        "ratio": round(ratio, 2),
        "goal": case.goal,
        "met": ratio >= case.goal,
    }
    return [figures]


def line(one: Figures) -> str:
    return (
        f"{one['case']}: job {statistics.median(one['job_s']):.2f} s, {one['records_per_s']:,} records/s, "
        f"DataFrame plan {statistics.median(one['plan_s']):.2f} s"
    )


ROW = BenchRow("compaction", __doc__ or "", CASES, measure, line)

if __name__ == "__main__":
    sys.exit(ROW.main())
