"""What brokers' processors spend on a megabyte with cells and without: `python -m bench.kora --only cells_real`.

Six real brokers serve two tenants, either all of them both, or three each, in turns within one run. A tenant here is a
topic with producers and consumers of its own; its assignment says which brokers hold it, as a cell would. Everything
shares two processors, so the brokers' processor time is compared and no latency.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.embedded import EmbeddedCluster
from bench.kora.drawing import WITH, WITHOUT, plotted
from bench.kora.evidence import ALL, Evidence, Parts, Row, span
from bench.kora.lone_broker import counters
from tidelog.cluster.layout import load_layout

BROKERS, CELL, TENANTS, PARTITIONS, REPLICAS = 6, 3, 2, 60, 3
PRODUCERS, CONSUMERS = 4, 4  # of each tenant
RATE, RECORD_BYTES, LINGER_MS = 300, 1_000, 5  # records a second of each producer
WARM_S, STEP_S = 3.0, 12.0
TURNS = ("together", "cells", "cells", "together")
TICK_S = 0.001
READ_MIN, READ_MAX = 0.95, 1.05  # read while a step lasts, of what was written then
SETTINGS = {"log.dir.free.bytes.min": "0", "tidelog.balance.enable": "false", "default.replication.factor": "3"}


def assignment(tenant: int, *, in_cells: bool) -> dict[int, list[int]]:
    """Leaders and followers of each partition, evenly among the tenant's brokers."""
    home = list(range(tenant * CELL, (tenant + 1) * CELL)) if in_cells else list(range(BROKERS))
    found = {}
    for number in range(PARTITIONS):
        first, shift = number % len(home), 1 + number // len(home) % (len(home) - REPLICAS + 1)
        found[number] = [home[first], *(home[(first + shift + at) % len(home)] for at in range(REPLICAS - 1))]
    return found


def topic_of(turn: int, tenant: int) -> str:
    return f"turn-{turn}-tenant-{tenant}"


