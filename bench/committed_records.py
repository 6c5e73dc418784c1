"""What readers of committed records see in a topic, now."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from bench.java_programs import TIMEOUT_S, expect

Settings = Mapping[str, str | int | float | bool]


def committed_values(
    client: Settings, topic: str, partitions: int, begin: Mapping[int, int] | None = None
) -> list[list[bytes]]:
    """As `committed_records`, without their offsets."""
    return [list(found.values()) for found in committed_records(client, topic, partitions, begin)]


def committed_records(
    client: Settings, topic: str, partitions: int, begin: Mapping[int, int] | None = None
) -> list[dict[int, bytes]]:
    """The values of each partition by offset, up to the last stable offset that it has now. `begin`: where to begin,
    by partition; 0 for others. RuntimeError when nothing comes for too long."""
    consumer = Consumer(
        {
            **client, "group.id": "judge", "isolation.level": "read_committed", "enable.partition.eof": True,
            "enable.auto.commit": False, "auto.offset.reset": "error",
        }
    )  # fmt: skip
    try:
        begins = begin or {}
        return [_records(consumer, TopicPartition(topic, n, begins.get(n, 0))) for n in range(partitions)]
    finally:
        consumer.close()


def has_open_transaction(client: Settings, topic: str) -> bool:
    """Whether readers of committed records stop before the end of the topic's first partition."""
    ends = []
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = Consumer({**client, "group.id": "judge", "isolation.level": isolation})
        try:
            ends.append(_end(consumer, TopicPartition(topic, 0)))
        finally:
            consumer.close()
    return ends[0] < ends[1]


def _records(consumer: Consumer, place: TopicPartition) -> dict[int, bytes]:
    end = _end(consumer, place)
    records: dict[int, bytes] = {}
    if end <= place.offset:
        return records
    consumer.assign([place])
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        expect(time.monotonic() < deadline, f"{place.topic} {place.partition} can be read up to {end}")
        message = consumer.poll(0.2)
        if message is None:
            if consumer.position([place])[0].offset >= end:  # markers move it, and are no messages
                return records
        elif (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return records
            is_cut = error.code() == KafkaError._AUTO_OFFSET_RESET
            expect(not is_cut, f"{place.topic} {place.partition} is whole: {error.str()}")
        else:
            deadline = time.monotonic() + TIMEOUT_S
            offset = message.offset() or 0
            if offset < end:
                records[offset] = message.value() or b""
            if offset >= end - 1:
                return records


def _end(consumer: Consumer, place: TopicPartition) -> int:
    """Of what the consumer may read, once the leader answers."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, TIMEOUT_S)[1])
        except KafkaException:
            expect(time.monotonic() < deadline, f"{place.topic} {place.partition} has a leader")
            time.sleep(0.2)
