"""10,000 partitions on three brokers: creation, idling, a killed broker, a restart; `python -m bench --partitions`.

Figures are absolute, because each has an absolute goal: seconds, share of a core, megabytes, open files.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench.embedded import EmbeddedCluster
from bench.peers import cpu_seconds, resident_mb, wait_serving

TOPICS, PARTITIONS_EACH = 10, 1_000
IDLE_S = 20.0
DEADLINE_S = 180.0


@dataclass(slots=True)
class Figure:
    name: str
    value: float
    unit: str
    bound: float

    @property
    def met(self) -> bool:
        return self.value < self.bound


def leaders(admin: AdminClient) -> dict[tuple[str, int], int]:
    """The leader of every partition, -1 where there is none."""
    topics = admin.list_topics(timeout=30).topics
    return {
        (name, index): partition.leader
        for name, topic in topics.items()
        if name.startswith("many-")
        for index, partition in topic.partitions.items()
    }


def whole_isrs(admin: AdminClient) -> int:
    """How many partitions have all replicas in sync."""
    topics = admin.list_topics(timeout=30).topics
    return sum(
        len(partition.isrs) == len(partition.replicas)
        for name, topic in topics.items()
        if name.startswith("many-")
        for partition in topic.partitions.values()
    )


def wait_until(holds: Callable[[], bool]) -> float:
    """Seconds until `holds`."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > DEADLINE_S:
            raise TimeoutError("it takes too long")
        time.sleep(0.05)
    return time.monotonic() - began


def produce_one_each(bootstrap: str) -> int:
    """A record to every partition; how many were not acknowledged."""
    failed = [0]
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 60_000})
    for topic in range(TOPICS):
        for partition in range(PARTITIONS_EACH):
            producer.produce(
                f"many-{topic}",
                b"x",
                partition=partition,
                on_delivery=lambda error, _: failed.__setitem__(0, failed[0] + (error is not None)),
            )
        producer.poll(0)
    return failed[0] + producer.flush(120)


def broker_rows(cluster: EmbeddedCluster) -> list[dict[str, Any]]:
    return [node for node in cluster.nodes() if node["role"] == "broker" and node["pid"]]


class Measurement:
    """One cluster through its life; what fails to be acknowledged is counted in `failed`."""

    def __init__(self, cluster: EmbeddedCluster, console: Console) -> None:
        self.total = TOPICS * PARTITIONS_EACH
        self.found: list[Figure] = []
        self.failed = 0
        self._cluster = cluster
        self._console = console

    def _add(self, name: str, value: float, unit: str, bound: float) -> None:
        self.found.append(Figure(name, round(value, 2), unit, bound))
        self._tell(name, value, unit)

    def _tell(self, name: str, value: float, unit: str = "s") -> None:
        self._console.print(f"  {name}: {value:.2f} {unit}")

    def _led(self, admin: AdminClient) -> bool:
        return sum(1 for leader in leaders(admin).values() if leader >= 0) == self.total

    def create(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap})
        began = time.monotonic()
        futures = admin.create_topics([NewTopic(f"many-{i}", PARTITIONS_EACH, 3) for i in range(TOPICS)])
        for future in futures.values():
            future.result(120)
        wait_until(lambda: self._led(admin))
        self._add(f"{self.total} partitions created and led", time.monotonic() - began, "s", 60)
        began = time.monotonic()
        self.failed += produce_one_each(self._cluster.bootstrap)
        self._tell("a record to each partition", time.monotonic() - began)

    def idle(self) -> None:
        time.sleep(5)
        pids = [row["pid"] for row in broker_rows(self._cluster)]
        before = [cpu_seconds([pid]) for pid in pids]
        time.sleep(IDLE_S)
        used = [cpu_seconds([pid]) - was for pid, was in zip(pids, before, strict=True)]
        files = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
        self._add("idle CPU of a broker, the most", 100 * max(used) / IDLE_S, "% of a core", 5)
        self._add("memory of a broker, the most", max(resident_mb([pid]) for pid in pids), "MB", 400)
        self._add("open files of a broker, the most", max(files), "files", 5_000)

    def kill_one(self) -> None:
        """The leaderships move; then the broker comes back, and all that it hosts is in sync again."""
        led = list(leaders(AdminClient({"bootstrap.servers": self._cluster.bootstrap})).values()).count(0)
        self._cluster.command("kill", "broker-0")
        admin = AdminClient({"bootstrap.servers": ",".join(self._cluster.bootstrap.split(",")[1:])})
        moved = wait_until(lambda: all(leader > 0 for leader in leaders(admin).values()))
        self._add(f"{led} leaderships moved from a killed broker", moved, "s", 3)
        began = time.monotonic()
        self._cluster.command("start", "broker-0")
        wait_until(lambda: whole_isrs(admin) == self.total)
        self._tell("the killed broker back in every ISR", time.monotonic() - began)

    def restart(self) -> None:
        began = time.monotonic()
        self._cluster.command("down")
        self._tell("clean stop of the cluster", time.monotonic() - began)
        began = time.monotonic()
        self._cluster.up()
        wait_serving(self._cluster.bootstrap)
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap})
        wait_until(lambda: self._led(admin))
        self._add("restart of the cluster to serving", time.monotonic() - began, "s", 20)
        self.failed += produce_one_each(self._cluster.bootstrap)
        wait_until(lambda: whole_isrs(admin) == self.total)
        self._tell("a record to each partition, and every ISR whole", time.monotonic() - began)


def measure_partitions(work: Path, results: Path, console: Console) -> int:
    """0 when every goal is met and every record was acknowledged."""
    data = work / "partitions"
    shutil.rmtree(data, ignore_errors=True)
    with EmbeddedCluster(data=data) as cluster:
        measurement = Measurement(cluster, console)
        measurement.create()
        measurement.idle()
        measurement.kill_one()
        measurement.restart()
    shutil.rmtree(data, ignore_errors=True)
    table = Table(title="10,000 partitions, three replicas, three brokers")
    for column in ("figure", "value", "goal", ""):
        table.add_column(column)
    for figure in measurement.found:
        mark = "[green]✓[/]" if figure.met else "[red]✗[/]"
        table.add_row(figure.name, f"{figure.value:g} {figure.unit}", f"< {figure.bound:g}", mark)
    console.print(table)
    if measurement.failed:
        console.print(f"{measurement.failed} records were not acknowledged")
    results.mkdir(exist_ok=True)
    rows = [asdict(figure) | {"met": figure.met} for figure in measurement.found]
    (results / "partitions.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if not measurement.failed and all(figure.met for figure in measurement.found) else 1
