"""Clients of others over TLS and with certificates of their own, on a cluster whose nodes use mutual TLS throughout."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from bench.embedded import EmbeddedCluster

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
RECORDS = 200

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {
        "group.initial.rebalance.delay.ms": "100",
        "log.dir.free.bytes.min": "0",
        "ssl.client.auth": "required",
        "tidelog.certificates.interval.ms": "100",
    }
    with EmbeddedCluster(settings=settings, controllers=1, tls=True) as running:
        yield running


@pytest.fixture(scope="module")
def bootstrap(cluster: EmbeddedCluster) -> str:
    return cluster.secure_bootstrap


def files(cluster: EmbeddedCluster) -> tuple[str, str]:
    directory = cluster.data / "tls"
    return str(directory / "ca.pem"), str(directory / "client.pem")


def librdkafka(cluster: EmbeddedCluster, bootstrap: str) -> dict[str, Any]:
    authority, own = files(cluster)
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": authority,
        "ssl.certificate.location": own,
        "ssl.key.location": own,
    }


def new_topic(cluster: EmbeddedCluster, bootstrap: str) -> str:
    name = f"tls-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(librdkafka(cluster, bootstrap))
    admin.create_topics([NewTopic(name, 3, 3)])[name].result(30)
    return name


def fill(cluster: EmbeddedCluster, bootstrap: str, topic: str) -> None:
    producer = Producer(librdkafka(cluster, bootstrap))
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode() * 500, str(number).encode())
    assert producer.flush(60) == 0


def test_confluent_kafka_produces_and_consumes_in_a_group(cluster: EmbeddedCluster, bootstrap: str) -> None:
    topic = new_topic(cluster, bootstrap)
    fill(cluster, bootstrap, topic)
    consumer = Consumer(librdkafka(cluster, bootstrap) | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    keys: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(keys) < RECORDS and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None
            assert message.value() == (message.key() or b"") * 500
            keys.append(message.key() or b"")
    consumer.close()
    assert sorted(keys, key=int) == [str(number).encode() for number in range(RECORDS)]


def test_kafka_python_produces_and_consumes(cluster: EmbeddedCluster, bootstrap: str) -> None:
    authority, own = files(cluster)
    security = {"security_protocol": "SSL", "ssl_cafile": authority, "ssl_certfile": own}
    topic = new_topic(cluster, bootstrap)
    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), **security)
    for number in range(RECORDS):
        producer.send(topic, str(number).encode() * 500)
    producer.close(timeout=60)
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap.split(","), auto_offset_reset="earliest", consumer_timeout_ms=60_000,
        **security,
    )  # fmt: skip
    values = [message.value for _, message in zip(range(RECORDS), consumer, strict=False)]
    consumer.close()
    assert sorted(values) == sorted(str(number).encode() * 500 for number in range(RECORDS))


async def test_aiokafka_produces_and_consumes(cluster: EmbeddedCluster, bootstrap: str) -> None:
    authority, own = files(cluster)
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(own)
    security = {"bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_context": context}
    topic = new_topic(cluster, bootstrap)
    async with AIOKafkaProducer(**security) as producer:
        for number in range(RECORDS):
            await producer.send(topic, str(number).encode() * 500)
        await producer.flush()
    found: list[bytes] = []
    async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **security) as consumer:
        while len(found) < RECORDS:
            got = await consumer.getmany(timeout_ms=5_000)
            found += [message.value for batch in got.values() for message in batch]
    assert sorted(found) == sorted(str(number).encode() * 500 for number in range(RECORDS))


@pytest.mark.skipif(KCAT is None, reason="kcat is not installed here, so it was not run")
def test_kcat_produces_and_consumes(cluster: EmbeddedCluster, bootstrap: str) -> None:
    assert KCAT is not None
    topic = new_topic(cluster, bootstrap)
    options = librdkafka(cluster, bootstrap)
    security = [part for name, value in options.items() for part in ("-X", f"{name}={value}")]
    lines = [f"line {number}" for number in range(RECORDS)]
    produce, consume = ([KCAT, *security, flag, "-t", topic] for flag in ("-P", "-C"))
    subprocess.run(produce, input="\n".join(lines) + "\n", text=True, timeout=60, check=True)
    done = subprocess.run([*consume, "-e", "-o", "beginning"], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(done.stdout.splitlines()) == sorted(lines)


@pytest.mark.parametrize("without", ["ssl.certificate.location", "ssl.ca.location", "security.protocol"])
def test_who_cannot_show_or_verify_a_certificate_stays_outside(
    cluster: EmbeddedCluster, bootstrap: str, without: str
) -> None:
    options = librdkafka(cluster, bootstrap)
    del options[without]
    if without == "ssl.certificate.location":
        del options["ssl.key.location"]
    admin = AdminClient(options | {"socket.connection.setup.timeout.ms": 2_000})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=4)


def test_a_node_is_refused_without_a_certificate(cluster: EmbeddedCluster) -> None:
    """The listener for nodes says nothing to whoever has the secret's hello and no certificate."""
    address = next(row["listeners"]["INTERNAL"] for row in cluster.nodes() if row["role"] == "broker")
    host, port = address.split(":")
    context = ssl.create_default_context(cafile=files(cluster)[0])
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # there the client learns of it within its handshake
    done = subprocess.run(
        ["openssl", "s_client", "-connect", address, "-tls1_2"], input="", capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert done.returncode != 0
    with pytest.raises(OSError, match=r"."):
        _handshake(context, host, int(port))


def _handshake(context: ssl.SSLContext, host: str, port: int) -> None:
    import socket  # noqa: PLC0415

    with socket.create_connection((host, port), timeout=10) as raw, context.wrap_socket(raw, server_hostname=host):
        pass


def test_new_certificates_are_in_use_without_a_restart(cluster: EmbeddedCluster, bootstrap: str) -> None:
    """Under traffic between nodes and from clients, which goes on with both the old one and the new."""
    from tidelog.cluster.certificates import NODE, authority, certificate  # noqa: PLC0415

    topic = new_topic(cluster, bootstrap)
    directory = Path(cluster.data) / "tls"
    before = {row["node"]: row["pid"] for row in cluster.nodes()}
    fresh = certificate(directory / "fresh", "node.pem", authority(directory), NODE, "node", ("localhost", "127.0.0.1"))
    fresh.replace(directory / "node.pem")
    logs = [cluster.data / "logs" / f"{node}.log" for node in before]
    deadline = time.monotonic() + 60
    while not all("changed certificates are in use" in log.read_text() for log in logs):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    fill(cluster, bootstrap, topic)
    assert {row["node"]: row["pid"] for row in cluster.nodes()} == before
