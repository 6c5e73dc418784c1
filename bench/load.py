"""The loads of the benchmark, one process each, through librdkafka: `python -m bench.load KIND BOOTSTRAP JSON`.

A neutral client for every system: it prints one JSON object and knows nothing of the server. Throughput counts
record values; latencies are milliseconds. `BENCH_CLIENT`, JSON in the environment, is settings for every client.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

SETTLE_S = 1.5
EVERY_CLIENT: dict[str, Any] = json.loads(os.environ.get("BENCH_CLIENT", "{}"))


def percentile(values: list[float], share: float) -> float:
    """In milliseconds, of seconds."""
    ordered = sorted(values)
    return round(1e3 * ordered[min(len(ordered) - 1, int(len(ordered) * share))], 3) if ordered else 0.0


def create_topic(bootstrap: str, partitions: int, config: dict[str, str] | None = None) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    topic = NewTopic(name, partitions, 3, config={"min.insync.replicas": "2", **(config or {})})
    admin = AdminClient(
        {"bootstrap.servers": bootstrap, **EVERY_CLIENT}
    )  # named: what is collected cancels its requests
    admin.create_topics([topic])[name].result(60)
    time.sleep(SETTLE_S)
    return name


def make_producer(bootstrap: str, **settings: Any) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.metrics.push": False,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "max.in.flight.requests.per.connection": 5,
            "message.timeout.ms": 120_000,
            **EVERY_CLIENT,
            **settings,
        }
    )


def produce(
    bootstrap: str, records: int, size: int, batch: int, run: int, config: dict[str, str] | None = None
) -> dict[str, Any]:
    """`run` records in a row go to the same partition, so long runs fill long batches. `config` is the topic's."""
    topic = create_topic(bootstrap, 6, config)
    producer = make_producer(bootstrap, **{"linger.ms": 5, "batch.size": batch})
    value, done, failed = os.urandom(size), [0], [0]

    def delivered(error: KafkaError | None, _: Message) -> None:
        (failed if error else done)[0] += 1

    started = time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number // run % 6, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 200 == 0:
            producer.poll(0)
    producer.flush(300)
    seconds = time.perf_counter() - started
    return {
        "topic": topic,
        "errors": failed[0] + records - done[0] - failed[0],
        "mb_s": round(done[0] * size / seconds / 1e6, 2),
        "rec_s": round(done[0] / seconds),
        "gigabytes": records * size / 1e9,
    }


def consume(bootstrap: str, topic: str, records: int) -> dict[str, Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            **EVERY_CLIENT,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "enable.metrics.push": False,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 1 << 20,
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 5,  # the default is a second's pause whenever the queue is full
        }
    )
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
    count = size = 0
    started = 0.0
    deadline = time.monotonic() + 120
    while count < records and time.monotonic() < deadline:
        messages = consumer.consume(10_000, 1.0)
        if messages and not started:
            started = time.perf_counter()
        for message in messages:
            if not message.error():
                count += 1
                size += len(message.value() or b"")
    seconds = time.perf_counter() - started
    consumer.close()
    return {"errors": records - count, "mb_s": round(size / seconds / 1e6, 2), "gigabytes": size / 1e9}


def one_in_flight(bootstrap: str, records: int, size: int) -> dict[str, Any]:
    topic = create_topic(bootstrap, 6)
    producer = make_producer(bootstrap, **{"linger.ms": 0})
    value, latencies, failed = os.urandom(size), [], 0
    for number in range(records + 50):
        outcome: list[KafkaError | None] = []
        started = time.perf_counter()
        producer.produce(topic, value, partition=number % 6, on_delivery=lambda e, _, o=outcome: o.append(e))  # type: ignore[misc]
        while not outcome:
            producer.poll(1)
        failed += outcome[0] is not None
        if number >= 50:  # the first ones open connections
            latencies.append(time.perf_counter() - started)
    return {"errors": failed, "p50_ms": percentile(latencies, 0.5), "p99_ms": percentile(latencies, 0.99)}


def end_to_end(
    bootstrap: str, rate: int, seconds: int, size: int, config: dict[str, str] | None = None
) -> dict[str, Any]:
    """From produce() to consume(), at a steady rate. `config` is the topic's."""
    topic = create_topic(bootstrap, 6, config)
    latencies: list[float] = []
    stop = threading.Event()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            **EVERY_CLIENT,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "enable.metrics.push": False,
            "auto.offset.reset": "earliest",
            "fetch.error.backoff.ms": 1,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(6)])

    def read() -> None:
        while not stop.is_set():
            message = consumer.poll(0.05)
            if message is not None and not message.error():
                latencies.append(time.perf_counter() - struct.unpack_from("<d", message.value() or b"")[0])

    reader = threading.Thread(target=read)
    reader.start()
    producer = make_producer(bootstrap, **{"linger.ms": 0})
    padding, count = b"x" * (size - 8), rate * seconds
    begin = time.perf_counter() + 1.0
    for number in range(count):
        due = begin + number / rate
        while (left := due - time.perf_counter()) > 0:
            producer.poll(min(left, 0.001) if left > 0.0005 else 0)
        producer.produce(topic, struct.pack("<d", time.perf_counter()) + padding, partition=number % 6)
    producer.flush(60)
    deadline = time.monotonic() + 20
    while len(latencies) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    stop.set()
    reader.join()
    consumer.close()
    warm = latencies[len(latencies) // 5 :]
    return {
        "topic": topic,
        "errors": count - len(latencies),
        "p50_ms": percentile(warm, 0.5),
        "p95_ms": percentile(warm, 0.95),
        "p99_ms": percentile(warm, 0.99),
    }


LOADS: dict[str, Callable[..., dict[str, Any]]] = {
    "produce": produce,
    "consume": consume,
    "one_in_flight": one_in_flight,
    "end_to_end": end_to_end,
}

if __name__ == "__main__":
    print(json.dumps(LOADS[sys.argv[1]](sys.argv[2], **json.loads(sys.argv[3]))))
