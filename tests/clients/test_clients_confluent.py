"""librdkafka through confluent-kafka: produce, groups, administration, errors."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from bench.embedded import EmbeddedCluster

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def make_topic(admin: AdminClient, partitions: int = 3, **config: str) -> str:
    name = fresh("t")
    admin.create_topics([NewTopic(name, partitions, 3, config=config)])[name].result(30)
    return name


def send(bootstrap: str, topic: str, count: int, **settings: object) -> None:
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    for number in range(count):
        producer.produce(
            topic,
            f"value-{number}".encode(),
            f"key-{number}".encode(),
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert errors == []


def read(bootstrap: str, topic: str, count: int, group: str, timeout_s: float = 30.0) -> list[tuple[int, int, bytes]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    got: list[tuple[int, int, bytes]] = []
    deadline = time.monotonic() + timeout_s
    while len(got) < count and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.5):
            assert message.error() is None
            got.append((message.partition() or 0, message.offset() or 0, message.value() or b""))
    if got:
        consumer.commit(asynchronous=False)
    consumer.close()
    return got


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_read(cluster: EmbeddedCluster, admin: AdminClient, codec: str) -> None:
    topic = make_topic(admin)
    send(cluster.bootstrap, topic, 1_000, **{"compression.type": codec, "enable.idempotence": True, "acks": "all"})
    got = read(cluster.bootstrap, topic, 1_000, fresh("g"))
    assert sorted(value for _, _, value in got) == sorted(f"value-{n}".encode() for n in range(1_000))


@pytest.mark.parametrize("stored", ["uncompressed", "zstd"])
def test_a_topic_may_ask_for_another_codec_and_for_append_time(
    cluster: EmbeddedCluster, admin: AdminClient, stored: str
) -> None:
    topic = make_topic(admin, 1, **{"compression.type": stored, "message.timestamp.type": "LogAppendTime"})
    send(cluster.bootstrap, topic, 100, **{"compression.type": "lz4"})
    got = read(cluster.bootstrap, topic, 100, fresh("g"))
    assert [value for _, _, value in got] == [f"value-{n}".encode() for n in range(100)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(cluster: EmbeddedCluster, admin: AdminClient, acks: str) -> None:
    topic = make_topic(admin, 1)
    send(cluster.bootstrap, topic, 50, acks=acks)
    assert len(read(cluster.bootstrap, topic, 50, fresh("g"))) == 50


def test_an_unknown_topic_is_made_on_demand(cluster: EmbeddedCluster) -> None:
    topic = fresh("auto")
    send(cluster.bootstrap, topic, 10)
    assert len(read(cluster.bootstrap, topic, 10, fresh("g"))) == 10


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_shares_partitions_and_survives_a_member(
    cluster: EmbeddedCluster, admin: AdminClient, strategy: str
) -> None:
    topic, group = make_topic(admin, 6), fresh("g")
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": strategy,
        "session.timeout.ms": 6_000,
    }
    stop = [threading.Event() for _ in range(3)]
    seen: Counter[bytes] = Counter()
    by_member: list[set[int]] = [set(), set(), set()]
    lock = threading.Lock()

    def member(index: int) -> None:
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        while not stop[index].is_set():
            for message in consumer.consume(100, 0.1):
                if message.error() is None:
                    with lock:
                        seen[message.value() or b""] += 1
                        by_member[index].add(message.partition() or 0)
        consumer.close()

    threads = [threading.Thread(target=member, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 40
        sent = 0
        while time.monotonic() < deadline and not all(by_member):
            send(cluster.bootstrap, topic, 60, **{"client.id": f"s{sent}"})
            sent += 1
            time.sleep(0.2)  # a wait between tries, the loop ends on the event
        assert all(by_member), "every member got partitions"
        stop[0].set()
        threads[0].join(20)
        for tracked in by_member:
            tracked.clear()
        while time.monotonic() < deadline and by_member[1] | by_member[2] != set(range(6)):
            send(cluster.bootstrap, topic, 60)
            time.sleep(0.2)
        assert by_member[1] | by_member[2] == set(range(6)), "the others took over"
    finally:
        for event in stop:
            event.set()
        for thread in threads:
            thread.join(20)


def test_committed_offsets_are_kept(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    topic, group = make_topic(admin, 1), fresh("g")
    send(cluster.bootstrap, topic, 20)
    assert len(read(cluster.bootstrap, topic, 20, group)) == 20
    send(cluster.bootstrap, topic, 5)
    assert len(read(cluster.bootstrap, topic, 5, group)) == 5
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    assert consumer.committed([TopicPartition(topic, 0)], 10)[0].offset == 25
    consumer.close()
    never_used = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": fresh("never")})
    assert never_used.committed([TopicPartition(topic, 0)], 10)[0].offset == -1001  # librdkafka's word for -1
    never_used.close()


def test_a_static_member_returns_without_a_rebalance(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    topic, group = make_topic(admin, 2), fresh("g")
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "group.instance.id": "one",
        "session.timeout.ms": 300_000,  # who had to wait for its end would not join in time
        "auto.offset.reset": "earliest",
    }

    def join() -> str:
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        deadline = time.monotonic() + 30
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        assert len(consumer.assignment()) == 2
        member = str(consumer.memberid())
        consumer.close()
        return member

    first = join()
    second = join()
    assert first != second


def test_administration(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    topic = make_topic(admin, 2, **{"retention.ms": "3600000"})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    described = admin.list_topics(topic, timeout=10).topics[topic]
    assert len(described.partitions) == 5
    assert all(len(p.replicas) == 3 and p.leader in p.isrs for p in described.partitions.values())
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result(30)
    assert configs["retention.ms"].value == "3600000"
    assert configs["cleanup.policy"].value == "delete"
    assert configs["min.insync.replicas"].value == "2"
    cluster_info = admin.describe_cluster().result(30)
    assert len(cluster_info.nodes) == 3
    assert cluster_info.controller.id in {0, 1, 2}
    admin.delete_topics([topic])[topic].result(30)
    assert topic not in admin.list_topics(timeout=10).topics


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("not a name", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("ok-but-7", 1, 7), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("ok-but-bad", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
        (
            NewTopic("ok-but-kept", 1, 1, config={"remote.storage.enable": "true", "local.retention.ms": "-1"}),
            KafkaError.INVALID_CONFIG,
        ),
    ],
    ids=str,
)
def test_a_wrong_topic_is_refused_with_the_right_code(admin: AdminClient, topic: NewTopic, code: int) -> None:
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([topic])[topic.topic].result(30)
    assert refused.value.args[0].code() == code
    assert refused.value.args[0].str()


def test_a_record_over_the_limit_is_refused(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    topic = make_topic(admin, 1, **{"max.message.bytes": "2000"})
    outcome: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, b"x" * 5_000, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(30)
    assert outcome[0] is not None
    assert outcome[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_offsets_are_found_by_time(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    topic = make_topic(admin, 1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    base = int(time.time() * 1_000) - 10_000
    for number in range(10):
        producer.produce(topic, b"x", timestamp=base + number * 100)
        producer.flush(10)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": fresh("g")})
    found = consumer.offsets_for_times([TopicPartition(topic, 0, base + 350)], 10)
    assert found[0].offset == 4
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 10) == (0, 10)
    consumer.close()


def test_records_are_deleted_up_to_an_offset(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    topic = make_topic(admin, 1)
    send(cluster.bootstrap, topic, 30)
    admin.delete_records([TopicPartition(topic, 0, 12)])[TopicPartition(topic, 0, 12)].result(30)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": fresh("g")})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 10) == (12, 30)
    consumer.close()
