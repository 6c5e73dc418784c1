"""Transactions across the boundaries of segments, in a real cluster: readers of committed records see the same on the
leader's disk, in the tier and in Spark. A transaction that hangs is named and ended, and the tier goes on."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from bench.embedded import EmbeddedCluster
from records.builder import build_batch
from records.record import Record
from tests.tidelog.test_tidelog_tier_rebuild import wait_for
from wire.codec import decode_response, encode_request
from wire.messages import ProduceRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "log.dir.free.bytes.min": "0",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "100",
    "tidelog.tier.interval.ms": "50",
    "tidelog.tier.enable": "true",
    "transaction.partition.verification.enable": "false",  # otherwise no transaction would hang
}
PATIENCE_S = 90.0
SEGMENT_BYTES, VALUE_BYTES = 16_384, 1_500
PARTITIONS = 2
PRODUCE, PRODUCE_VERSION = 0, 11
LOST_PRODUCER = 424_242


class Seen(NamedTuple):
    partition: int
    offset: int
    value: bytes


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings=SETTINGS) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    name = f"txn-{uuid4().hex[:8]}"
    config = {"segment.bytes": str(SEGMENT_BYTES), "local.retention.ms": "-1", "retention.ms": "-1"}
    client = admin(cluster)  # the futures need it
    client.create_topics([NewTopic(name, PARTITIONS, 3, config=config)])[name].result(PATIENCE_S)
    return name


def admin(cluster: EmbeddedCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def fill(cluster: EmbeddedCluster, topic: str, segments: int = 4) -> list[bytes]:
    """Plain records that close the segments before them in every partition."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
    values = [
        f"plain-{number}-".encode().ljust(VALUE_BYTES, b".")
        for number in range(segments * SEGMENT_BYTES // VALUE_BYTES)
    ]
    for partition in range(PARTITIONS):
        for value in values:
            producer.produce(topic, value, partition=partition)
            producer.flush(PATIENCE_S)
    return values * PARTITIONS


class Program:
    """One transactional producer. Its transactions stay open over several segments of its partitions."""

    def __init__(self, cluster: EmbeddedCluster, topic: str, number: int, chance: random.Random) -> None:
        self.committed: list[bytes] = []
        self._topic = topic
        self._number = number
        self._chance = chance
        self._sent: list[bytes] | None = None
        self._count = 0
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}-{number}", "linger.ms": 0}
        )
        self._producer.init_transactions(PATIENCE_S)

    def step(self) -> None:
        if self._sent is None:
            self._producer.begin_transaction()
            self._sent = []
        elif self._sent and self._chance.random() < 0.1:
            self.end()
        else:
            self._count += 1
            value = f"{self._number}-{self._count}-".encode().ljust(self._chance.randrange(100, VALUE_BYTES), b".")
            self._producer.produce(self._topic, value, partition=self._chance.randrange(PARTITIONS))
            self._producer.flush(PATIENCE_S)
            self._sent.append(value)

    def end(self) -> None:
        if self._sent is None:
            return
        if self._chance.random() < 0.5:
            self._producer.commit_transaction(PATIENCE_S)
            self.committed += self._sent
        else:
            self._producer.abort_transaction(PATIENCE_S)
        self._sent = None


def read_committed(cluster: EmbeddedCluster, topic: str) -> list[Seen]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": uuid4().hex, "isolation.level": "read_committed",
         "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[Seen] = []
    ended: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition() or 0)
        else:
            found.append(Seen(message.partition() or 0, message.offset() or 0, message.value() or b""))
    consumer.close()
    return sorted(found)


def tier_ends(cluster: EmbeddedCluster, topic: str) -> list[int]:
    """Where the newest manifest of each partition ends, which is what Spark reads."""
    ends = []
    for partition in range(PARTITIONS):
        manifests = sorted((cluster.data / "tier").glob(f"*/_/{topic}-*/{partition}/manifest/*"))
        ends.append(max((json.loads(path.read_text())["end_offset"] for path in manifests), default=0))
    return ends


