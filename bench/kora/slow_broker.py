"""What a broker that stalls costs producers with acks=all: `python -m bench.kora.slow_broker`.

One of three brokers is stopped for 400 of every 550 ms (SIGSTOP, SIGCONT), which neither ends its session nor takes it
out of an ISR. Producers write to all partitions at a steady pace. Measured without the care for sick brokers and with
it, whose five minutes of patience are shortened by the settings.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.embedded import EmbeddedCluster

RESULT = Path(__file__).resolve().parent / "results" / "slow_broker.json"
TOPIC, PARTITIONS, RATE = "paced", 6, 100
SICK = 1
STOPPED_S, RUNS_S = 0.4, 0.15
NORMAL_S, SICK_S, BACK_S_MAX = 20.0, 60.0, 60.0
LOOK_MS, SCORE = 500, 20
AFTER_S = 10.0
GOAL = 1.5
ASIDE = re.compile(r"a sick broker is put aside")


class PacedLoad:
    """Produces `RATE` records a second in turn to all partitions, and keeps when each was sent and how long it took."""

    def __init__(self, bootstrap: str) -> None:
        self.took: list[tuple[float, float]] = []  # (monotonic seconds when sent, milliseconds)
        self.failed = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        number, due = 0, time.monotonic()
        while not self._ended.is_set():
            self._send(number % PARTITIONS)
            number, due = number + 1, due + 1 / RATE
            while (left := due - time.monotonic()) > 0:
                self._producer.poll(left)
        self._producer.flush(30)

    def _send(self, partition: int) -> None:
        sent = time.monotonic()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed += 1
            else:
                self.took.append((sent, (time.monotonic() - sent) * 1000))

        self._producer.produce(TOPIC, b"x" * 100, partition=partition, on_delivery=delivered)
        self._producer.poll(0)

    def between(self, begin: float, end: float) -> dict[str, float]:
        return quantiles([took for sent, took in self.took if begin <= sent < end])


class Stalling:
    """Stops a process for most of the time, until the end of the block."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Stalling:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                os.kill(self._pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(self._pid, signal.SIGCONT)
                time.sleep(RUNS_S)
        finally:
            os.kill(self._pid, signal.SIGCONT)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {"records": 0}
    return {"records": len(ordered)} | {
        f"p{share}_ms": round(ordered[min(len(ordered) - 1, len(ordered) * share // 100)], 1) for share in (50, 95, 99)
    }


def measure(*, cared_for: bool) -> dict[str, Any]:
    settings = {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "tidelog.usage.report.interval.ms": str(LOOK_MS),
        "tidelog.health.enable": str(cared_for).lower(),
        "tidelog.health.slow.score": str(SCORE),
    }
    with EmbeddedCluster(3, settings) as cluster:
        make_topic(cluster.bootstrap)
        load = PacedLoad(cluster.bootstrap)
        try:
            time.sleep(5.0)  # connections, first segments
            return stalled(cluster, load)
        finally:
            load.finish()


def make_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)


def stalled(cluster: EmbeddedCluster, load: PacedLoad) -> dict[str, Any]:
    pid = next(int(row["pid"]) for row in cluster.nodes() if row["role"] == "broker" and int(row["id"]) == SICK)
    began = time.monotonic()
    time.sleep(NORMAL_S)
    sick = time.monotonic()
    wall = time.time()
    with Stalling(pid):
        time.sleep(SICK_S)
        well = time.monotonic()
        while_sick = health(cluster)
    found: dict[str, Any] = {"normal": load.between(began, sick), "state": while_sick["state"]}
    aside = put_aside_at(cluster.data)
    if aside is None:
        return found | {"stalled": load.between(sick + AFTER_S, well), "failed": load.failed}
    found["put_aside_after_s"] = round(aside - wall, 1)
    settled = sick + (aside - wall) + AFTER_S
    found["stalled"] = load.between(sick, sick + (aside - wall))
    found["put_aside"] = load.between(settled, well)
    while health(cluster)["state"] != "healthy" and time.monotonic() - well < BACK_S_MAX:
        time.sleep(1.0)
    found["taken_back_after_s"] = round(time.monotonic() - well, 1)
    return found | {"evidence": while_sick["evidence"], "failed": load.failed}


def health(cluster: EmbeddedCluster) -> dict[str, Any]:
    """The sick broker's row of `tidelog brokers health`."""
    rows: list[dict[str, Any]] = json.loads(cluster.command_of("brokers", "health", "--json"))["brokers"]
    return next(row for row in rows if row["broker"] == SICK)


def put_aside_at(data: Path) -> float | None:
    """When a controller put it aside, in seconds since 1970."""
    for log in sorted((data / "logs").glob("controller*.log")):
        for line in log.read_text(errors="replace").splitlines():
            if ASIDE.search(line) and (found := re.search(r"\d{4}-\d\d-\d\d[T ][\d:.,]+Z?", line)) is not None:
                text = found.group().replace(",", ".").replace("Z", "+00:00")
                return datetime.fromisoformat(text).timestamp()
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("with", "without"), help="measure this alone; the other is kept as it was")
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULT.read_text()) if given.only and RESULT.exists() else {}
    found["settings"] = {"stopped_s": STOPPED_S, "of_s": STOPPED_S + RUNS_S, "records_a_second": RATE,
                         "partitions": PARTITIONS, "look_ms": LOOK_MS, "score": SCORE}  # fmt: skip
    for name in ("without", "with"):
        if given.only in (None, name):
            found[name] = measure(cared_for=name == "with")
            print(json.dumps({name: found[name]}), flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    with_care = found.get("with", {})
    if "put_aside" not in with_care:
        return 0 if given.only == "without" else 1
    return 0 if with_care["put_aside"]["p99_ms"] <= GOAL * with_care["normal"]["p99_ms"] else 1


if __name__ == "__main__":
    sys.exit(main())
