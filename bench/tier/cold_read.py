"""One client reads a topic from the tier as fast as it can, beside the same topic on the brokers' disks.

The bound is what is slower of the two: the object store's own ranged GETs, or the client.
"""

from __future__ import annotations

from bench.embedded import EmbeddedCluster
from bench.peers import cpu_seconds
from bench.rows import AT_LEAST, Figure, Scene, figure
from bench.tier.topics import MIB, Topics, cold_config, run_load

SIZE, PARTITIONS, RECORD_BYTES = 800 * MIB, 6, 1_024
CHUNK, GETS_AT_ONCE = 4 * MIB, 8  # what the brokers do
CACHE = 128 * MIB  # less than a round reads, so that the cache is full as in a broker that has run for a while
SETTINGS = {"log.retention.check.interval.ms": "500", "tidelog.tier.cache.bytes": str(CACHE)}


def cold_read(scene: Scene) -> list[Figure]:
    """A topic of its own for each round, so that no cache knows it."""
    size = scene.sized(SIZE, 60 * MIB)
    cold: list[float] = []
    hot: list[float] = []
    gets, cpu = [], []
    with EmbeddedCluster(settings=SETTINGS, data=scene.work / "cold-read") as cluster:
        topics = Topics(cluster.bootstrap)
        uri = f"file://{cluster.data.resolve()}/tier"
        pids = [node["pid"] for node in cluster.nodes()]
        for number in range(scene.rounds):
            tiered = topics.create(PARTITIONS, 1, cold_config())
            local = topics.create(PARTITIONS, 1)
            for topic in (tiered, local):
                topics.fill(topic, PARTITIONS, size, RECORD_BYTES)
            found = topics.wait_cold(tiered, PARTITIONS, RECORD_BYTES)
            records = found.records - found.local
            ranges = {"prefix": "", "chunk": CHUNK, "at_once": GETS_AT_ONCE, "limit": size}
            gets.append(run_load("bench.tier.loads", "get_objects", uri, ranges)["mb_s"])
            for place, topic in (("local", local), ("tier", tiered))[:: 1 if number % 2 == 0 else -1]:
                before = cpu_seconds(pids)
                arguments = {"topic": topic, "partitions": PARTITIONS, "records": records}
                done = run_load("bench.tier.loads", "read", topics.bootstrap, arguments)
                (cold if place == "tier" else hot).append(done["mb_s"])
                if place == "tier":
                    cpu.append((cpu_seconds(pids) - before) / done["gigabytes"])
            scene.say(f"GETs {gets[-1]:.0f}, from disks {hot[-1]:.0f}, from the tier {cold[-1]:.0f} MB/s")
            topics.delete(tiered, local)
    bounds = [min(pair) for pair in zip(gets, hot, strict=True)]
    return [
        figure("cold read", "MB/s", cold, "slower of GETs and hot read", bounds, (AT_LEAST, 0.7)),
        figure("cold read", "MB/s", cold, "hot read", hot),
        figure("cold read", "MB/s", cold, "the store's GETs", gets),
        figure("cold read, brokers' CPU", "s/GB", cpu),
    ]
