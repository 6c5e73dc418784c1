"""`tidelog spark erase`: every record with one of the given keys leaves a topic, and a report proves it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tidelog.output import EXIT_USAGE, fail
from tidelog.spark_jobs.spark_job import OneTopic, Partitions, SparkOptions, Tier, look, spark_job


def erase(
    tier: Tier,
    topic: OneTopic,
    key_file: Annotated[Path, typer.Option("--key-file", help="The keys, one a line.", metavar="FILE")],
    key_format: Annotated[str, typer.Option(help="What a line is: text, hex or base64.")] = "text",
    prove: Annotated[bool, typer.Option("--prove", help="Change nothing: look whether a key is left.")] = False,
    partitions: Partitions = "",
    wait: Annotated[float, typer.Option(min=1, help="Seconds for leaders to tier and to decide.")] = 600,
    wait_gone: Annotated[float, typer.Option(min=0, help="Seconds for replaced objects to go.")] = 180,
    *,
    spark: SparkOptions,
) -> None:
    """Erase all records with these keys that were acknowledged before the command began, and prove that they are gone.

    Exit code 1 unless it is proven. Objects that are no part of the topic any more and still hold records are named.
    """
    with spark_job("erase", spark) as job:
        from spark_offload.erasure.job import ErasureOptions, run  # noqa: PLC0415  heavy, as all of Spark
        from spark_offload.erasure.key_digests import SECRET_BYTES, ErasureKeys  # noqa: PLC0415
        from spark_offload.erasure.key_file import LINE_BYTES_MAX, read_keys  # noqa: PLC0415
        from spark_offload.erasure.leaders import Waits  # noqa: PLC0415

        try:
            with open(key_file, "rb") as lines:
                bounded = iter(partial(lines.readline, LINE_BYTES_MAX + 1), b"")
                keys = ErasureKeys(read_keys(bounded, key_format), os.urandom(SECRET_BYTES))
        except OSError as error:
            fail(f"the key file cannot be read: {error.strerror}", EXIT_USAGE)
        options = ErasureOptions(
            **spark.choice(tier, [topic], partitions),
            keys=keys,
            seed=os.urandom(16),
            prove_only=prove,
            waits=Waits(ready_s=wait, verdict_s=wait, gone_s=wait_gone),
        )
        look(options, passes_over_damage=True)
        job.show(run(job.spark, options, job.progress))