def ends_of(cluster: EmbeddedCluster, topic: str, isolation: str) -> list[int]:
    """High watermarks, or with read_committed last stable offsets."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": uuid4().hex, "isolation.level": isolation})
    found = [
        consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_S)[1]
        for partition in range(PARTITIONS)
    ]
    consumer.close()
    return found


def local_logs(cluster: EmbeddedCluster, topic: str) -> list[int]:
    """Number of segments of each replica on a disk."""
    return [len(list(directory.glob("*.log"))) for directory in cluster.data.glob(f"broker-*/{topic}-*")]


@pytest.mark.parametrize("seed", [1, 2])
def test_transactions_read_alike_hot_cold_and_in_spark(
    cluster: EmbeddedCluster, spark: SparkSession, topic: str, seed: int
) -> None:
    chance = random.Random(seed)
    programs = [Program(cluster, topic, number, chance) for number in range(4)]
    for _ in range(300):
        chance.choice(programs).step()
    for program in programs:
        program.end()
    transactions_end = ends_of(cluster, topic, "read_committed")
    plain = fill(cluster, topic)
    hot = read_committed(cluster, topic)
    committed = [value for program in programs for value in program.committed]
    assert sorted(one.value for one in hot) == sorted(committed + plain)
    assert len(committed) > 50

    kept = ConfigEntry("local.retention.ms", "0", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[kept])
    client = admin(cluster)
    client.incremental_alter_configs([change])[change].result(PATIENCE_S)
    wait_for(lambda: all(count <= 2 for count in local_logs(cluster, topic)), PATIENCE_S)
    assert read_committed(cluster, topic) == hot

    wait_for(
        lambda: all(tier > end for tier, end in zip(tier_ends(cluster, topic), transactions_end, strict=True)),
        PATIENCE_S,
    )
    tier = tier_ends(cluster, topic)
    source = spark.read.format("tidelog").options(
        tier=(cluster.data / "tier").as_uri(), topic=topic, isolation="read_committed",
        endingOffsets=json.dumps({topic: {str(partition): end for partition, end in enumerate(tier)}}),
    )  # fmt: skip
    rows = source.load().select("partition", "offset", "value").collect()
    assert sorted(Seen(row[0], row[1], bytes(row[2])) for row in rows) == [
        one for one in hot if one.offset < tier[one.partition]
    ]


def inject(cluster: EmbeddedCluster, topic: str, partition: int) -> None:
    """One transactional record of a producer that no coordinator knows."""
    batch = build_batch(
        [Record(0, time.time_ns() // 1_000_000, None, b"lost", ())],
        producer_id=LOST_PRODUCER, producer_epoch=0, base_sequence=0, transactional=True,
    )  # fmt: skip
    data = ProduceRequest.TopicProduceData
    row = data.PartitionProduceData(index=partition, records=bytes(batch))
    request = ProduceRequest(
        transactional_id="lost", acks=-1, timeout_ms=30_000, topic_data=[data(name=topic, partition_data=[row])]
    )
    metadata = admin(cluster).list_topics(topic, timeout=PATIENCE_S)
    leader = metadata.brokers[metadata.topics[topic].partitions[partition].leader]
    with socket.create_connection((leader.host, leader.port), PATIENCE_S) as link:
        link.sendall(encode_request(request, PRODUCE_VERSION, 1, "lost"))
        stream = link.makefile("rb")
        answer = stream.read(int.from_bytes(stream.read(4), "big"))
    response = decode_response(PRODUCE, PRODUCE_VERSION, answer)[1]
    assert response.responses[0].partition_responses[0].error_code == 0


def test_a_hanging_transaction_is_named_and_its_abort_sets_tier_and_readers_free(
    cluster: EmbeddedCluster, topic: str
) -> None:
    fill(cluster, topic)
    inject(cluster, topic, 1)
    begin = ends_of(cluster, topic, "read_committed")[1]
    fill(cluster, topic, 6)
    high = ends_of(cluster, topic, "read_uncommitted")
    wait_for(lambda: tier_ends(cluster, topic)[0] > begin, PATIENCE_S)
    assert ends_of(cluster, topic, "read_committed") == [high[0], begin]
    assert tier_ends(cluster, topic)[1] <= begin

    (found,) = json.loads(cluster.command_of("transactions", "doctor", "--topic", topic, "--json"))
    assert (found["class"], found["producer_id"], found["partitions"]) == ("hanging", LOST_PRODUCER, [f"{topic}-1"])
    assert found["records_behind"] == high[1] - begin
    assert found["tier_bytes"] > 3 * SEGMENT_BYTES
    where = ("--topic", topic, "--partition", "1", "--producer-id", str(LOST_PRODUCER))
    assert "would abort" in cluster.command_of("transactions", "abort", *where, "--dry-run")
    assert ends_of(cluster, topic, "read_committed")[1] == begin
    assert "aborted" in cluster.command_of("transactions", "abort", *where)
    wait_for(lambda: ends_of(cluster, topic, "read_committed")[1] == high[1] + 1, PATIENCE_S)
    wait_for(lambda: tier_ends(cluster, topic)[1] > begin + 2 * SEGMENT_BYTES // VALUE_BYTES, PATIENCE_S)
    assert json.loads(cluster.command_of("transactions", "doctor", "--topic", topic, "--json")) == []
    assert all(one.value != b"lost" for one in read_committed(cluster, topic))
