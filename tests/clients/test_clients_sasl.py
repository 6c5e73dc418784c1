"""Clients of others with SASL over TLS, on a cluster where ACLs hold."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from bench.embedded import EmbeddedCluster

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
USER, PASSWORD = "writer", "a password of 24 chars"
WAIT_S = 30

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {
        "group.initial.rebalance.delay.ms": "100",
        "log.dir.free.bytes.min": "0",
        "listener.security.protocol.map": "SSL:SASL_SSL",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.client.auth": "none",
    }
    with EmbeddedCluster(1, settings, controllers=1, tls=True) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            admin.alter_user_scram_credentials([change])[USER].result(WAIT_S)
        allow(admin, ResourceType.TOPIC, "mine-", AclOperation.ALL)
        allow(admin, ResourceType.GROUP, "mine-", AclOperation.READ)
        yield running


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def allow(admin: AdminClient, resource: ResourceType, prefix: str, operation: AclOperation) -> None:
    binding = AclBinding(
        resource, prefix, ResourcePatternType.PREFIXED, f"User:{USER}", "*", operation, AclPermissionType.ALLOW
    )
    admin.create_acls([binding])[binding].result(WAIT_S)


def librdkafka(cluster: EmbeddedCluster, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.secure_bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
        "ssl.ca.location": str(cluster.data / "tls" / "ca.pem"),
    }


def new_topic(admin: AdminClient, prefix: str = "mine") -> str:
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
    return name


def python_security(cluster: EmbeddedCluster, mechanism: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.secure_bootstrap,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_sees_and_writes_what_it_may(
    cluster: EmbeddedCluster, admin: AdminClient, mechanism: str
) -> None:
    mine, other = new_topic(admin), new_topic(admin, "other")
    refusals: list[Any] = []
    producer = Producer(librdkafka(cluster, mechanism))
    known = producer.list_topics(timeout=WAIT_S).topics
    assert mine in known and other not in known
    producer.produce(mine, b"allowed", on_delivery=lambda error, _: refusals.append(error))
    try:
        producer.produce(other, b"denied", on_delivery=lambda error, _: refusals.append(error))
    except KafkaException as error:  # librdkafka had learnt of the refusal from an answer before this call
        refusals.append(error.args[0])
    assert producer.flush(WAIT_S) == 0
    codes = [None if error is None else error.code() for error in refusals]
    assert sorted(codes, key=str) == [KafkaError.TOPIC_AUTHORIZATION_FAILED, None]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused(cluster: EmbeddedCluster, mechanism: str) -> None:
    said: list[int] = []
    wrong = librdkafka(cluster, mechanism, "wrong") | {"error_cb": lambda error: said.append(error.code())}
    client = AdminClient(wrong | {"log_level": 0})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    client.poll(1)
    assert KafkaError._AUTHENTICATION in said


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_produces_and_consumes(cluster: EmbeddedCluster, admin: AdminClient, mechanism: str) -> None:
    topic = new_topic(admin)
    security = python_security(cluster, mechanism) | {"ssl_cafile": str(cluster.data / "tls" / "ca.pem")}
    producer = KafkaProducer(**security)
    producer.send(topic, b"value").get(WAIT_S)
    producer.close(timeout=WAIT_S)
    consumer = KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=WAIT_S * 1000, **security
    )
    assert next(consumer).value == b"value"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_produces_and_consumes(cluster: EmbeddedCluster, admin: AdminClient, mechanism: str) -> None:
    topic = new_topic(admin)
    context = ssl.create_default_context(cafile=str(cluster.data / "tls" / "ca.pem"))
    security = python_security(cluster, mechanism) | {"ssl_context": context}
    async with AIOKafkaProducer(**security) as producer:
        await producer.send_and_wait(topic, b"value")
    async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **security) as consumer:
        assert (await consumer.getone()).value == b"value"


@pytest.mark.skipif(KCAT is None, reason="kcat is not installed")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat_lists_what_it_may(cluster: EmbeddedCluster, admin: AdminClient, mechanism: str) -> None:
    mine, other = new_topic(admin), new_topic(admin, "other")
    given = [part for name, value in librdkafka(cluster, mechanism).items() for part in ("-X", f"{name}={value}")]
    done = subprocess.run([str(KCAT), "-L", *given], capture_output=True, text=True, timeout=60, check=True)
    assert mine in done.stdout and other not in done.stdout
