"""`tidelog spark read`: records of the tier, or how many there are; no broker is asked."""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.settings import LONG_MAX
from tidelog.moments import milliseconds
from tidelog.output import EXIT_USAGE, fail, show
from tidelog.spark_jobs.spark_job import Partitions, SparkOptions, Tier, Topics, look, spark_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from spark_offload.running.job import JobOptions

BEFORE_RECORDS = datetime.fromtimestamp(0, UTC)  # a record without a timestamp has an earlier one


def read(
    tier: Tier,
    topic: Topics = None,
    partitions: Partitions = "",
    from_offset: Annotated[int | None, typer.Option(min=0, max=LONG_MAX, help="Offsets from this one on.")] = None,
    until_offset: Annotated[int | None, typer.Option(min=0, max=LONG_MAX, help="Offsets before this one.")] = None,
    since: Annotated[str | None, typer.Option(help="Timestamps from then on: ISO 8601, or milliseconds.")] = None,
    before: Annotated[str | None, typer.Option(help="Timestamps before then.")] = None,
    key: Annotated[str | None, typer.Option(help="Records with this key.")] = None,
    key_hex: Annotated[str | None, typer.Option(help="The same for a key that is no text.", metavar="HEX")] = None,
    headers: Annotated[bool, typer.Option("--headers", help="With their headers.")] = False,
    committed: Annotated[bool, typer.Option("--committed", help="Without aborted transactions.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many.")] = None,
    count: Annotated[bool, typer.Option("--count", help="How many there are in each partition.")] = False,
    *,
    spark: SparkOptions,
) -> None:
    """Print records in order of partition and offset, with --json one JSON object a line; or count them."""
    if key is not None and key_hex is not None:
        fail("give one of --key and --key-hex", EXIT_USAGE)
    wanted = _hex(key_hex) if key_hex is not None else key.encode() if key is not None else None
    moments = (
        milliseconds("--since", since) if since is not None else None,
        milliseconds("--before", before) if before is not None else None,
    )
    source = {"pushdown": "true", "isolation": "read_committed" if committed else "read_uncommitted"}
    source |= {"includeHeaders": "true"} if headers and not count else {}
    with spark_job("read", spark) as job:
        from spark_offload.running.job import JobOptions  # noqa: PLC0415  heavy, as all of Spark

        options = JobOptions(**spark.choice(tier, topic, partitions))
        look(options, source)
        columns = _columns(count=count, key=wanted is not None, headers=headers)
        found = filtered(table(job.spark, options, source, columns), from_offset, until_offset, moments, wanted)
        if count:
            _show_counts(found, spark.as_json)
        else:
            _show_records(found, limit, spark.as_json)


def table(spark: SparkSession, options: JobOptions, source: dict[str, str], columns: str) -> DataFrame:
    return spark.read.format("tidelog").schema(columns).options(**options.source_options(source)).load()


def filtered(
    records: DataFrame,
    from_offset: int | None,
    until_offset: int | None,
    moments: tuple[int | None, int | None],
    key: bytes | None,
) -> DataFrame:
    """The records with the requested offsets, timestamps (ms) and key."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    since, before = moments
    if from_offset is not None:
        records = records.where(f.col("offset") >= from_offset)
    if until_offset is not None:
        records = records.where(f.col("offset") < until_offset)
    if since is not None:
        records = records.where(f.col("timestamp") >= f.lit(_moment(since)))
    if before is not None:
        records = records.where(f.col("timestamp") < f.lit(_moment(before)))
    if key is not None:
        records = records.where(f.col("key") == f.lit(key))
    return records


def _columns(*, count: bool, key: bool, headers: bool) -> str:
    columns = "topic string, partition int, offset bigint, timestamp timestamp"
    if count:
        return columns + (", key binary" if key else "")
    more = ", headers array<struct<key:string,value:binary>>" if headers else ""
    return f"{columns}, key binary, value binary{more}"


def _show_counts(records: DataFrame, as_json: bool) -> None:
    from pyspark.sql import functions as f  # noqa: PLC0415

    counted = records.groupBy("topic", "partition").agg(
        f.count("*").alias("records"),
        f.min("offset").alias("first_offset"),
        f.max("offset").alias("last_offset"),
        f.min("timestamp").alias("first_time"),
        f.max("timestamp").alias("last_time"),
    )
    rows = [
        row.asDict() | {name: _iso(row[name]) for name in ("first_time", "last_time")}
        for row in counted.orderBy("topic", "partition").collect()
    ]
    columns = ["topic", "partition", "records", "first_offset", "last_offset", "first_time", "last_time"]
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    show(rows, as_json=False, columns=columns, empty="no records")
    print(f"{sum(row['records'] for row in rows):,} records")


def _show_records(records: DataFrame, limit: int | None, as_json: bool) -> None:
    """Spark returns the splits one after another, in order, so nothing is sorted or kept."""
    for row in islice(records.toLocalIterator(), limit):
        print(json.dumps(_fields(row)) if as_json else _line(row))
    sys.stdout.flush()


def _fields(row: Row) -> dict[str, Any]:
    """Bytes that are not UTF-8 are encoded as base64, under a name that says so."""
    fields: dict[str, Any] = {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": _iso(row["timestamp"]),
    }
    fields |= _readable("key", row["key"]) | _readable("value", row["value"])
    if "headers" in row:
        fields["headers"] = [{"key": one["key"]} | _readable("value", one["value"]) for one in row["headers"] or ()]
    return fields


def _readable(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _line(row: Row) -> str:
    fields = _fields(row)
    place = f"{fields['topic']}-{fields['partition']} {fields['offset']} {fields['timestamp']}"
    rest = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in list(fields.items())[4:]]
    return " ".join([place, *rest])


def _iso(moment: datetime | None) -> str | None:
    """None for a record without a timestamp. Spark returns local times without a zone."""
    if moment is None:
        return None
    known = moment.astimezone(UTC)
    return None if known < BEFORE_RECORDS else known.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        fail(f"--key-hex takes hex digits, not {text!r}", EXIT_USAGE)
