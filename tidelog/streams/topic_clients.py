"""kafka-python's producer and consumer on a cluster that a command has named, with its errors in one line."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.serializer import Serializer
from kafka.structs import TopicPartition

from tidelog.admin.admin_client import BOOTSTRAP_TIMEOUT_MS, ClientOptions, Reach, client_of, reach, topic_error_text
from tidelog.admin.connections import net_client
from tidelog.output import fail
from tidelog.streams.client_codecs import complete_codecs
from tidelog.streams.record_lines import LINE_BYTES_MAX, Outgoing

BATCH_BYTES, LINGER_MS = 256 << 10, 5
REQUEST_BYTES_MAX = LINE_BYTES_MAX + (1 << 20)
CLOSE_S = 10.0


class _ValueOf(Serializer):  # type: ignore[misc]
    """The library refuses a record without key and value, which the protocol has, unless it gets an object as value."""

    def serialize(self, topic: str, headers: Any, data: Outgoing) -> bytes | None:
        return data.value


@contextlib.contextmanager
def topic_of(options: ClientOptions, topic: str) -> Iterator[tuple[Reach, list[int]]]:
    """How to reach the cluster, and the topic's partitions. Ends the command if there is no such topic, and for any
    error of the cluster within the block."""
    complete_codecs()
    where = reach(options.cluster())
    with client_of(where) as client:
        described = client.describe_topics([topic])[0]
        if problem := topic_error_text(topic, described):
            fail(problem)
        yield where, sorted(int(row["partition_index"]) for row in described["partitions"])


@contextlib.contextmanager
def producer_of(
    where: Reach, *, acks: int, compression: str | None, transactional_id: str | None, transaction_s: float
) -> Iterator[KafkaProducer]:
    settings: dict[str, Any] = {"enable_idempotence": True} if acks == -1 else {"enable_idempotence": False}
    if transactional_id is not None:
        settings |= {"transactional_id": transactional_id, "transaction_timeout_ms": round(transaction_s * 1000)}
    producer = KafkaProducer(
        **where.options(),
        **settings,
        acks=acks,
        compression_type=compression,
        batch_size=BATCH_BYTES,
        linger_ms=LINGER_MS,
        max_request_size=REQUEST_BYTES_MAX,
        allow_auto_create_topics=False,
        value_serializer=_ValueOf(),
        bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
        kafka_client=net_client,
        metrics_enabled=False,
    )
    try:
        if transactional_id is not None:
            producer.init_transactions()
        yield producer
    finally:
        with contextlib.suppress(KafkaError):
            producer.close(timeout=CLOSE_S)


@contextlib.contextmanager
def consumer_of(where: Reach, *, group: str | None, reset: str, committed_only: bool) -> Iterator[KafkaConsumer]:
    consumer = KafkaConsumer(
        **where.options(),
        group_id=group,
        auto_offset_reset=reset,
        enable_auto_commit=False,
        isolation_level="read_committed" if committed_only else "read_uncommitted",
        allow_auto_create_topics=False,
        bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
        kafka_client=net_client,
        metrics_enabled=False,
    )
    try:
        yield consumer
    finally:
        with contextlib.suppress(KafkaError):
            consumer.close(autocommit=False, timeout_ms=round(CLOSE_S * 1000))


def offsets_at(consumer: KafkaConsumer, topic: str, partitions: list[int], time_ms: int) -> Mapping[int, int | None]:
    """The first offset of each partition with a record from that time on."""
    wanted = {TopicPartition(topic, one): time_ms for one in partitions}
    found = consumer.offsets_for_times(wanted)
    return {one.partition: None if row is None else row.offset for one, row in found.items()}


def new_transactional_id() -> str:
    return f"tidelog-produce-{uuid.uuid4().hex}"
