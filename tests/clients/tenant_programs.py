"""Clients of others as tenants, each a program of its own, so that it can run where tenants' host names resolve.

`python -m tests.clients.tenant_programs LIBRARY PROPERTIES TOPIC COUNT` makes the topic, writes COUNT records, reads
them back in a group, and prints what it saw as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.tenant_clients import client_configuration

PARTITIONS = 3
TIMEOUT_S = 90.0


def value(number: int) -> bytes:
    return f"value {number} ".encode() * 50


def confluent(client: dict[str, Any], topic: str, count: int) -> dict[str, Any]:
    from confluent_kafka import Consumer, Producer  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415

    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, PARTITIONS, -1)])[topic].result(60)
    producer = Producer(client | {"enable.idempotence": "true"})
    for number in range(count):
        producer.produce(topic, value(number))
    assert producer.flush(60) == 0
    consumer = Consumer(client | {"group.id": f"g-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append(message.value() or b"")
    consumer.commit(asynchronous=False)
    consumer.close()
    seen = admin.list_topics(timeout=30)
    groups = admin.list_consumer_groups(request_timeout=30).result().valid
    return {
        "values": [one.decode() for one in values],
        "topics": sorted(seen.topics),
        "groups": sorted(group.group_id for group in groups or []),
        "hosts": sorted(broker.host for broker in seen.brokers.values()),
        "cluster": seen.cluster_id,
    }


def kafka_python(client: dict[str, Any], topic: str, count: int) -> dict[str, Any]:
    from kafka import KafkaConsumer, KafkaProducer  # noqa: PLC0415
    from kafka.admin import KafkaAdminClient, NewTopic  # noqa: PLC0415

    security = _python_security(client) | {"ssl_cafile": client["ssl.ca.location"]}
    admin = KafkaAdminClient(**security)
    admin.create_topics([NewTopic(topic, PARTITIONS, -1)])
    producer = KafkaProducer(acks="all", **security)
    for number in range(count):
        producer.send(topic, value(number))
    producer.close(timeout=60)
    consumer = KafkaConsumer(
        topic, group_id=f"g-{topic}", auto_offset_reset="earliest", consumer_timeout_ms=60_000, **security
    )
    values = [message.value for _, message in zip(range(count), consumer, strict=False)]
    topics = sorted(consumer.topics())
    consumer.close()
    seen = admin.describe_cluster()
    admin.close()
    return {
        "values": [one.decode() for one in values],
        "topics": topics,
        "hosts": sorted(broker["host"] for broker in seen["brokers"]),
        "cluster": seen["cluster_id"],
    }


def aiokafka(client: dict[str, Any], topic: str, count: int) -> dict[str, Any]:
    return asyncio.run(_aiokafka(client, topic, count))


async def _aiokafka(client: dict[str, Any], topic: str, count: int) -> dict[str, Any]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # noqa: PLC0415

    context = ssl.create_default_context(cafile=client["ssl.ca.location"])
    security = _python_security(client) | {"ssl_context": context}
    async with AIOKafkaProducer(enable_idempotence=True, **security) as producer:
        for number in range(count):
            await producer.send(topic, value(number))
        await producer.flush()
    values: list[bytes] = []
    consumer = AIOKafkaConsumer(topic, group_id=f"g-{topic}", auto_offset_reset="earliest", **security)
    async with asyncio.timeout(TIMEOUT_S), consumer:
        while len(values) < count:
            got = await consumer.getmany(timeout_ms=5_000)
            values += [message.value for batch in got.values() for message in batch]
        topics = sorted(await consumer.topics())
    return {"values": [one.decode() for one in values], "topics": topics}


def _python_security(client: dict[str, Any]) -> dict[str, Any]:
    return {
        "bootstrap_servers": client["bootstrap.servers"],
        "security_protocol": client["security.protocol"],
        "sasl_mechanism": client["sasl.mechanism"],
        "sasl_plain_username": client["sasl.username"],
        "sasl_plain_password": client["sasl.password"],
    }


def steady(client: dict[str, Any], topic: str, count: int) -> dict[str, Any]:
    """Write for a while with acknowledgements, a record a few milliseconds; then read all of it back.

    Says `begun` when the first record is written, so that somebody can hurt the proxies meanwhile.
    """
    from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415

    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, 1, -1)])[topic].result(60)
    acknowledged: list[str] = []
    failed: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acknowledged.append((message.value() or b"").decode())
        else:
            failed.append(error.name())
        if len(acknowledged) == 1:
            print("begun", flush=True)

    quick = {"reconnect.backoff.max.ms": "500", "socket.connection.setup.timeout.ms": "5000"}
    producer = Producer(client | quick | {"acks": "all", "enable.idempotence": "true", "linger.ms": "0"})
    for number in range(count):
        producer.produce(topic, str(number), on_delivery=delivered)
        producer.poll(0.005)
    assert producer.flush(90) == 0
    consumer = Consumer(client | quick | {"group.id": "none", "enable.auto.commit": "false"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(values) < len(acknowledged) and time.monotonic() < deadline:
        values += [(m.value() or b"").decode() for m in consumer.consume(1_000, 1.0) if m.error() is None]
    consumer.close()
    return {"values": values, "acknowledged": acknowledged, "failed": failed}


def committing(client: dict[str, Any], topic: str, count: int) -> dict[str, Any]:
    """Read in a group what is written meanwhile, commit as often as it goes, until a line comes on stdin.

    Prints `flowing` after `count` commits. `acknowledged` are the last commits that were, `committed` what the group
    has in the end, `behind` each start from less than was acknowledged, `longest_s` the longest time without a commit.
    """
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415

    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, PARTITIONS, -1)])[topic].result(60)
    group = {"group.id": f"g-{topic}", "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    producer, consumer = Producer(client | {"linger.ms": "5"}), Consumer(client | group)
    acknowledged: dict[int, int] = {}
    behind: list[list[int]] = []
    failures, commits, longest_s = dict[str, int](), 0, 0.0

    def assigned(_: Any, partitions: list[TopicPartition]) -> None:
        found = consumer.committed(partitions, timeout=TIMEOUT_S)
        starts = {one.partition: one.offset for one in found}
        behind.extend([at, start] for at, start in starts.items() if start < acknowledged.get(at, start))

    def coordinator() -> int:
        admin = AdminClient(client)  # a new one: it asks for a coordinator once and remembers it
        described = admin.describe_consumer_groups([group["group.id"]], request_timeout=60)
        return int(described[group["group.id"]].result(60).coordinator.id)

    consumer.subscribe([topic], on_assign=assigned)
    waiter = threading.Thread(target=sys.stdin.readline, daemon=True)
    waiter.start()
    since = time.monotonic()
    first = -1
    while waiter.is_alive():
        producer.produce(topic, value(commits))
        producer.poll(0)
        message = consumer.poll(0.05)
        if message is None or message.error() is not None:
            continue
        try:
            for done in consumer.commit(message=message, asynchronous=False) or []:
                acknowledged[done.partition] = max(done.offset, acknowledged.get(done.partition, 0))
        except KafkaException as error:
            name = error.args[0].name()
            failures[name] = failures.get(name, 0) + 1
            continue
        commits += 1
        longest_s, since = max(longest_s, time.monotonic() - since), time.monotonic()
        if commits == count:
            first, longest_s = coordinator(), 0.0
            print("flowing", flush=True)
    asked = [TopicPartition(topic, partition) for partition in acknowledged]
    committed = {found.partition: found.offset for found in consumer.committed(asked, timeout=TIMEOUT_S)}
    last = coordinator()
    consumer.close()
    return {
        "acknowledged": acknowledged,
        "committed": committed,
        "behind": behind,
        "failures": failures,
        "commits": commits,
        "longest_s": longest_s,
        "coordinators": [first, last],
    }


def refused(client: dict[str, Any], topic: str, count: int) -> dict[str, Any]:
    """What a client is told whom the cluster lets in under no name; `count` is how many seconds it tries."""
    from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    errors: list[str] = []

    def note(error: KafkaError) -> None:
        errors.append(error.name())

    admin = AdminClient(client | {"error_cb": note})
    try:
        seen = admin.list_topics(timeout=count)
    except KafkaException:
        admin.poll(0.5)  # which calls back
        return {"errors": sorted(set(errors)), "topics": None}
    return {"errors": sorted(set(errors)), "topics": sorted(seen.topics)}


PROGRAMS = {program.__name__: program for program in (confluent, kafka_python, aiokafka, steady, committing, refused)}


def main(arguments: list[str]) -> int:
    library, properties, topic, count = arguments
    seen = PROGRAMS[library](client_configuration(Path(properties)), topic, int(count))
    print(json.dumps(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
