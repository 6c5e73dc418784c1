"""The jobs on a Spark cluster of two workers, unchanged: by --master and by spark-submit, with an executor killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from object_store.blocking import BlockingStore
from tests.brief_java import executors
from tests.spark_offload.pretend_leader import PretendLeader
from tests.spark_offload.standalone_cluster import SPARK_HOME, StandaloneCluster, python_without_tidelog
from tests.spark_offload.tier_builder import NOW, BuiltPartition, TierBuilder, plain_batches
from tidelog import spark_submit
from tidelog.spark_jobs.code_archive import write_archive
from tiering.bucket.cluster_file import begin_incarnation
from tiering.jobs.proposal import Proposal

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(600)]

EXECUTORS = ("spark.executor.memory=512m", "spark.executor.cores=1", "spark.ui.enabled=false", executors())
CONF = [word for setting in EXECUTORS for word in ("--conf", setting)]
ONE_EXECUTOR = [*CONF, "--conf", "spark.cores.max=1"]  # where two prove no more: each is seconds of starting
JOB_TIMEOUT_S = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Its executors have everything that is installed here but Tidelog's own code, unless a job says otherwise."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def built(directory: Path) -> tuple[TierBuilder, list[BuiltPartition]]:
    tier = TierBuilder(directory / "tier")
    partitions = []
    for number in range(3):
        partition = tier.partition("words", number)
        for start in (0, 70):
            partition.add(plain_batches(start, 70))
        partition.publish()
        partitions.append(partition)
    return tier, partitions


def has_key(partition: BuiltPartition) -> bool:
    """Whether a record of the partition has the key k3. Nothing is compressed."""
    return any(b"\x04k3" in partition.file_of(segment).read_bytes() for segment in partition.segments)


def ran(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"} | (environment or {}),
    )
    assert done.returncode in (0, 1), done.stderr[-4000:]
    return done


def tidelog(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-m", "tidelog", "spark", *words], environment)


def counts(printed: str) -> list[tuple[int, int]]:
    return [(row["partition"], row["records"]) for row in map(json.loads, printed.splitlines())]


def test_spark_submit_brings_the_code(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Executors have no Tidelog installed: --py-files brings it, and `spark_submit.py` takes the job's name."""
    tier, _ = built(tmp_path)
    archive = tmp_path / "tidelog.zip"
    assert write_archive(archive) > 200
    bare = {"PYSPARK_PYTHON": str(python_without_tidelog(tmp_path)), "PYSPARK_DRIVER_PYTHON": sys.executable}
    without = tidelog(
        "read", "--tier", tier.uri, "--topic", "words", "--master", cluster.master, "--count", *CONF, environment=bare
    )
    assert without.returncode == 1
    assert "spark_offload" in without.stderr  # is what they miss
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master, "--py-files", str(archive), *CONF]
    command += [spark_submit.__file__, "read", "--tier", tier.uri, "--topic", "words", "--count", "--json"]
    done = ran(command, bare | {"SPARK_HOME": str(SPARK_HOME)})
    rows = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert counts("\n".join(rows)) == [(0, 140), (1, 140), (2, 140)], done.stderr[-3000:]


def test_an_erasure_goes_on_when_an_executor_is_killed(cluster: StandaloneCluster, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path)
    assert all(map(has_key, partitions))
    killed: list[int] = []

    def judge(proposal: Proposal) -> str | None:
        if not killed:
            killed.append(cluster.kill_executor())
        return None

    keys = tmp_path / "keys"
    keys.write_bytes(b"6b33\n6b3939\n")  # k3 and k99 in hex
    where = ("--tier", tier.uri, "--topic", "words", "--master", cluster.master)
    with PretendLeader(partitions, judge=judge):
        done = tidelog(
            "erase", *where, "--key-file", str(keys), "--key-format", "hex", "--wait-gone", "5", "--json", *CONF
        )
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert killed
    assert all(row["proven"] for row in report["partitions"])
    assert (report["records_erased"], report["keys"], report["keys_found"]) == (60, 2, 1)
    assert not any(map(has_key, partitions))
    assert sum(segment.records or 0 for partition in partitions for segment in partition.segments) == 420 - 60


def test_the_other_jobs_run_there(cluster: StandaloneCluster, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path)
    with BlockingStore(tier.uri) as store:
        store.delete([tier.tier.cluster_file])  # verification reads it
        store.wait(lambda: begin_incarnation(store.store, tier.tier, NOW))
    where = ("--tier", tier.uri, "--topic", "words", "--master", cluster.master)
    with PretendLeader(partitions):
        done = tidelog("compact", *where, "--assume-compacted", "--json", *CONF)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [row["state"] for row in report["partitions"]] == ["swapped"] * 3
    left = tidelog("read", *where, "--count", "--json", *ONE_EXECUTOR)
    assert counts(left.stdout) == [(0, 7), (1, 7), (2, 7)]
    done = tidelog("verify", *where, "--deep", "--json", *ONE_EXECUTOR)
    assert [row["partition"] for row in json.loads(done.stdout)["partitions"]] == [0, 1, 2]
    output = tmp_path / "tables"
    done = tidelog("export", *where, "--to", "parquet", "--output", output.as_uri(), "--json", *ONE_EXECUTOR)
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(sorted(output.rglob("*.parquet")), partitioning=None).num_rows
    assert rows == 21
