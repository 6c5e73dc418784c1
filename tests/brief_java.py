"""Java for tests: its processes live for seconds, so they compile quickly and take Spark's classes from an archive.

    python -m tests.brief_java

makes the archive, once for an environment. Without it each process reads, checks and links some 20,000 classes from
Spark's jars again. Java leaves an archive alone that does not fit its version or its class path. Where Java cannot make
one, an empty file says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # no optimising compiler and no collector with threads of its own
SUBMITTED, DAEMONS = "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"  # what Spark's scripts read


def java_options(archive: Path = ARCHIVE) -> str:
    is_there = archive.exists() and archive.stat().st_size
    return f"{QUICK} -XX:SharedArchiveFile={archive} -Xlog:cds*=off" if is_there else QUICK


def use_brief_java(environment: MutableMapping[str, str], archive: Path = ARCHIVE) -> None:
    """Let drivers, masters and workers that inherit `environment` run so, unless other options are there."""
    for name in (SUBMITTED, DAEMONS):
        environment.setdefault(name, java_options(archive))


def executors(archive: Path = ARCHIVE) -> str:
    """The setting with which executors of a cluster run so."""
    return f"spark.executor.extraJavaOptions={java_options(archive)}"


def make_archive(archive: Path = ARCHIVE) -> None:
    """Run a session that archives the classes which it has loaded when it ends."""
    fresh = archive.with_suffix(f".{os.getpid()}")
    environment = os.environ | {
        SUBMITTED: f"{QUICK} -XX:ArchiveClassesAtExit={fresh} -Xlog:disable",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with tempfile.TemporaryDirectory(prefix="tidelog-java-") as work:
        done = subprocess.run(
            [sys.executable, "-m", "tests.brief_java", work],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode or not fresh.exists():
        print(f"no archive of Spark's classes, so its tests take longer: {done.stderr[-2000:]}", file=sys.stderr)
        fresh.touch()
    os.replace(fresh, archive)


def load_classes(work: Path) -> None:
    """Read a tier and write a table, as most sessions of the tests do."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  heavy

    from spark_offload.java_home import ensure_java  # noqa: PLC0415  of Spark's room
    from tests.spark_offload.tier_builder import TierBuilder, plain_batches  # noqa: PLC0415

    ensure_java(work / "java")
    tier = TierBuilder(work / "tier")
    partition = tier.partition("words", 0)
    partition.add(plain_batches(0, 50))
    partition.publish()
    builder: SparkSession.Builder = SparkSession.builder
    session = (
        builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
    )
    frame = session.read.format("tidelog").options(tier=tier.uri, topic="words").load()
    frame.groupBy("key").count().write.parquet(str(work / "table"))
    session.read.parquet(str(work / "table")).orderBy("key").collect()
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.proc.stdin.close()  # Java ends with its standard input
    gateway.proc.wait()


if __name__ == "__main__":
    if sys.argv[1:]:
        load_classes(Path(sys.argv[1]))
    else:
        make_archive()
