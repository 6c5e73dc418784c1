"""aiokafka and kafka-python: produce, consume in a group, create and describe topics."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from bench.embedded import EmbeddedCluster

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_kafka_python_round_trip(cluster: EmbeddedCluster, codec: str | None) -> None:
    topic = f"kp-{uuid.uuid4().hex[:8]}"
    servers = cluster.bootstrap.split(",")
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 3}}, wait_for_metadata=True)
    described = admin.describe_topics([topic])[0]
    assert len(described["partitions"]) == 2
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", compression_type=codec, enable_idempotence=True)
    for number in range(200):
        producer.send(topic, f"v{number}".encode(), key=str(number).encode(), headers=[("n", b"1")])
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=f"g-{topic}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=15_000,
        enable_auto_commit=False,
    )
    got = []
    for record in consumer:
        assert record.headers == [("n", b"1")]
        got.append(record.value)
        if len(got) == 200:
            break
    consumer.commit()
    assert sorted(got) == sorted(f"v{n}".encode() for n in range(200))
    ends = consumer.end_offsets([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    assert sum(ends.values()) == 200
    consumer.close()
    committed = admin.list_group_offsets({f"g-{topic}": None})[f"g-{topic}"]
    assert sum(entry.offset for entry in committed.values()) == 200
    admin.delete_topics([topic])
    admin.close()


async def test_aiokafka_round_trip_in_a_group(cluster: EmbeddedCluster) -> None:
    topic = f"aio-{uuid.uuid4().hex[:8]}"
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    await admin.create_topics([AioNewTopic(topic, 4, 3)])
    assert len((await admin.describe_topics([topic]))[0]["partitions"]) == 4
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, enable_idempotence=True)
    await producer.start()
    await asyncio.gather(*[producer.send_and_wait(topic, f"v{n}".encode()) for n in range(300)])
    await producer.stop()
    consumers = [
        AIOKafkaConsumer(
            topic, bootstrap_servers=cluster.bootstrap, group_id=f"g-{topic}", auto_offset_reset="earliest"
        )
        for _ in range(2)
    ]
    for consumer in consumers:
        await consumer.start()
    got: set[bytes] = set()

    async def read(consumer: AIOKafkaConsumer) -> None:
        while len(got) < 300:
            batches = await consumer.getmany(timeout_ms=300)
            for records in batches.values():
                got.update(record.value for record in records)

    async with asyncio.timeout(60):
        await asyncio.gather(*[read(consumer) for consumer in consumers])
    for consumer in consumers:
        await consumer.stop()
    await admin.close()
    assert got == {f"v{n}".encode() for n in range(300)}
