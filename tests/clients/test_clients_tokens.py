"""Tokens, and sessions that end while a client is at work, on a cluster with SASL in the clear."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import jwt
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import rsa
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from bench.embedded import EmbeddedCluster
from tests.token_issuer import token_settings

SESSION_S = 2
WAIT_S = 30
pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def issuer() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def cluster(issuer: rsa.RSAPrivateKey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    settings = token_settings(issuer, tmp_path_factory.mktemp("issuer")) | {
        "log.dir.free.bytes.min": "0",
        "connections.max.reauth.ms": str(SESSION_S * 1000),
        "super.users": "User:robot",
    }
    with EmbeddedCluster(1, settings, controllers=1) as running:
        yield running


def new_token(issuer: rsa.RSAPrivateKey, **claims: Any) -> tuple[str, float]:
    """And its end."""
    end = int(time.time()) + 3600
    body = {"sub": "robot", "aud": "tidelog", "exp": end, "iat": end - 3600} | claims
    return jwt.encode(body, issuer, algorithm="RS256", headers={"kid": "k1"}), end


class PythonTokens(AbstractTokenProvider):  # type: ignore[misc]  # the client has no types
    def __init__(self, issuer: rsa.RSAPrivateKey) -> None:
        super().__init__()
        self._issuer = issuer

    def token(self) -> str:
        return new_token(self._issuer)[0]


class AsyncTokens(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, issuer: rsa.RSAPrivateKey) -> None:
        self._issuer = issuer

    async def token(self) -> str:
        return new_token(self._issuer)[0]


def client(cluster: EmbeddedCluster, issuer: rsa.RSAPrivateKey, said: list[int], **claims: Any) -> dict[str, Any]:
    def token(_: str) -> tuple[str, float]:
        return new_token(issuer, **claims)

    return {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
        "log_level": 0,
        "error_cb": lambda error: said.append(error.code()),
    }


def test_a_token_opens_sessions_that_are_renewed_at_work(cluster: EmbeddedCluster, issuer: rsa.RSAPrivateKey) -> None:
    said: list[int] = []
    producer = Producer(client(cluster, issuer, said))
    failed: list[Any] = []
    written, until = 0, time.monotonic() + 3 * SESSION_S
    while time.monotonic() < until:
        producer.produce("work", b"value", on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(30) == 0
        written += 1
    assert written > 10 and not failed
    assert not said, "no connection was lost on the way"


def test_a_token_for_somebody_else_is_refused(cluster: EmbeddedCluster, issuer: rsa.RSAPrivateKey) -> None:
    said: list[int] = []
    admin = AdminClient(client(cluster, issuer, said, aud="another"))
    admin.poll(1)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)
    admin.poll(1)
    assert KafkaError._AUTHENTICATION in said


def python_client(cluster: EmbeddedCluster, tokens: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": tokens,
    }


def test_kafka_python_works_with_tokens(cluster: EmbeddedCluster, issuer: rsa.RSAPrivateKey) -> None:
    topic = f"python-{uuid.uuid4().hex[:8]}"
    security = python_client(cluster, PythonTokens(issuer))
    producer = KafkaProducer(**security)
    producer.send(topic, b"value").get(WAIT_S)
    producer.close(timeout=WAIT_S)
    consumer = KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=WAIT_S * 1000, **security
    )
    assert next(consumer).value == b"value"
    consumer.close()


async def test_aiokafka_works_with_tokens(cluster: EmbeddedCluster, issuer: rsa.RSAPrivateKey) -> None:
    topic = f"asyncio-{uuid.uuid4().hex[:8]}"
    security = python_client(cluster, AsyncTokens(issuer))
    async with aiokafka.AIOKafkaProducer(**security) as producer:
        await producer.send_and_wait(topic, b"value")
    async with aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **security) as consumer:
        async with asyncio.timeout(WAIT_S):
            assert (await consumer.getone()).value == b"value"


def test_the_command_logs_in_with_a_token_from_a_file(
    cluster: EmbeddedCluster, issuer: rsa.RSAPrivateKey, tmp_path: Path
) -> None:
    file, config = tmp_path / "token", tmp_path / "command.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={file.as_uri()}\n"
    )
    words = ("--command-config", str(config))
    file.write_text(client(cluster, issuer, [])["oauth_cb"]("")[0])
    cluster.command_of("topics", "create", "by-token", *words)
    token = client(cluster, issuer, [], aud="another")["oauth_cb"]("")[0]
    file.write_text(token)
    with pytest.raises(RuntimeError, match="cannot log in with OAUTHBEARER: Authentication failed") as caught:
        cluster.command_of("topics", "list", *words)
    assert token not in str(caught.value)