class Tenant:
    """Its clients, which are busy until `stop`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition  # noqa: PLC0415

        self._topic = topic
        self._stopped = threading.Event()
        self.sent = self.read = 0
        options = {"bootstrap.servers": bootstrap}
        self._producers = [Producer(options | {"linger.ms": LINGER_MS, "acks": "all"}) for _ in range(PRODUCERS)]
        self._consumers = []
        for number in range(CONSUMERS):
            consumer = Consumer(options | {"group.id": f"{topic}-{number}", "enable.auto.commit": False})
            consumer.assign([TopicPartition(topic, part, 0) for part in range(number, PARTITIONS, CONSUMERS)])
            self._consumers.append(consumer)
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        value = os.urandom(RECORD_BYTES)
        begin, count = time.perf_counter(), 0
        while not self._stopped.is_set():
            due = int((time.perf_counter() - begin) * RATE)
            while count < due:
                for number, producer in enumerate(self._producers):
                    producer.produce(self._topic, value, partition=(count * 7 + number * 13) % PARTITIONS,
                                     on_delivery=self._delivered)  # fmt: skip
                count += 1
            for producer in self._producers:
                producer.poll(0)
            time.sleep(TICK_S)
        for producer in self._producers:
            producer.flush(30)

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            raise RuntimeError(f"a record was not taken: {error}")
        self.sent += 1

    def _consume(self) -> None:
        while not self._stopped.is_set():
            for consumer in self._consumers:
                self.read += len(consumer.consume(1_000, TICK_S))
        for consumer in self._consumers:
            consumer.close()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def tenants(bootstrap: str, turn: int) -> Iterator[list[Tenant]]:
    found = [Tenant(bootstrap, topic_of(turn, tenant)) for tenant in range(TENANTS)]
    try:
        yield found
    finally:
        for tenant in found:
            tenant.stop()


def cpu_s(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def jobs(ports: list[int]) -> int:
    """What the loops of the brokers with these ports of metrics have done."""
    return sum(counters(port).jobs for port in ports)


def step(cluster: EmbeddedCluster, pids: list[int], ports: list[int], turn: int, kind: str) -> dict[str, Any]:
    from kafka import KafkaAdminClient  # noqa: PLC0415
    from kafka.admin import NewTopic  # noqa: PLC0415

    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    made = [assignment(tenant, in_cells=kind == "cells") for tenant in range(TENANTS)]
    admin.create_topics(
        [
            NewTopic(name=topic_of(turn, tenant), num_partitions=-1, replication_factor=-1, replica_assignments=rows)
            for tenant, rows in enumerate(made)
        ]
    )
    time.sleep(2.0)
    with tenants(cluster.bootstrap, turn) as found:
        time.sleep(WARM_S)
        cpu, done, began = cpu_s(pids), jobs(ports), time.perf_counter()
        sent, read = sum(one.sent for one in found), sum(one.read for one in found)
        time.sleep(STEP_S)
        spent, passed_s, done = cpu_s(pids) - cpu, time.perf_counter() - began, jobs(ports) - done
        sent, read = sum(one.sent for one in found) - sent, sum(one.read for one in found) - read
    admin.delete_topics([topic_of(turn, tenant) for tenant in range(TENANTS)])
    admin.close()
    time.sleep(2.0)
    megabytes = sent * RECORD_BYTES / 1e6
    return {
        "kind": kind,
        "megabytes": round(megabytes, 2),
        "records_per_s": round(sent / passed_s),
        "read_share": round(read / sent, 3),
        "cpu_ms_per_mb": round(spent * 1e3 / megabytes, 2),
        "jobs_per_record": round(done / sent, 2),
        "processors": round(spent / passed_s, 3),
    }


def measure() -> dict[str, Any]:
    with EmbeddedCluster(brokers=BROKERS, controllers=1, settings=SETTINGS) as cluster:
        pids = [row["pid"] for row in cluster.nodes() if row["role"] == "broker"]
        layout = load_layout(cluster.data)
        if layout is None:
            raise RuntimeError("the cluster has no layout")
        ports = [node.metrics_port for node in layout.nodes if node.role == "broker"]
        steps = []
        for turn, kind in enumerate(TURNS):
            steps.append(step(cluster, pids, ports, turn, kind))
            print(json.dumps(steps[-1]), flush=True)
    if any(not READ_MIN <= one["read_share"] <= READ_MAX for one in steps):
        raise RuntimeError(f"consumers have not read what producers wrote: {steps}")
    return {
        "brokers": BROKERS, "cell": CELL, "tenants": TENANTS, "partitions": PARTITIONS, "producers": PRODUCERS,
        "consumers": CONSUMERS, "record_bytes": RECORD_BYTES, "linger_ms": LINGER_MS, "steps": steps,
    }  # fmt: skip


def row(parts: Parts) -> Row:
    spent = {
        kind: [one["cpu_ms_per_mb"] for one in parts[ALL]["steps"] if one["kind"] == kind]
        for kind in ("together", "cells")
    }
    ratio = statistics.fmean(spent["cells"]) / statistics.fmean(spent["together"])
    told = " → ".join(span(values, ".0f") for values in spent.values())
    done = {
        kind: statistics.fmean(one["jobs_per_record"] for one in parts[ALL]["steps"] if one["kind"] == kind)
        for kind in spent
    }
    return Row(
        f"brokers' CPU with cells, {BROKERS} real brokers",
        "",
        f"{told} ms for a megabyte, a ratio of {ratio:.2f}; "
        f"{done['together']:.1f} → {done['cells']:.1f} jobs of their loops for a record",
    )


def plot(parts: Parts, path: Path) -> None:
    steps = parts[ALL]["steps"]
    colors = {"together": WITHOUT, "cells": WITH}
    names = {"together": f"{BROKERS} brokers for both", "cells": f"{CELL} for each"}
    with plotted(path, width=9, height=3, columns=2) as both:
        labels = {
            "cpu_ms_per_mb": "ms of brokers' CPU for a megabyte",
            "jobs_per_record": "jobs of brokers' loops for a record",
        }
        for axes, (key, label) in zip(both, labels.items(), strict=True):
            drawn = axes.barh(
                range(len(steps)), [one[key] for one in steps], color=[colors[one["kind"]] for one in steps]
            )
            axes.bar_label(drawn, fmt="{:.3g}", padding=4)
            axes.set_yticks(range(len(steps)), [names[one["kind"]] for one in steps])
            axes.invert_yaxis()
            axes.margins(x=0.15)
            axes.set_xlabel(label)


EVIDENCE = Evidence("cells_real", 2, {ALL: measure}, row, plot)
