"""Transactional producers of other people's clients: what commits is read whole and once, what aborts never, and a
second producer of the same id ends the first."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from bench.embedded import EmbeddedCluster
from tests.prepared_command import prepared

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

PATIENCE_S = 60.0


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    name = f"txn-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 3, 3)])[name].result(PATIENCE_S)
    return name


def read_all(cluster: EmbeddedCluster, topic: str, count: int, isolation: str = "read_committed") -> list[bytes]:
    """The values of a topic until `count` are there, and whatever follows in a moment."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap, "group.id": uuid4().hex, "auto.offset.reset": "earliest",
            "isolation.level": isolation, "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline, quiet_until = time.monotonic() + PATIENCE_S, 0.0
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            found.append(message.value() or b"")
        if len(found) >= count:
            quiet_until = quiet_until or time.monotonic() + 0.5
            if time.monotonic() > quiet_until:
                break
    consumer.close()
    return sorted(found)


def librdkafka(cluster: EmbeddedCluster, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(PATIENCE_S)
    return producer


def test_librdkafka_commits_and_aborts(cluster: EmbeddedCluster, topic: str) -> None:
    producer = librdkafka(cluster, f"{topic}-id")
    for number in range(6):
        producer.begin_transaction()
        for index in range(3):
            producer.produce(topic, f"{number}-{index}".encode(), partition=index)
        producer.flush(PATIENCE_S)
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    expected = sorted(f"{number}-{index}".encode() for number in (0, 2, 4) for index in range(3))
    assert read_all(cluster, topic, len(expected)) == expected
    assert len(read_all(cluster, topic, 18, "read_uncommitted")) == 18


def test_a_second_producer_of_the_id_fences_the_first_and_ends_its_transaction(
    cluster: EmbeddedCluster, topic: str
) -> None:
    first = librdkafka(cluster, f"{topic}-id")
    first.begin_transaction()
    first.produce(topic, b"of the first", partition=0)
    first.flush(PATIENCE_S)
    second = librdkafka(cluster, f"{topic}-id")
    second.begin_transaction()
    second.produce(topic, b"of the second", partition=0)
    second.commit_transaction(PATIENCE_S)
    with pytest.raises(KafkaException) as failure:
        first.commit_transaction(PATIENCE_S)
    assert failure.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    assert failure.value.args[0].fatal()
    assert read_all(cluster, topic, 1) == [b"of the second"]


def test_offsets_and_records_commit_together(cluster: EmbeddedCluster, topic: str) -> None:
    """A copy from one topic to another, whose first attempt is aborted: it begins again where the group stood."""
    target, group = f"{topic}-copy", f"{topic}-group"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(target, 1, 3)])[target].result(PATIENCE_S)
    feeder = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(9):
        feeder.produce(topic, str(number).encode(), partition=number % 3)
    feeder.flush(PATIENCE_S)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "isolation.level": "read_committed",
        }
    )  # fmt: skip
    consumer.subscribe([topic])
    producer = librdkafka(cluster, f"{topic}-id")
    for ends in (producer.abort_transaction, producer.commit_transaction):
        taken: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(taken) < 9 and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                taken.append(message.value() or b"")
        producer.begin_transaction()
        for value in taken:
            producer.produce(target, value, partition=0)
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), PATIENCE_S)
        ends(PATIENCE_S)
        if ends == producer.abort_transaction:
            for one in consumer.assignment():
                consumer.seek(TopicPartition(one.topic, one.partition, 0))
    committed = consumer.committed([TopicPartition(topic, index) for index in range(3)], timeout=PATIENCE_S)
    consumer.close()
    assert [one.offset for one in committed] == [3, 3, 3]
    assert read_all(cluster, target, 9) == sorted(str(number).encode() for number in range(9))


def test_kafka_python_commits_and_aborts(cluster: EmbeddedCluster, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=f"{topic}-id")
    producer.init_transactions()
    ends: list[Callable[[], None]] = [producer.commit_transaction, producer.abort_transaction]
    for number, end in enumerate(ends * 2):
        producer.begin_transaction()
        producer.send(topic, str(number).encode(), partition=0).get(PATIENCE_S)
        end()
    producer.close()
    assert read_all(cluster, topic, 2) == [b"0", b"2"]
    consumer = KafkaConsumer(
        topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed",
        consumer_timeout_ms=3_000,
    )  # fmt: skip
    assert [message.value for message in consumer] == [b"0", b"2"]
    consumer.close()


async def test_aiokafka_commits_and_aborts(cluster: EmbeddedCluster, topic: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=f"{topic}-id")
    async with asyncio.timeout(PATIENCE_S):
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"committed", partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted", partition=0)
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"committed later", partition=1)
        await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed",
        )  # fmt: skip
        await consumer.start()
        found = [(await consumer.getone()).value for _ in range(2)]
        await consumer.stop()
    assert sorted(found) == [b"committed", b"committed later"]


def test_an_operator_aborts_a_transaction_once(cluster: EmbeddedCluster, topic: str) -> None:
    name = f"{topic}-id"
    producer = librdkafka(cluster, name)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", partition=0)
    producer.flush(PATIENCE_S)
    doctor = ["transactions", "doctor", "--topic", topic, "--json", "--bootstrap", cluster.bootstrap]
    (found,) = json.loads(prepared(doctor).stdout)
    assert (found["class"], found["transactional_id"]) == ("young", name)
    assert (found["client_id"], found["client_host"]) == ("rdkafka", "127.0.0.1")
    abort = ["transactions", "abort", name, "--bootstrap", cluster.bootstrap]
    done = prepared(abort)
    assert done.returncode == 0 and f"aborted {name}" in done.stdout
    again = prepared(abort)
    assert again.returncode == 1 and "has no transaction to abort" in again.stderr
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_S)
    assert read_all(cluster, topic, 0) == []


@pytest.mark.parametrize(
    "words", [["doctor", "--topic", "nope"], ["abort", "--topic", "nope", "--partition", "0", "--producer-id", "5"]]
)
def test_a_topic_that_is_not_there_does_not_pass_for_one_without_transactions(
    cluster: EmbeddedCluster, words: list[str]
) -> None:
    refused = prepared(["transactions", *words, "--bootstrap", cluster.bootstrap])
    assert refused.returncode == 1 and "nope: there is no such topic" in refused.stderr


def test_a_state_that_there_is_not_is_bad_usage(cluster: EmbeddedCluster) -> None:
    refused = prepared(["transactions", "list", "--state", "Bogus", "--bootstrap", cluster.bootstrap])
    assert refused.returncode == 2 and "--state: no such state: Bogus; states are Empty, Ongoing," in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["describe", ""], "a TRANSACTIONAL_ID has 1 to 32767 bytes, this one has 0"),
        (["abort", "x" * 40_000], "a TRANSACTIONAL_ID has 1 to 32767 bytes, this one has 40000"),
        (["abort", "t", "--topic", "a"], "or --topic, --partition and --producer-id, not both"),
        (["abort", "--topic", "a"], "or all of --topic, --partition and --producer-id"),
        (["list", "--pattern", "(?=x)"], "--pattern: '(?=x)' is no expression of RE2, or too large a one"),
    ],
)
def test_what_names_no_transaction_is_bad_usage(cluster: EmbeddedCluster, words: list[str], said: str) -> None:
    refused = prepared(["transactions", *words, "--bootstrap", cluster.bootstrap])
    assert refused.returncode == 2 and said in refused.stderr
