"""Producers and recent readers while the object store is silent, or refuses every connection.

The store is moto's S3 server behind a relay. Throughput is compared with that of a topic which has nothing to do with
the tier, since with a store that works copying would take its share. Latency is that of one trickle into a tiered topic
whose small segments close all the time, while the store goes and comes back.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, pairwise

from aiobotocore.session import get_session

from bench.embedded import EmbeddedCluster
from bench.peers import cpu_seconds
from bench.rows import AT_LEAST, AT_MOST, Figure, Scene, figure
from bench.tier.probing import Probe, sleep_until
from bench.tier.relay import Relay, StoreState
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
DOWN = (StoreState.SILENT, StoreState.REFUSING)
PARTITIONS = 6
RECORDS, RECORD_BYTES, BATCH_BYTES = 400_000, 1024, 1_000_000
BACKLOG, BACKLOG_PARTITIONS = 50 * MIB, 12  # each broker leads as many as it copies at a time
RATE, PROBE_BYTES = 500, 2_048
CYCLES, WINDOW_S, SETTLE_S = 4, 6.0, 2.0  # latencies count from SETTLE_S after a change on
LEAD_S, TAIL_S, CATCH_UP_S = 2.0, 2.0, 2.0


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
    with s3_server() as port, Relay(port) as relay:
        uri = f"s3://{BUCKET}/tier?endpoint=http://127.0.0.1:{relay.port}&region=us-east-1"
        settings = {"tidelog.tier.uri": uri, "tidelog.tier.delete.delay.ms": "0"}
        with EmbeddedCluster(settings=settings, data=scene.work / "store-down") as cluster:
            topics = Topics(cluster.bootstrap)
            warm_up(scene, topics)
            figures = throughput(scene, topics, relay, [node["pid"] for node in cluster.nodes()])
            return figures + latency(scene, topics, relay)


def warm_up(scene: Scene, topics: Topics) -> None:
    """Also makes sure that the store is in use: a tiered topic gets there."""
    topic = topics.create(PARTITIONS, 3, TIERED | {"segment.bytes": str(MIB)})
    topics.fill(topic, PARTITIONS, scene.sized(100 * MIB, 20 * MIB), RECORD_BYTES)
    topics.wait(topic, PARTITIONS, lambda found: found.tiered * 2 > found.records)
    topics.delete(topic)


def throughput(scene: Scene, topics: Topics, relay: Relay, pids: list[int]) -> list[Figure]:
    produced: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    conditions = [UNDISTURBED, *DOWN]
    for number in range(scene.rounds):
        turn = number % len(conditions)
        for condition in chain(conditions[turn:], conditions[:turn]):
            mb_s, cpu_s_gb = produce(scene, topics, relay, condition, pids)
            scene.say(f"store {condition}: {mb_s:.0f} MB/s, {cpu_s_gb:.2f} CPU s/GB")
            produced.setdefault(condition, []).append(mb_s)
            cpu.setdefault(condition, []).append(cpu_s_gb)
    figures = []
    for state in DOWN:
        figures += [
            figure(f"produce, store {state}", "MB/s", produced[state], UNDISTURBED, produced[UNDISTURBED],
                   (AT_LEAST, round(1 / 1.1, 3))),
            figure(f"produce, store {state}, CPU", "s/GB", cpu[state], UNDISTURBED, cpu[UNDISTURBED]),
        ]  # fmt: skip
    return figures


def produce(scene: Scene, topics: Topics, relay: Relay, condition: str, pids: list[int]) -> tuple[float, float]:
    """(MB/s, CPU seconds of all nodes per gigabyte). A store that is down has been so: every place for copies waits."""
    relay.become(StoreState.UP if condition == UNDISTURBED else StoreState(condition))
    made = [backlog(topics)] if condition != UNDISTURBED else []
    config = {**({} if condition == UNDISTURBED else TIERED), "segment.bytes": str(8 * MIB)}
    load = {"records": scene.sized(RECORDS, 60_000), "size": RECORD_BYTES, "batch": BATCH_BYTES, "run": 2_000}
    before = cpu_seconds(pids)
    found = run_load("bench.load", "produce", topics.bootstrap, {**load, "config": config})
    used = cpu_seconds(pids) - before
    topics.delete(found["topic"], *made)
    relay.become(StoreState.UP)
    time.sleep(CATCH_UP_S)
    return found["mb_s"], used / found["gigabytes"]


def backlog(topics: Topics) -> str:
    """A topic with more closed segments than are copied at a time."""
    topic = topics.create(BACKLOG_PARTITIONS, 3, TIERED | {"segment.bytes": str(MIB)})
    topics.fill(topic, BACKLOG_PARTITIONS, BACKLOG, RECORD_BYTES)
    time.sleep(CATCH_UP_S)
    return topic


def latency(scene: Scene, topics: Topics, relay: Relay) -> list[Figure]:
    """Each window with the store down is compared with the one before, in which it was up."""
    cycles = scene.sized(CYCLES, 2)
    topic = topics.create(PARTITIONS, 3, TIERED | {"segment.bytes": str(MIB)})
    seconds = LEAD_S + 2 * cycles * len(DOWN) * WINDOW_S + TAIL_S
    windows: list[tuple[StoreState, tuple[float, float]]] = []
    with Probe(topics, topic, PARTITIONS, RATE, PROBE_BYTES, seconds) as probe:
        time.sleep(LEAD_S)
        for state in [state for _ in range(cycles) for down in DOWN for state in (StoreState.UP, down)]:
            relay.become(state)
            begin = time.monotonic()
            sleep_until(begin + WINDOW_S)
            windows.append((state, (begin + SETTLE_S, begin + WINDOW_S)))
        relay.become(StoreState.UP)
    p99 = [(state, probe.p99_ms(window)) for state, window in windows]
    scene.say(f"p99 in ms: {', '.join(f'{state} {ms:.1f}' for state, ms in p99)}")
    figures = []
    for down in DOWN:
        pairs = [(ms, before[1]) for before, (state, ms) in pairwise(p99) if state is down]
        figures.append(
            figure(f"end to end p99, store {down}", "ms", [ms for ms, _ in pairs], "store up",
                   [before for _, before in pairs], (AT_MOST, 1.1))
        )  # fmt: skip
    return figures
