"""Producers and recent readers while the object store is silent, or refuses every connection.

The store is moto's S3 server behind a relay. What is compared with is the same load on a topic that has nothing to do
with the tier: the harder of two readings of "undisturbed", since with a store that works copying takes its share.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

from aiobotocore.session import get_session

from bench.embedded import EmbeddedCluster
from bench.tier.relay import Relay, StoreState
from bench.tier.rows import AT_LEAST, AT_MOST, Figure, Scene, figure
from bench.tier.topics import MIB, ROOT, TIERED, Topics, run_load

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_PROXY": "127.0.0.1,localhost",
}
BUCKET = "bench"
UNDISTURBED = "not tiered"
RECORDS, RECORD_BYTES, BATCH_BYTES = 400_000, 1024, 1_000_000
RATE, SECONDS, PROBE_BYTES = 1_000, 10, 2_048
BACKLOG_S = 2.0


@contextmanager
def s3_server() -> Iterator[int]:
    """The port of a moto server with an empty bucket; the environment has its credentials meanwhile."""
    before = dict(os.environ)
    os.environ.update(CREDENTIALS)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.object_store.moto_process"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        port = int(process.stdout.readline())
        asyncio.run(make_bucket(f"http://127.0.0.1:{port}"))
        yield port
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
        os.environ.clear()
        os.environ.update(before)


async def make_bucket(endpoint: str) -> None:
    async with get_session().create_client("s3", endpoint_url=endpoint, region_name="us-east-1") as client:
        await client.create_bucket(Bucket=BUCKET)


def store_down(scene: Scene) -> list[Figure]:
    produced: dict[str, list[float]] = {}
    latencies: dict[str, list[float]] = {}
    conditions = [UNDISTURBED, StoreState.SILENT, StoreState.REFUSING]
    with s3_server() as port, Relay(port) as relay:
        uri = f"s3://{BUCKET}/tier?endpoint=http://127.0.0.1:{relay.port}&region=us-east-1"
        settings = {"tidelog.tier.uri": uri, "tidelog.tier.delete.delay.ms": "0"}
        with EmbeddedCluster(settings=settings, data=scene.work / "store-down") as cluster:
            topics = Topics(cluster.bootstrap)
            warm_up(scene, topics)
            for number in range(scene.rounds):
                turn = number % len(conditions)
                for condition in chain(conditions[turn:], conditions[:turn]):
                    mb_s, p99_ms = under(scene, topics, relay, condition)
                    scene.say(f"store {condition}: {mb_s:.0f} MB/s, p99 {p99_ms:.2f} ms")
                    produced.setdefault(condition, []).append(mb_s)
                    latencies.setdefault(condition, []).append(p99_ms)
    figures = []
    for state in (StoreState.SILENT, StoreState.REFUSING):
        figures += [
            figure(f"produce, store {state}", "MB/s", produced[state], UNDISTURBED, produced[UNDISTURBED],
                   (AT_LEAST, round(1 / 1.1, 3))),
            figure(f"end to end p99, store {state}", "ms", latencies[state], UNDISTURBED, latencies[UNDISTURBED],
                   (AT_MOST, 1.1)),
        ]  # fmt: skip
    return figures


def warm_up(scene: Scene, topics: Topics) -> None:
    """Also makes sure that the store is in use: a tiered topic gets there."""
    topic = topics.create(6, 3, TIERED | {"segment.bytes": str(MIB)})
    topics.fill(topic, 6, scene.sized(100 * MIB, 20 * MIB), RECORD_BYTES)
    topics.wait(topic, 6, lambda found: found.tiered * 2 > found.records)
    topics.delete(topic)


def under(scene: Scene, topics: Topics, relay: Relay, condition: str) -> tuple[float, float]:
    """(MB/s, p99 in ms). Latency is measured while what was produced before waits for the store."""
    tiered = TIERED if condition != UNDISTURBED else {}
    relay.become(StoreState.UP if condition == UNDISTURBED else StoreState(condition))
    produce = {"records": scene.sized(RECORDS, 60_000), "size": RECORD_BYTES, "batch": BATCH_BYTES, "run": 2_000}
    probe = {"rate": RATE, "seconds": scene.sized(SECONDS, 4), "size": PROBE_BYTES}
    config: Mapping[str, str] = {**tiered, "segment.bytes": str(8 * MIB)}
    first = run_load("bench.load", "produce", topics.bootstrap, {**produce, "config": config})
    time.sleep(BACKLOG_S)  # every place for copies is taken by now
    config = {**tiered, "segment.bytes": str(MIB)}
    second = run_load("bench.load", "end_to_end", topics.bootstrap, {**probe, "config": config})
    topics.delete(first["topic"], second["topic"])
    relay.become(StoreState.UP)
    time.sleep(BACKLOG_S)
    return first["mb_s"], second["p99_ms"]
