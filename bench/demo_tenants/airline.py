"""One airline: a tenant that makes its topic, and writes its flights and reads them back at the same time."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC, PARTITIONS, REPLICAS = "flights", 3, 3
GROUP = "readers"
TIMEOUT_S = 240.0
Moved = Callable[[int, int], None]
"""Called with how many more were written and read."""


@dataclass(slots=True)
class Airline:
    """`flights` is what it writes, `client` what its clients are configured with. The rest is what came of it."""

    carrier: str
    client: dict[str, Any]
    flights: Sequence[tuple[int, bytes, bytes]]  # row of the file, key, value
    cell: str = ""
    tenant_id: str = ""
    written: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    read: Counter[int] = field(default_factory=Counter)
    foreign: int = 0
    changed: int = 0
    topics: list[str] = field(default_factory=list)
    brokers: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Each of its flights was read once as it was written, and nothing else was there."""
        wrong = self.errors or self.foreign or self.changed or self.topics != [TOPIC]
        return not wrong and self.read == Counter(row for row, *_ in self.flights)


def fly(airline: Airline, moved: Moved) -> None:
    """Everything that the airline does. What goes wrong is counted, and not raised."""
    try:
        admin = AdminClient(airline.client)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, REPLICAS)])[TOPIC].result(60)
        reader = threading.Thread(target=_read, args=(airline, moved))
        reader.start()
        _write(airline, moved)
        reader.join()
        seen = admin.list_topics(timeout=30)
        airline.topics = sorted(seen.topics)
        airline.brokers = sorted(str(broker.host) for broker in seen.brokers.values())
    except KafkaException as error:
        airline.errors[error.args[0].name()] += 1


def _write(airline: Airline, moved: Moved) -> None:
    producer = Producer(
        airline.client | {"acks": "all", "enable.idempotence": "true", "linger.ms": "20", "compression.type": "lz4"}
    )

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            airline.errors[error.name()] += 1
        else:
            airline.written += 1
            moved(1, 0)

    for _, key, value in airline.flights:
        while True:
            try:
                producer.produce(TOPIC, value, key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    left = producer.flush(TIMEOUT_S)
    if left:
        airline.errors["not flushed"] += left


def _read(airline: Airline, moved: Moved) -> None:
    """Until as many as it writes were read, and for a moment more, in which nothing may come."""
    expected = {row: value for row, _, value in airline.flights}
    consumer = Consumer(
        airline.client | {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    )
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + TIMEOUT_S
    count = 0
    while time.monotonic() < deadline:
        messages = consumer.consume(2_000, 1.0)
        for message in messages:
            if message.error() is None:
                _note(airline, expected, message.value() or b"")
                count += 1
        moved(0, len(messages))
        if count >= len(expected) and not messages:
            break
    try:
        if count:
            consumer.commit(asynchronous=False)
    except KafkaException as error:
        airline.errors[error.args[0].name()] += 1
    consumer.close()


def _note(airline: Airline, expected: dict[int, bytes], value: bytes) -> None:
    flight: dict[str, Any] = json.loads(value)
    if flight["carrier"] != airline.carrier:
        airline.foreign += 1
        return
    airline.read[flight["row"]] += 1
    if expected.get(flight["row"]) != value:
        airline.changed += 1
