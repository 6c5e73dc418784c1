"""`tidelog spark compact`: compaction of tiered topics, beside the running cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from common.settings import LONG_MAX
from tidelog.spark_jobs.spark_job import Partitions, SparkOptions, Tier, Topics, spark_job


def compact(
    tier: Tier,
    topic: Topics = None,
    partitions: Partitions = "",
    min_dirty_ratio: Annotated[
        float, typer.Option(min=0, max=1, help="Pass over partitions with a smaller share of uncompacted bytes.")
    ] = 0.0,
    delete_retention_ms: Annotated[
        int | None, typer.Option(min=0, max=LONG_MAX, help="How long deletes stay, in place of the topic's setting.")
    ] = None,
    min_compaction_lag_ms: Annotated[
        int | None,
        typer.Option(min=0, max=LONG_MAX, help="How long records stay as they are, in place of the topic's setting."),
    ] = None,
    assume_compacted: Annotated[
        bool, typer.Option("--assume-compacted", help="Also topics that the exported metadata does not call so.")
    ] = False,
    wait: Annotated[float, typer.Option(min=1, help="Seconds for leaders to decide.")] = 300,
    *,
    spark: SparkOptions,
) -> None:
    """Leave the newest record of each key in the tier of compacted topics; without --topic, of all of them.

    Exit code 1 when a partition could not be read, or its leader refused: nothing of it is changed then.
    """
    with spark_job("compact", spark) as job:
        from spark_offload.compaction.job import CompactionOptions, make_plan, run  # noqa: PLC0415  heavy, as all of Spark

        options = CompactionOptions(
            **spark.choice(tier, topic, partitions),
            min_dirty_ratio=min_dirty_ratio,
            delete_retention_ms=delete_retention_ms,
            min_compaction_lag_ms=min_compaction_lag_ms,
            assume_compacted=assume_compacted,
            verdict_s=wait,
        )
        planned = make_plan(options)
        job.show(run(job.spark, options, job.progress, planned))
