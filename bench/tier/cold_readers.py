"""What recent readers notice of two cold ones, beside the same two on data that the brokers hold themselves."""

from __future__ import annotations

import time

from bench.embedded import EmbeddedCluster
from bench.rows import AT_LEAST, AT_MOST, Figure, Scene, figure
from bench.tier.probing import Probe
from bench.tier.topics import COLD_SEGMENT, MIB, Topics, cold_config, finish_load, start_load

READERS, MB_S = 2, 30.0
PARTITIONS, RECORD_BYTES = 6, 8_192
RATE, PROBE_BYTES = 200, 512
PAIRS, WINDOW_S, GAP_S = 16, 3.0, 1.0  # reading counts in the window, and latencies from its first second on
LEAD_S, WARM_S, TAIL_S, SPARE = 10.0, 10.0, 2.0, 1.3  # warm: the cold readers alone, until the caches are full
HELD = 0.9  # of its pace a reader has to keep
SETTINGS = {"log.retention.check.interval.ms": "500", "tidelog.tier.cache.bytes": str(192 * MIB)}
Window = tuple[float, float]


def cold_readers(scene: Scene) -> list[Figure]:
    """Readers of either kind take turns and go on where they stopped, so that nothing is read twice."""
    pairs = scene.sized(PAIRS, 3)
    size = int(MB_S * 1e6 * (WARM_S + WINDOW_S * pairs) * SPARE) + PARTITIONS * COLD_SEGMENT
    with EmbeddedCluster(settings=SETTINGS, data=scene.work / "cold-readers") as cluster:
        topics = Topics(cluster.bootstrap)
        read: dict[str, list[str]] = {"tier": [], "local": []}
        for place, config in (("tier", cold_config()), ("local", {"segment.bytes": str(COLD_SEGMENT)})):
            for _ in range(READERS):
                topic = topics.create(PARTITIONS, 1, config)
                topics.fill(topic, PARTITIONS, size, RECORD_BYTES)
                read[place].append(topic)
        for topic in read["tier"]:
            topics.wait_cold(topic, PARTITIONS, RECORD_BYTES)
        hot = topics.create(PARTITIONS, 3)
        windows, probe, paces = beside_readers(topics, hot, read, pairs)
    latencies = {
        place: [probe.p99_ms((begin + GAP_S, end)) for begin, end in windows[place]] for place in ("tier", "local")
    }
    scene.say(f"p99 in ms beside local readers {latencies['local']}, beside cold ones {latencies['tier']}")
    return [
        figure("end to end p99 beside two cold readers", "ms", latencies["tier"], "readers of local data",
               latencies["local"], (AT_MOST, 1.25)),
        figure("pace of the slower cold reader", "MB/s", paces, "asked", [MB_S] * len(paces), (AT_LEAST, HELD)),
    ]  # fmt: skip


def beside_readers(
    topics: Topics, hot: str, read: dict[str, list[str]], pairs: int
) -> tuple[dict[str, list[Window]], Probe, list[float]]:
    """(windows by what is read, the probe, pace of the slower cold reader in each window)."""
    seconds = LEAD_S + WARM_S + 2 * pairs * (WINDOW_S + GAP_S) + TAIL_S
    with Probe(topics, hot, PARTITIONS, RATE, PROBE_BYTES, seconds) as probe:
        begin = time.monotonic() + LEAD_S
        warm = (begin, begin + WARM_S)
        begin += WARM_S
        windows: dict[str, list[Window]] = {"tier": [], "local": []}
        for pair in range(pairs):
            for place in ("local", "tier") if pair % 2 == 0 else ("tier", "local"):
                windows[place].append((begin, begin + WINDOW_S))
                begin += WINDOW_S + GAP_S
        arguments = {"partitions": PARTITIONS, "mb_s": MB_S}
        readers = [
            (place, start_load("bench.tier.loads", "paced", topics.bootstrap,
                               {**arguments, "topic": topic, "windows": [warm] * (place == "tier") + windows[place]}))
            for place, names in read.items() for topic in names
        ]  # fmt: skip
        found = [finish_load(reader)["mb_s"] for place, reader in readers if place == "tier"]
        for place, reader in readers:
            if place != "tier":
                finish_load(reader)
    return windows, probe, [min(slowest) for slowest in zip(*found, strict=True)][1:]
