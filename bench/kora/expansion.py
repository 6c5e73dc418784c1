"""How long a fourth broker takes to fill, with and without a tier: `python -m bench.kora --only expansion`.

Three brokers hold one topic, once with nine tenths of each log or more in the object store only, once all local. Then
`tidelog brokers add` starts a fourth one, and the controllers move replicas to it under the balancer's throttle. The
time is from the first move's beginning to the last copy's end, as the moves' records have it.
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.embedded import EmbeddedCluster
from bench.kora.drawing import bars, plotted
from bench.kora.evidence import Evidence, Parts, Row

TOPIC, PARTITIONS, REPLICAS = "expansion", 12, 3
MEGABYTE = 1_000_000
SEGMENT_BYTES = 1_048_576
LOCAL_SHARE_MAX = 0.1
RATE = 5 * MEGABYTE  # a second for each broker, so that the smaller amounts here take as long as large ones do
SETTLES_S, FILLS_S = 120.0, 240.0
SHARE_MIN = 0.9
FASTER_MIN = 20.0
RECORD_BYTES = 100_000
MEGABYTES = 30  # of each partition


def measure(*, tiered: bool, megabytes: int = MEGABYTES) -> dict[str, Any]:
    """Fill a topic with `megabytes` in each partition, then add a broker."""
    settings = {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "tidelog.balance.bytes.per.second": str(RATE),
        "tidelog.balance.interval.ms": "1000000",
        "log.retention.check.interval.ms": "1000",
        "log.segment.bytes": str(SEGMENT_BYTES),
    }
    with EmbeddedCluster(3, settings) as cluster:
        configs = [f"segment.bytes={SEGMENT_BYTES}"]
        if tiered:
            configs += ["remote.storage.enable=true", f"local.retention.bytes={SEGMENT_BYTES}"]
        words = [word for config in configs for word in ("--config", config)]
        cluster.command_of(
            "topics", "create", TOPIC, "--partitions", str(PARTITIONS), "--replicas", str(REPLICAS), *words
        )
        produce(cluster.bootstrap, megabytes)
        total = megabytes * MEGABYTE * PARTITIONS * REPLICAS
        local = settled_bytes(cluster, total, tiered=tiered)
        cluster.command_of("brokers", "add", "--json")
        found = filled(cluster)
        copied = local_bytes(cluster, "broker-3")
    return {
        "megabytes_per_partition": megabytes,
        "rate": RATE,
        "local_share": round(local / total, 3),
        "copied_bytes": copied,
        **found,
    }


def produce(bootstrap: str, megabytes: int) -> None:
    from kafka import KafkaProducer  # noqa: PLC0415

    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all", batch_size=500_000, linger_ms=20)
    payload = bytes(RECORD_BYTES)
    for _ in range(megabytes * MEGABYTE // RECORD_BYTES):
        for partition in range(PARTITIONS):
            producer.send(TOPIC, payload, partition=partition)
    producer.flush()
    producer.close()


def settled_bytes(cluster: EmbeddedCluster, total: int, *, tiered: bool) -> int:
    """The bytes of all local logs, once the tier has taken what it takes."""
    deadline = time.monotonic() + SETTLES_S
    while True:
        local = local_bytes(cluster)
        if not tiered or local <= LOCAL_SHARE_MAX * total:
            return local
        if time.monotonic() > deadline:
            raise RuntimeError(f"{local} of {total} bytes are still local")
        time.sleep(1.0)


def local_bytes(cluster: EmbeddedCluster, broker: str = "broker-*") -> int:
    """Of the topic's log files."""
    sizes = []
    for path in cluster.data.glob(f"{broker}/{TOPIC}-*/*.log"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # deleted meanwhile
            continue
    return sum(sizes)


def filled(cluster: EmbeddedCluster) -> dict[str, Any]:
    """Wait for the end of all copies."""
    deadline = time.monotonic() + FILLS_S
    while True:
        history = json.loads(cluster.command_of("balance", "history", "--json"))
        copies = [move for move in history["moves"] if set(move["replicas_before"]) != set(move["replicas_after"])]
        rows = json.loads(cluster.command_of("brokers", "list", "--json"))
        held = {row["broker"]: row["replicas"] - row["internal_replicas"] for row in rows}
        share = held.get(3, 0) / (PARTITIONS * REPLICAS / len(held))
        ended = history["operations"] and history["operations"][-1]["state"] == "done"
        if ended or (copies and share >= SHARE_MIN and all(move["ended_ms"] for move in copies)):
            begun_ms = min(move["begun_ms"] for move in copies)
            return {
                "seconds": round((max(move["ended_ms"] for move in copies) - begun_ms) / 1000, 2),
                "copies": len(copies),
                "replicas": held[3],
                "share": round(share, 2),
            }
        if time.monotonic() > deadline:
            raise RuntimeError(f"the new broker is not filled: {held}")
        time.sleep(1.0)


def row(parts: Parts) -> Row:
    tiered, untiered = parts["tiered"], parts["untiered"]
    faster = untiered["seconds"] / max(tiered["seconds"], 0.01)
    is_filled = all(one["share"] >= SHARE_MIN for one in (tiered, untiered))
    return Row(
        f"a fourth broker fills, {1 - tiered['local_share']:.0%} in the tier",
        "only what is local is copied",
        f"{untiered['seconds']:.1f} s without the tier, {tiered['seconds']:.1f} s with it: {faster:.0f} times as fast",
        f">= {FASTER_MIN:g} times, and {SHARE_MIN} of a fair share",
        is_filled and faster >= FASTER_MIN,
    )


def plot(parts: Parts, path: Path) -> None:
    names = {"untiered": "all local", "tiered": f"{1 - parts['tiered']['local_share']:.0%} in the tier"}
    with plotted(path, width=9, height=2.2, columns=2) as (seconds, megabytes):
        bars(seconds, {name: parts[part]["seconds"] for part, name in names.items()}, ".1f", "seconds until it is full")
        copied = {name: parts[part]["copied_bytes"] / MEGABYTE for part, name in names.items()}
        bars(megabytes, copied, ",.0f", "MB copied to it")


EVIDENCE = Evidence(
    "expansion", 4, {"tiered": partial(measure, tiered=True), "untiered": partial(measure, tiered=False)}, row, plot
)
