"""Transactional producers: there are no transactions, and each client ends at the answer in place of asking again."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidTransactionTimeout
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError

from bench.embedded import EmbeddedCluster

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

PATIENCE_S = 60.0  # a client that tries again and again ends here


def test_librdkafka_calls_it_fatal(cluster: EmbeddedCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "of-librdkafka"})
    with pytest.raises(KafkaException) as failure:
        producer.init_transactions(PATIENCE_S)
    error = failure.value.args[0]
    assert (error.fatal(), error.code()) == (True, KafkaError.INVALID_TRANSACTION_TIMEOUT)


def test_kafka_python_ends(cluster: EmbeddedCluster) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="of-kafka-python")
    with pytest.raises(KafkaPythonError, match="InvalidTransactionTimeout"):
        producer.init_transactions()
    producer.close(timeout=0)


async def test_aiokafka_ends(cluster: EmbeddedCluster) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="of-aiokafka")
    try:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(InvalidTransactionTimeout):
                await producer.start()
    finally:
        await producer.stop()
