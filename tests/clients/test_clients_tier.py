"""A real cluster with a tier: records go in, segments become objects, local copies expire, and all of it is read back.

Replicas move and brokers die meanwhile; nothing that was acknowledged is lost.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.embedded import EmbeddedCluster

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "log.dir.free.bytes.min": "0",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "100",
    "tidelog.tier.interval.ms": "50",
    "tidelog.tier.delete.delay.ms": "0",
    "tidelog.tier.enable": "true",
}
RECORDS = 4_000
VALUE = b"v" * 200
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def tiered() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings=SETTINGS) as running:
        yield running


def eventually(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.05)


def make_topic(cluster: EmbeddedCluster) -> str:
    name = f"tiered-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    config = {"segment.bytes": "65536", "local.retention.ms": "0"}
    admin.create_topics([NewTopic(name, 1, 3, config=config)])[name].result(30)
    return name


def produce(cluster: EmbeddedCluster, topic: str, start: int, count: int) -> None:
    failed: list[object] = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True, "batch.size": 4_000}
    )
    for number in range(start, start + count):
        producer.produce(topic, b"%d " % number + VALUE, on_delivery=lambda e, _: failed.append(e) if e else None)
        producer.poll(0)
    producer.flush(60)
    assert not failed


def numbers(cluster: EmbeddedCluster, topic: str, count: int, offset: int = 0) -> list[int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": uuid.uuid4().hex})
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(1_000, 0.5):
            assert message.error() is None
            assert message.offset() == offset + len(found)
            found.append(int((message.value() or b"").split()[0]))
    consumer.close()
    return found


def objects(cluster: EmbeddedCluster, topic: str) -> list[Path]:
    return sorted((cluster.data / "tier").rglob(f"{topic}-*/0/*.segment"))


def local_segments(cluster: EmbeddedCluster, topic: str) -> list[list[Path]]:
    """By broker that has the partition."""
    found = [sorted(directory.glob("*.log")) for directory in cluster.data.glob(f"broker-*/{topic}-0")]
    return [segments for segments in found if segments]


def test_history_moves_to_the_object_store_and_is_read_back(tiered: EmbeddedCluster) -> None:
    topic = make_topic(tiered)
    produce(tiered, topic, 0, RECORDS)
    eventually(lambda: len(objects(tiered, topic)) >= 10, "segments are in the object store")
    eventually(lambda: all(len(found) <= 2 for found in local_segments(tiered, topic)), "local copies expire")
    assert len(local_segments(tiered, topic)) == 3
    assert numbers(tiered, topic, RECORDS) == list(range(RECORDS))


def test_nothing_is_lost_when_leaders_die(tiered: EmbeddedCluster) -> None:
    topic = make_topic(tiered)
    produce(tiered, topic, 0, RECORDS // 2)
    admin = AdminClient({"bootstrap.servers": tiered.bootstrap})
    leader = admin.list_topics(topic).topics[topic].partitions[0].leader
    tiered.kill(f"broker-{leader}")
    produce(tiered, topic, RECORDS // 2, RECORDS // 2)
    eventually(lambda: len(objects(tiered, topic)) >= 10, "the next leader copies on")
    tiered.command("start", f"broker-{leader}")
    assert numbers(tiered, topic, RECORDS) == list(range(RECORDS))
    covered = sorted(int(path.name[:20]) for path in objects(tiered, topic))
    assert len(set(covered)) == len(covered)


def test_deleted_records_leave_the_object_store(tiered: EmbeddedCluster) -> None:
    topic = make_topic(tiered)
    produce(tiered, topic, 0, RECORDS)
    eventually(lambda: len(objects(tiered, topic)) >= 10, "segments are in the object store")
    before = len(objects(tiered, topic))
    admin = AdminClient({"bootstrap.servers": tiered.bootstrap})
    admin.delete_records([TopicPartition(topic, 0, RECORDS // 2)])[TopicPartition(topic, 0)].result(30)
    eventually(lambda: len(objects(tiered, topic)) <= before * 2 // 3, "objects go")
    rest = numbers(tiered, topic, RECORDS // 2, RECORDS // 2)
    assert rest == list(range(RECORDS // 2, RECORDS))
