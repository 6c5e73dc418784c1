"""`python -m bench.proxy.kafka_load`: the loads of one Kafka client, one after the other, as standard input asks.

Each line is JSON: first what the client is configured with and the topics by their use, then one load with its
sizes. Each is answered by a line. The client and its connections stay from load to load, so that what is measured
is the way of the bytes and no handshake. A secret crosses neither the words of a command nor the environment.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.load import percentile

WAIT_S = 60.0
WARM_UPS = 20
STREAM, TRIP = "stream", "trip"  # the uses of the two topics: throughput and latency


class KafkaLoad:
    """`client` is librdkafka's settings; `topics` the names that this client has for them, one partition each."""

    def __init__(self, client: dict[str, Any], topics: dict[str, str]) -> None:
        settings = client | {"enable.metrics.push": False}
        self._topics = topics
        producing = settings | {"acks": "all", "queue.buffering.max.messages": 1_000_000, "batch.size": 262_144}
        self._bulk = {
            codec: Producer(producing | {"linger.ms": 5, "compression.type": codec}) for codec in ("none", "lz4")
        }
        self._single = Producer(producing | {"linger.ms": 0})
        reading = settings | {
            "group.id": "nobody",
            "enable.auto.commit": False,
            "fetch.error.backoff.ms": 1,
            "fetch.queue.backoff.ms": 5,  # the default is a second's pause whenever the queue is full
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1 << 20,
        }
        self._consumer = Consumer(reading)

    def produce(self, records: int, size: int, codec: str = "none") -> dict[str, float]:
        """MB/s of record values until the last is acknowledged. A codec makes them a sixteenth less, and whole batches
        of single records, which librdkafka else gives TLS one by one."""
        topic, bulk, failed = self._topics[STREAM], self._bulk[codec], list[KafkaError]()
        values = [os.urandom(size - size // 16) + bytes(size // 16) for _ in range(512)]

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        began = time.perf_counter()
        for number in range(records):
            while True:
                try:
                    bulk.produce(topic, values[number % len(values)], partition=0, on_delivery=delivered)
                    break
                except BufferError:
                    bulk.poll(0.01)
            if number % 200 == 0:
                bulk.poll(0)
        left = bulk.flush(WAIT_S)
        took = time.perf_counter() - began
        check(not failed and not left, f"{len(failed)} failed, {left} left {failed[:1]}")
        return {"mb_s": records * size / took / 1e6, "gigabytes": records * size / 1e9}

    def consume(self, records: int) -> dict[str, float]:
        """MB/s of the first `records`."""
        count = size = 0
        began = time.perf_counter()
        self._consumer.assign([TopicPartition(self._topics[STREAM], 0, 0)])
        end = time.monotonic() + WAIT_S
        while count < records and time.monotonic() < end:
            messages = self._consumer.consume(min(10_000, records - count), 1.0)
            for message in messages:
                if message.error() is None:
                    count, size = count + 1, size + len(message.value() or b"")
        took = time.perf_counter() - began
        self._consumer.unassign()
        check(count == records, f"{count} of {records} came")
        return {"mb_s": size / took / 1e6, "gigabytes": size / 1e9}

    def one_in_flight(self, records: int, size: int) -> dict[str, float]:
        """From produce() to the acknowledgement, each after the one before."""
        topic, value, took = self._topics[TRIP], bytes(size), list[float]()
        for number in range(WARM_UPS + records):
            outcome = list[KafkaError | None]()
            began = time.perf_counter()
            self._single.produce(topic, value, partition=0, on_delivery=lambda error, _, o=outcome: o.append(error))  # type: ignore[misc]
            while not outcome:
                self._single.poll(1)
            check(outcome[0] is None, str(outcome[0]))
            if number >= WARM_UPS:
                took.append(time.perf_counter() - began)
        return {"p50_ms": percentile(took, 0.5), "p99_ms": percentile(took, 0.99)}

    def end_to_end(self, records: int, size: int, rate: float) -> dict[str, float]:
        """From produce() to consume(), `rate` of them a second; the first fifth warms up."""
        topic, padding, took = self._topics[TRIP], bytes(size - 8), list[float]()
        _, first = self._consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S)
        self._consumer.assign([TopicPartition(topic, 0, first)])
        sent, begin = 0, time.perf_counter()
        end = begin + records / rate + WAIT_S
        while len(took) < records and time.perf_counter() < end:
            now = time.perf_counter()
            if sent < records and now >= begin + sent / rate:
                self._single.produce(topic, struct.pack("<d", now) + padding, partition=0)
                sent += 1
            self._single.poll(0)
            due = begin + sent / rate if sent < records else end
            message = self._consumer.poll(min(max(0.0, due - time.perf_counter()), 0.05))
            if message is not None and message.error() is None:
                took.append(time.perf_counter() - struct.unpack_from("<d", message.value() or b"")[0])
        self._consumer.unassign()
        left = self._single.flush(WAIT_S)
        check(len(took) == records and not left, f"{len(took)} of {records} came, {left} left")
        warm = took[len(took) // 5 :]
        return {"p50_ms": percentile(warm, 0.5), "p99_ms": percentile(warm, 0.99)}


def check(holds: bool, words: str) -> None:
    if not holds:
        raise RuntimeError(words)


def main() -> None:
    given = json.loads(sys.stdin.readline())
    load = KafkaLoad(given["client"], given["topics"])
    for line in sys.stdin:
        wanted = json.loads(line)
        print(json.dumps(getattr(load, wanted.pop("load"))(**wanted)), flush=True)


if __name__ == "__main__":
    main()
