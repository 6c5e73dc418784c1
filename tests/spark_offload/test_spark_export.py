"""Exports by Spark's own processes: batch runs, a stream, buckets, and the command with a process that is killed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiobotocore.session import get_session
from pyarrow.fs import S3FileSystem

from object_store.blocking import BlockingStore
from records.record import Record
from spark_offload.export.job import run
from spark_offload.export.options import ExportOptions
from spark_offload.running.job import SilentProgress
from tests.prepared_command import prepared
from tests.spark_offload.export_rows import RandomPartition, data_files, random_partitions, rows_of, table_of
from tests.spark_offload.tier_builder import NOW, BuiltPartition, TierBuilder, batch, plain_batches

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "continuous_export.py"
BUCKET = "exports"


@pytest.fixture
def tier(tmp_path: Path) -> TierBuilder:
    return TierBuilder(tmp_path / "tier")


def all_rows(partitions: list[RandomPartition]) -> list[Any]:
    return [row for partition in partitions for row in partition.rows]


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_what_is_new_is_exported_by_executors(
    spark: SparkSession, tier: TierBuilder, tmp_path: Path, kind: str
) -> None:
    partitions = random_partitions(tier, "flights", 3, seed=21)
    options = ExportOptions(
        tier=tier.uri, topics=("flights",), to=kind, output=(tmp_path / kind).as_uri(), include_headers=True,
        task_bytes=4096,
    )  # fmt: skip
    for _ in range(2):
        for partition in partitions:
            partition.grow()
        report = run(spark, options, SilentProgress())
        assert not report.failed
        assert json.loads(json.dumps(report.as_json()))["rows"] == report.rows
        assert rows_of(table_of(options)) == all_rows(partitions)
    assert run(spark, options, SilentProgress()).version == ""
    if kind == "parquet":
        folder = tmp_path / "parquet"
        assert json.loads((folder / "_SUCCESS").read_text())["version"] == 2
        found = spark.read.parquet(str(folder)).where("partition = 1").orderBy("offset").collect()
        assert [row["offset"] for row in found] == [row.seen.offset for row in partitions[1].rows]


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_from_a_bucket_to_a_bucket(
    spark: SparkSession, tier: TierBuilder, tmp_path: Path, kind: str, moto_endpoint: str
) -> None:
    partitions = random_partitions(tier, "flights", 2, seed=22)
    for partition in partitions:
        partition.grow()

    async def make_bucket() -> None:
        async with get_session().create_client("s3", endpoint_url=moto_endpoint, region_name="us-east-1") as client:
            found = await client.list_buckets()
            if BUCKET not in [one["Name"] for one in found["Buckets"]]:
                await client.create_bucket(Bucket=BUCKET)

    asyncio.run(make_bucket())
    place = f"s3://{BUCKET}/{kind}-%s?endpoint={moto_endpoint}&region=us-east-1"
    with BlockingStore(place % "tier") as store:
        for path in sorted(tier.root.rglob("*")):
            if path.is_file():
                store.put(str(path.relative_to(tier.root)), path.read_bytes())
    options = ExportOptions(
        tier=place % "tier", topics=("flights",), to=kind, output=place % "tables", include_headers=True,
        catalog_file=str(tmp_path / "catalog.sqlite") if kind == "iceberg" else "",
    )  # fmt: skip
    system = S3FileSystem(endpoint_override=moto_endpoint, region="us-east-1")
    report = run(spark, options, SilentProgress())
    assert not report.failed
    assert rows_of(table_of(options, system)) == all_rows(partitions)
    with BlockingStore(place % "tables") as store:
        everything = [info.key for info in store.list("")]
        assert sum(key.endswith(".parquet") for key in everything) == report.files
        orphan = next(key for key in everything if key.endswith(".parquet")).replace(".parquet", "-old.parquet")
        store.put(orphan, b"of a run that was killed")
    swept = run(spark, options, SilentProgress()).swept
    assert swept == 0  # it is young


def add_segment(partition: BuiltPartition, first: int, count: int) -> None:
    partition.add(plain_batches(first, count))
    partition.publish()


def test_the_example_exports_for_as_long_as_it_runs(
    spark: SparkSession, tier: TierBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specification = importlib.util.spec_from_file_location("continuous_export", EXAMPLE)
    assert specification is not None
    assert specification.loader is not None
    example: ModuleType = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    partitions = [tier.partition("flights", number) for number in range(2)]
    options = ExportOptions(tier=tier.uri, topics=("flights",), to="iceberg", output=(tmp_path / "tables").as_uri())

    def stream(checkpoints: str) -> None:
        example.main(tier.uri, "flights", options.output, str(tmp_path / checkpoints))

    def offsets() -> list[tuple[int, int]]:
        return [(row.partition, row.seen.offset) for row in rows_of(table_of(options))]

    for number, partition in enumerate(partitions):
        add_segment(partition, 0, 40 + number)
    stream("one")
    assert offsets() == [(0, at) for at in range(40)] + [(1, at) for at in range(41)]
    assert run(spark, options, SilentProgress()).rows == 0
    add_segment(partitions[0], 40, 20)
    stream("one")
    add_segment(partitions[0], 60, 20)
    assert run(spark, options, SilentProgress()).rows == 20
    expected = [(0, at) for at in range(80)] + [(1, at) for at in range(41)]
    assert offsets() == expected
    add_segment(partitions[1], 41, 20)
    stream("two")  # a checkpoint that was lost
    stream("one")
    assert offsets() == expected + [(1, at) for at in range(41, 61)]


# the command -------------------------------------------------------------------------------------------------


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tidelog", "spark", "export", "--master", "local[2]", *words]


def tidelog(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.timeout(600)
@pytest.mark.processes
def test_a_command_that_is_killed_and_given_again(tier: TierBuilder, tmp_path: Path) -> None:
    partition = tier.partition("flights")
    schema = tmp_path / "flight.ddl"
    schema.write_text("delay double, carrier string")
    for first in range(0, 3000, 100):
        records = [
            Record(0, NOW + 60_000_000 * at, b"%d" % at, b'{"delay": %d, "carrier": "UA"}' % at)
            for at in range(first, first + 100)
        ]
        partition.add([batch(records, first)])
    partition.publish()
    words = ["--tier", tier.uri, "--topic", "flights", "--to", "iceberg", "--output", (tmp_path / "tables").as_uri()]
    words += ["--value-format", "json", "--value-schema", str(schema), "--json"]
    process = subprocess.Popen(
        command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    give_up = time.monotonic() + 200
    while not data_files(tmp_path / "tables") and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = tidelog(*words)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rows"] in (0, 3000)  # 0: it was killed after its commit
    options = ExportOptions(tier=tier.uri, topics=("flights",), to="iceberg", output=(tmp_path / "tables").as_uri())
    rows = sorted(table_of(options).to_pylist(), key=lambda row: row["offset"])
    assert [(row["offset"], row["delay"], row["carrier"]) for row in rows] == [(at, at, "UA") for at in range(3000)]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "csv"], "parquet or iceberg"),
        (["--to", "parquet"], "needs an output"),
        (["--to", "parquet", "--output", "file:///x", "--value-format", "json"], "need a schema"),
        (["--to", "parquet", "--output", "file:///x", "--value-schema", "/no/such/file"], "cannot be read"),
        (["--to", "iceberg", "--catalog-property", "uri"], "NAME=VALUE"),
        (["--to", "parquet", "--output", "file:///x", "--schema-id", "x=y"], "ID=FILE"),
    ],
)
def test_what_cannot_be_meant_ends_with_two(tier: TierBuilder, words: list[str], message: str) -> None:
    done = prepared(["spark", "export", "--master", "local[2]", "--tier", tier.uri, "--topic", "flights", *words])
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
