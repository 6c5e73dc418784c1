"""Moving a replica of a topic whose brokers hold one fortieth of it, beside moving the same topic untiered."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

from bench.embedded import EmbeddedCluster
from bench.rows import AT_LEAST, AT_MOST, Figure, Scene, figure
from bench.tier.topics import MIB, TIERED, Topics

SIZE, PARTITIONS, RECORD_BYTES = 2_000 * MIB, 2, 8_192
BATCH_BYTES = 65_536  # small beside a segment, so that what is kept is what was asked for
SHARE, TOLERANCE = 40, 0.1
SEGMENTS_LEFT = 8  # of a partition's local part
THROTTLE = 20_000_000
BEFORE, AFTER = [[0, 1], [1, 0]], "1,2"
MOVER = 2
SETTINGS = {"log.retention.check.interval.ms": "500", "log.segment.delete.delay.ms": "500"}
SETTLE_S, LOCAL_WAIT_S = 1.5, 60.0


def moving(scene: Scene) -> list[Figure]:
    """One round: the untiered move alone takes its hundred seconds at full scale."""
    size = scene.sized(SIZE, 200 * MIB)
    with EmbeddedCluster(settings=SETTINGS, data=scene.work / "moving") as cluster:
        topics = Topics(cluster.bootstrap)
        local_bytes = size // SHARE // PARTITIONS
        segment = local_bytes // SEGMENTS_LEFT
        kept = {"segment.bytes": str(segment), "local.retention.bytes": str(local_bytes - segment)}
        tiered = topics.create(PARTITIONS, 2, TIERED | kept, BEFORE)
        untiered = topics.create(PARTITIONS, 2, {"segment.bytes": str(segment)}, BEFORE)
        for topic in (tiered, untiered):
            topics.fill(topic, PARTITIONS, size, RECORD_BYTES, BATCH_BYTES)
        topics.wait(tiered, PARTITIONS, lambda found: found.local * SHARE <= found.records * (1 + TOLERANCE))
        local = local_size(cluster, tiered)
        whole = local_size(cluster, untiered)
        scene.say(f"{whole / 1e6:.0f} MB in the topic, {local / 1e6:.1f} MB of the tiered one on brokers")
        fast_s, received = move(cluster, tiered)
        scene.say(f"tiered: {fast_s:.2f} s, {received / 1e6:.1f} MB over the network")
        slow_s, all_received = move(cluster, untiered)
        scene.say(f"untiered: {slow_s:.2f} s, {all_received / 1e6:.1f} MB over the network")
    return [
        figure("move, untiered beside tiered", "s", [slow_s], "tiered", [fast_s], (AT_LEAST, 20)),
        figure("network bytes of the tiered move", "MB", [received / 1e6], "local part", [local / 1e6],
               (AT_MOST, 1.2)),
        figure("local part of the tiered topic", "MB", [local / 1e6], "whole topic", [whole / 1e6]),
    ]  # fmt: skip


def local_size(cluster: EmbeddedCluster, topic: str) -> int:
    """Bytes of log that the leaders hold, once deleted segments have left their disks."""
    deadline = time.monotonic() + LOCAL_WAIT_S
    while True:
        folders = [find(cluster, BEFORE[index][0], f"{topic}-{index}") for index in range(PARTITIONS)]
        if not any(list(folder.glob("*.deleted")) for folder in folders):
            return sum(path.stat().st_size for folder in folders for path in folder.glob("*.log"))
        if time.monotonic() > deadline:
            raise TimeoutError(f"the brokers keep deleted segments of {topic}")
        time.sleep(0.2)


def find(cluster: EmbeddedCluster, broker: int, folder: str) -> Path:
    return next(Path(node["dir"]) / folder for node in cluster.nodes() if node["node"] == f"broker-{broker}")


def received_bytes(cluster: EmbeddedCluster) -> float:
    """What the broker that gets the replicas has received from leaders so far."""
    page = next(node["metrics"] for node in cluster.nodes() if node["node"] == f"broker-{MOVER}")
    with urllib.request.urlopen(f"http://{page}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("tidelog_replication_received_bytes_total"))


def move(cluster: EmbeddedCluster, topic: str) -> tuple[float, float]:
    """(seconds from the command to its end, bytes received by the new replicas' broker)."""
    before = received_bytes(cluster)
    began = time.monotonic()
    cluster.command_of("topics", "reassign", topic, "--to", AFTER, "--throttle", str(THROTTLE))
    seconds = time.monotonic() - began
    received = received_bytes(cluster) - before
    time.sleep(SETTLE_S)
    return seconds, received
