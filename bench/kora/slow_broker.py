"""What a broker that stalls costs producers with acks=all: `python -m bench.kora --only slow_broker`.

One of three brokers is stopped for 400 of every 550 ms (SIGSTOP, SIGCONT), which neither ends its session nor takes it
out of an ISR. Producers write to all partitions at a steady pace. Measured without the care for sick brokers and with
it, whose five minutes of patience are shortened by the settings.
"""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench.embedded import EmbeddedCluster
from bench.kora.drawing import bars, plotted
from bench.kora.evidence import Evidence, Parts, Row
from bench.paced_load import PacedLoad, quantiles
from bench.stalling import RUNS_S, STOPPED_S, Stalling

TOPIC, PARTITIONS, RATE = "paced", 6, 100
SICK = 1
NORMAL_S, SICK_S, BACK_S_MAX = 20.0, 60.0, 60.0
LOOK_MS, SCORE = 500, 20
AFTER_S = 10.0
GOAL = 1.5
SETTINGS = {
    "stopped_s": STOPPED_S, "of_s": STOPPED_S + RUNS_S, "records_a_second": RATE, "partitions": PARTITIONS,
    "look_ms": LOOK_MS, "score": SCORE,
}  # fmt: skip
ASIDE = re.compile(r"a sick broker is put aside")


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
        load = PacedLoad({"bootstrap.servers": cluster.bootstrap}, TOPIC, PARTITIONS, RATE)
        try:
            time.sleep(5.0)  # connections, first segments
            return {"settings": SETTINGS} | stalled(cluster, load)
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
    found: dict[str, Any] = {"normal": quantiles(load.between(began, sick)), "state": while_sick["state"]}
    aside = put_aside_at(cluster.data)
    if aside is None:
        return found | {"stalled": quantiles(load.between(sick + AFTER_S, well)), "failed": load.failed}
    found["put_aside_after_s"] = round(aside - wall, 1)
    settled = sick + (aside - wall) + AFTER_S
    found["stalled"] = quantiles(load.between(sick, sick + (aside - wall)))
    found["put_aside"] = quantiles(load.between(settled, well))
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


def row(parts: Parts) -> Row:
    without, cared_for = parts["without"], parts["with"]
    what, published = "a broker stalls: p99 of acks=all", "a slow broker leaves the ISR, and keeps replicating"
    told = f"{without['stalled']['p99_ms']:.0f} ms without care"
    goal = f"<= {GOAL} times normal once put aside"
    if "put_aside" not in cared_for:
        return Row(what, published, f"{told}; with it the broker was not put aside", goal, met=False)
    normal, aside = (cared_for[name]["p99_ms"] for name in ("normal", "put_aside"))
    told += f"; with it {aside:.1f} ms after {cared_for['put_aside_after_s']:.0f} s, normal is {normal:.1f} ms"
    return Row(what, published, told, goal, aside <= GOAL * normal and not cared_for["failed"])


def plot(parts: Parts, path: Path) -> None:
    cared_for = parts["with"]
    shown = {
        "without care": parts["without"]["stalled"],
        "with it, until noticed": cared_for["stalled"],
        "once put aside": cared_for.get("put_aside", {}),
        "normal": cared_for["normal"],
    }
    with plotted(path, height=2.6) as (axes,):
        told = {name: one["p99_ms"] for name, one in shown.items() if "p99_ms" in one}
        bars(axes, told, ".1f", "p99 of acks=all, ms")


EVIDENCE = Evidence(
    "slow_broker",
    5,
    {"without": partial(measure, cared_for=False), "with": partial(measure, cared_for=True)},
    row,
    plot,
)
