"""`tidelog spark verify`: proves that the tier is undamaged, and reports what is not."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.admin.admin_client import ClusterOptions, CommandConfig, admin_client
from tidelog.output import EXIT_USAGE, fail
from tidelog.spark_jobs.spark_job import Partitions, SparkOptions, Tier, Topics, spark_job
from tidelog.version import VERSION

if TYPE_CHECKING:
    from spark_offload.verification.comparing import KeyTables
    from spark_offload.verification.job import AskBrokers
    from spark_offload.verification.ledger import Ledger
    from spark_offload.verification.report import VerifyReport


def verify(
    tier: Tier,
    topic: Topics = None,
    partitions: Partitions = "",
    deep: Annotated[bool, typer.Option("--deep", help="Decode every record.")] = False,
    ledger: Annotated[
        Path | None, typer.Option(help="Acknowledged writes, CSV or Parquet: topic, partition, offset, key_hash.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="Compare the latest value of each key with this file, then write it again.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write report.html, report.json and Parquet tables there.", metavar="DIR")
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", help="Ask these brokers too what the tier should hold.", metavar="HOST:PORT,..."),
    ] = None,
    command_config: CommandConfig = None,
    record: Annotated[
        bool, typer.Option("--record/--no-record", help="Keep the outcome in the tier, where the cluster shows it.")
    ] = True,
    *,
    spark: SparkOptions,
) -> None:
    """Check every offset, batch, index, transaction and object of the tier. Exit code 1 when something is damaged."""
    with spark_job("verify", spark) as job:
        from spark_offload.verification.job import VerifyOptions, look_at_bucket, run  # noqa: PLC0415  heavy, as all of Spark

        chosen = spark.choice(tier, topic, partitions)
        options = VerifyOptions(
            **chosen, deep=deep, ledger=_ledger(ledger), keep_keys=keys is not None, known_keys=_known_keys(keys),
            record=record, version=VERSION,
        )  # fmt: skip
        options.reading()  # reports invalid options before a session is made
        if report is not None:
            _check_writable(f"--report {report}", report, make=True)
        if keys is not None:
            _check_writable(f"--keys {keys}", keys.parent)
        bucket = look_at_bucket(options)
        with asked_brokers(bootstrap, command_config) as ask:
            found = run(job.spark, options, job.progress, ask, bucket)
        job.show(found)
        if report is not None:
            _write(found, report)
        if keys is not None and not found.failed:
            _write_keys(found, keys)


def _ledger(path: Path | None) -> Ledger | None:
    if path is None:
        return None
    from spark_offload.verification.ledger import LedgerError, read_ledger  # noqa: PLC0415

    try:
        return read_ledger(path.read_bytes(), str(path))
    except OSError as error:
        fail(f"--ledger {path}: {error.strerror}", EXIT_USAGE)
    except LedgerError as error:
        fail(f"--ledger: {error}", EXIT_USAGE)


def _known_keys(path: Path | None) -> KeyTables | None:
    """The keys of an earlier run; None for the first one."""
    if path is None or not path.exists():
        return None
    from spark_offload.verification.comparing import KeysError, read_keys  # noqa: PLC0415

    try:
        return read_keys(path.read_bytes(), str(path))
    except (OSError, KeysError) as error:
        fail(f"--keys: {error}", EXIT_USAGE)


def _check_writable(what: str, directory: Path, *, make: bool = False) -> None:
    """Checked before hours of reading whose result could not be written."""
    try:
        if make:
            directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        fail(f"{what}: {error.strerror}", EXIT_USAGE)


def _write_keys(found: VerifyReport, path: Path) -> None:
    """Replace the file atomically, so that an interrupted run leaves the earlier one's."""
    from spark_offload.verification.comparing import keys_file  # noqa: PLC0415

    try:
        unfinished = path.with_name(f"{path.name}.new")
        unfinished.write_bytes(keys_file(found.keys))
        unfinished.replace(path)
    except OSError as error:
        fail(f"--keys {path}: {error.strerror}")


@contextmanager
def asked_brokers(bootstrap: str | None, command_config: Path | None) -> Iterator[AskBrokers | None]:
    """Asks brokers, if any are given, about a partition that disagrees with the bucket."""
    if bootstrap is None:
        yield None
        return
    from spark_offload.running.job import Problem  # noqa: PLC0415
    from spark_offload.verification.checks import Check  # noqa: PLC0415
    from tidelog.tier.access import ask_brokers, opened_store  # noqa: PLC0415
    from tidelog.tier.check import Patience, check_partition  # noqa: PLC0415
    from tiering.bucket.keys import PartitionPath  # noqa: PLC0415

    with admin_client(ClusterOptions(bootstrap, command_config)) as client:
        answers, patience = ask_brokers(client), Patience()
        with opened_store(answers, None) as opened:

            def ask(path: PartitionPath) -> list[Problem]:
                return [
                    Problem(Check.TIER_STATE, f"{one.what}: {one.text}", path.topic, path.partition)
                    for one in check_partition(client, opened, path, patience)
                    if not one.is_harmless
                ]

            yield ask


def _write(found: VerifyReport, directory: Path) -> None:
    from spark_offload.verification.report_files import report_files  # noqa: PLC0415

    started = datetime.fromtimestamp(found.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    try:
        for name, data in report_files(found, started).items():
            (directory / name).write_bytes(data)
    except OSError as error:
        fail(f"--report {directory}: {error.strerror}")
