"""The systems that the benchmark starts: Tidelog by its command, Apache Kafka from its jars."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.embedded import EmbeddedCluster, free_ports

KAFKA_VERSION = "4.1.1"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tidelog</groupId><artifactId>peer</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""


class MissingTool(Exception):
    """Java or Maven is not there; the text says which."""


def kafka_jars(work: Path, version: str = KAFKA_VERSION) -> Path:
    """The folder of Apache Kafka's jars, fetched by Maven when it is missing; KAFKA_JARS names another."""
    if given := os.environ.get("KAFKA_JARS"):
        return Path(given)
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise MissingTool(f"{tool} is not installed, so Apache Kafka {version} cannot be run here")
    jars = work / f"kafka-{version}"
    if not (jars / "done").exists():
        jars.mkdir(parents=True, exist_ok=True)
        (jars / "pom.xml").write_text(POM.replace("{version}", version))
        line = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        subprocess.run(line, cwd=jars, check=True)
        (jars / "done").touch()
    return jars


class Peer(Protocol):
    """A running cluster of three brokers. `start_s` is from the command to serving."""

    name: str
    bootstrap: str
    start_s: float

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def pids(self) -> list[int]: ...
    def kill(self, broker: int) -> None: ...
    def revive(self, broker: int) -> None: ...


def wait_serving(bootstrap: str, brokers: int = 3) -> None:
    """Until a client sees all brokers."""
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if len(client.list_topics(timeout=1).brokers) >= brokers:
                return
        except KafkaException:
            pass
        time.sleep(0.02)
    raise TimeoutError(f"{bootstrap} does not serve")


class TidelogPeer:
    name = "tidelog"

    def __init__(self, work: Path, settings: Mapping[str, str] | None = None) -> None:
        self._data = work / "tidelog"
        self._settings = dict(settings or {})
        self.start_s = 0.0

    def start(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)
        self._cluster = EmbeddedCluster(settings=self._settings, data=self._data)
        began = time.monotonic()
        self._cluster.up()
        self.bootstrap = self._cluster.bootstrap
        wait_serving(self.bootstrap)
        self.start_s = time.monotonic() - began

    def stop(self) -> None:
        self._cluster.command("down")
        shutil.rmtree(self._data, ignore_errors=True)

    def pids(self) -> list[int]:
        return [node["pid"] for node in self._cluster.nodes() if node["pid"]]

    def kill(self, broker: int) -> None:
        self._cluster.command("kill", f"broker-{broker}")

    def revive(self, broker: int) -> None:
        self._cluster.command("start", f"broker-{broker}")


class KafkaPeer:
    """Three nodes that are broker and controller each, as Apache Kafka's quick start has them."""

    name = "kafka"

    def __init__(
        self, work: Path, jars: Path, settings: Mapping[str, str] | None = None, more_jars: Sequence[Path] = ()
    ) -> None:
        """`settings` and the folders of `more_jars` come to those of the quick start."""
        self._work = work / "kafka"
        self._class_path = ":".join(f"{folder}/*" for folder in (jars, *more_jars))
        self._settings = "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.start_s = 0.0

    def start(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True)
        port = free_ports(8)
        self.bootstrap = ",".join(f"127.0.0.1:{port + node}" for node in (0, 1, 2))
        voters = ",".join(f"{node}@127.0.0.1:{port + 4 + node}" for node in (0, 1, 2))
        for node in (0, 1, 2):
            (self._work / f"{node}.properties").write_text(
                f"process.roles=broker,controller\nnode.id={node}\ncontroller.quorum.voters={voters}\n"
                f"listeners=PLAINTEXT://127.0.0.1:{port + node},CONTROLLER://127.0.0.1:{port + 4 + node}\n"
                "inter.broker.listener.name=PLAINTEXT\ncontroller.listener.names=CONTROLLER\n"
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
                f"log.dirs={self._work}/data-{node}\ndefault.replication.factor=3\noffsets.topic.replication.factor=3\n"
                "min.insync.replicas=2\ngroup.initial.rebalance.delay.ms=0\n" + self._settings
            )
            self._run("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", f"{node}.properties").wait()
        began = time.monotonic()
        for node in (0, 1, 2):
            self.revive(node)
        wait_serving(self.bootstrap)
        self.start_s = time.monotonic() - began

    def _run(self, main: str, *arguments: str, memory: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        line = ["java", *memory, "-cp", self._class_path, main, *arguments]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(line, cwd=self._work, stdout=quiet, stderr=quiet)

    def stop(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        shutil.rmtree(self._work, ignore_errors=True)

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def kill(self, broker: int) -> None:
        process = self._processes.pop(broker)
        process.kill()
        process.wait()

    def revive(self, broker: int) -> None:
        memory = ("-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
        self._processes[broker] = self._run("kafka.Kafka", f"{broker}.properties", memory=memory)


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of the processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_SECOND


def resident_mb(pids: list[int]) -> float:
    """Resident memory of the processes, in megabytes."""
    total_kb = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                total_kb += int(line.split()[1])
    return total_kb / 1024
