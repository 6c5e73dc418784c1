"""Copying closed segments to a local directory, and reading them back: Tidelog alone, and beside Apache Kafka.

Apache Kafka runs with `LocalTieredStorage` of its storage test jar, the one implementation that comes with it. On both
the topic is filled first and tiered then, so that copying is measured alone.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bench.peers import KAFKA_VERSION, KafkaPeer, Peer, TidelogPeer, cpu_seconds, kafka_jars
from bench.rows import Figure, Scene, figure
from bench.tier.topics import MIB, Topics, run_load

SIZE, PARTITIONS, RECORD_BYTES = 600 * MIB, 6, 1_024
SEGMENT = 16 * MIB
COPIES = 4
LOOK_MS = 100
SETTLE_S = 2.0
STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
TEST_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tidelog</groupId><artifactId>tiered-peer</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-storage</artifactId><version>{KAFKA_VERSION}</version>
<classifier>test</classifier></dependency></dependencies></project>
"""


@dataclass(slots=True)
class Measured:
    """CPU is that of all nodes, in seconds per gigabyte."""

    copy_mb_s: float
    copy_cpu_s_gb: float
    read_mb_s: float
    read_cpu_s_gb: float


def storage_jars(work: Path) -> Path:
    """The folder with the storage test jar, fetched by Maven when it is missing."""
    jars = work / f"kafka-storage-{KAFKA_VERSION}-test"
    if not (jars / "done").exists():
        jars.mkdir(parents=True, exist_ok=True)
        (jars / "pom.xml").write_text(TEST_POM)
        line = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DexcludeTransitive=true",
                f"-DoutputDirectory={jars}"]  # fmt: skip
        subprocess.run(line, cwd=jars, check=True)
        (jars / "done").touch()
    return jars


def tiered_kafka(work: Path) -> KafkaPeer:
    jars = kafka_jars(work)
    extra = storage_jars(work)
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": STORAGE,
        "rsm.config.dir": str(work / "kafka-tier"),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
        "remote.log.manager.task.interval.ms": str(LOOK_MS),
        "remote.log.manager.copier.thread.pool.size": str(COPIES),
        "log.retention.check.interval.ms": "500",
    }
    return KafkaPeer(work, jars, settings, [extra])


def tiered_tidelog(work: Path) -> TidelogPeer:
    return TidelogPeer(
        work,
        {
            "tidelog.tier.interval.ms": str(LOOK_MS),
            "tidelog.tier.copy.threads": str(COPIES),
            "log.retention.check.interval.ms": "500",
        },
    )


def measure(peer: Peer, size: int) -> Measured:
    """Fill a topic of one replica, let it be tiered, let the brokers forget it, read it."""
    peer.start()
    try:
        topics = Topics(peer.bootstrap)
        topic = topics.create(PARTITIONS, 1, {"segment.bytes": str(SEGMENT)})
        topics.fill(topic, PARTITIONS, size, RECORD_BYTES)
        time.sleep(SETTLE_S)
        pids = peer.pids()
        cpu, began = cpu_seconds(pids), time.monotonic()
        topics.configure(topic, remote_storage_enable="true")
        found = topics.wait(topic, PARTITIONS, lambda seen: seen.records - seen.tiered <= _open_records())
        seconds, used = time.monotonic() - began, cpu_seconds(pids) - cpu
        copied = found.tiered * RECORD_BYTES / 1e9
        topics.configure(topic, local_retention_bytes="1", local_retention_ms="1000")
        cold = topics.wait(topic, PARTITIONS, lambda seen: seen.local <= _open_records())
        records = cold.records - cold.local
        cpu = cpu_seconds(pids)
        read = run_load(
            "bench.tier.loads",
            "read",
            peer.bootstrap,
            {"topic": topic, "partitions": PARTITIONS, "records": records},
        )
        read_cpu = (cpu_seconds(pids) - cpu) / read["gigabytes"]
        return Measured(1e3 * copied / seconds, used / copied, read["mb_s"], read_cpu)
    finally:
        peer.stop()


def _open_records() -> int:
    """At most this many records are in segments that are not closed yet."""
    return PARTITIONS * SEGMENT // RECORD_BYTES


def copying(scene: Scene) -> list[Figure]:
    size = scene.sized(SIZE, 200 * MIB)
    found, puts, puts_cpu = [], [], []
    for _ in range(scene.rounds):
        found.append(measure(tiered_tidelog(scene.work), size))
        folder = scene.work / "puts"
        arguments = {"size": SEGMENT, "count": max(4, size // SEGMENT), "at_once": COPIES}
        put = run_load("bench.tier.loads", "put_objects", folder.resolve().as_uri(), arguments)
        shutil.rmtree(folder, ignore_errors=True)
        puts.append(put["mb_s"])
        puts_cpu.append(put["cpu_s_gb"])
        scene.say(f"copy {found[-1].copy_mb_s:.0f} MB/s, {found[-1].copy_cpu_s_gb:.2f} s/GB; PUTs {puts[-1]:.0f} MB/s")
    return [
        figure("copy", "MB/s", [one.copy_mb_s for one in found], "the store's PUTs", puts),
        figure("copy, CPU", "s/GB", [one.copy_cpu_s_gb for one in found], "the store's PUTs", puts_cpu),
    ]


def beside_kafka(scene: Scene) -> list[Figure]:
    size = scene.sized(SIZE, 200 * MIB)
    ours: list[Measured] = []
    theirs: list[Measured] = []
    for number in range(scene.rounds):
        for is_ours in (True, False) if number % 2 == 0 else (False, True):
            peer = tiered_tidelog(scene.work) if is_ours else tiered_kafka(scene.work)
            try:
                done = measure(peer, size)
            finally:
                shutil.rmtree(scene.work / "kafka-tier", ignore_errors=True)
            (ours if is_ours else theirs).append(done)
            scene.say(f"{peer.name}: copy {done.copy_mb_s:.0f} MB/s, {done.copy_cpu_s_gb:.2f} s/GB; "
                      f"cold read {done.read_mb_s:.0f} MB/s, {done.read_cpu_s_gb:.2f} s/GB")  # fmt: skip
    beside = f"Apache Kafka {KAFKA_VERSION}"
    return [
        figure("copy", "MB/s", [one.copy_mb_s for one in ours], beside, [one.copy_mb_s for one in theirs]),
        figure("copy, CPU", "s/GB", [one.copy_cpu_s_gb for one in ours], beside, [one.copy_cpu_s_gb for one in theirs]),
        figure("cold read", "MB/s", [one.read_mb_s for one in ours], beside, [one.read_mb_s for one in theirs]),
        figure("cold read, CPU", "s/GB", [one.read_cpu_s_gb for one in ours], beside,
               [one.read_cpu_s_gb for one in theirs]),
    ]  # fmt: skip
