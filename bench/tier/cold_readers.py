"""What recent readers notice of two cold ones, beside the same two on data that the brokers hold themselves."""

from __future__ import annotations

import time

from bench.embedded import EmbeddedCluster
from bench.tier.rows import AT_MOST, Figure, Scene, figure
from bench.tier.topics import MIB, Topics, cold_config, finish_load, run_load, start_load

READERS, MB_S = 2, 30.0
SECONDS, LEAD_S, TAIL_S = 12, 2.0, 3.0
PARTITIONS, RECORD_BYTES = 6, 8_192
RATE, PROBE_BYTES = 200, 512
HELD = 0.9  # of its pace a reader has to keep
SETTINGS = {"log.retention.check.interval.ms": "500", "tidelog.tier.cache.bytes": str(128 * MIB)}


def cold_readers(scene: Scene) -> list[Figure]:
    """Each round the readers go on where they stopped, so that nothing is read twice."""
    seconds = scene.sized(SECONDS, 4)
    size = int(MB_S * 1e6 * (seconds + LEAD_S + TAIL_S) * scene.rounds * 1.05)
    latencies: dict[str, list[float]] = {"tier": [], "local": []}
    alone, paces = [], []
    with EmbeddedCluster(settings=SETTINGS, data=scene.work / "cold-readers") as cluster:
        topics = Topics(cluster.bootstrap)
        read: dict[str, list[str]] = {"tier": [], "local": []}
        for place, config in (("tier", cold_config()), ("local", {"segment.bytes": str(16 * MIB)})):
            for _ in range(READERS):
                topic = topics.create(PARTITIONS, 1, config)
                topics.fill(topic, PARTITIONS, size, RECORD_BYTES)
                read[place].append(topic)
        for topic in read["tier"]:
            topics.wait_cold(topic, PARTITIONS)
        for number in range(scene.rounds):
            share = [number / scene.rounds, (number + 1) / scene.rounds]
            for place in ("local", "tier") if number % 2 == 0 else ("tier", "local"):
                p99_ms, pace = beside_readers(topics, read[place], share, seconds)
                scene.say(f"readers of {place} data at {pace:.1f} MB/s: hot p99 {p99_ms:.2f} ms")
                latencies[place].append(p99_ms)
                paces += [pace] if place == "tier" else []
            alone.append(probe(topics, seconds))
    return [
        figure("end to end p99 beside two cold readers", "ms", latencies["tier"], "readers of local data",
               latencies["local"], (AT_MOST, 1.25)),
        figure("end to end p99 beside two cold readers", "ms", latencies["tier"], "no readers", alone),
        figure("pace of the slower cold reader", "MB/s", paces, "asked", [MB_S] * len(paces), (">=", HELD)),
    ]  # fmt: skip


def probe(topics: Topics, seconds: int) -> float:
    arguments = {"rate": RATE, "seconds": seconds, "size": PROBE_BYTES}
    found = run_load("bench.load", "end_to_end", topics.bootstrap, arguments)
    topics.delete(found["topic"])
    return float(found["p99_ms"])


def beside_readers(topics: Topics, read: list[str], share: list[float], seconds: int) -> tuple[float, float]:
    """(p99 of the hot load in ms, pace of the slower reader in MB/s)."""
    arguments = {"partitions": PARTITIONS, "mb_s": MB_S, "seconds": seconds + LEAD_S + TAIL_S, "share": share}
    readers = [
        start_load("bench.tier.loads", "paced", topics.bootstrap, {**arguments, "topic": topic}) for topic in read
    ]
    time.sleep(LEAD_S)
    p99_ms = probe(topics, seconds)
    paces = [float(finish_load(reader)["mb_s"]) for reader in readers]
    return p99_ms, min(paces)
