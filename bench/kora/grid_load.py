"""Latency from produce to consume, rate by rate, through librdkafka: `python -m bench.kora.grid_load BOOTSTRAP JSON`.

A neutral client for every system: one producer without keys, so that it chooses partitions as it does for everybody,
and one consumer of all partitions, in a process of its own. Prints a JSON list with one object for each rate.

A record's latency counts from when it was due, so that a client or server which falls behind hides nothing. Records
that have not come `DRAIN_S` after the last one was due count with the time for which they have been missing by then.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import time
import uuid
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.load import make_producer, percentile

TICK_S = 0.001  # what is due is sent then: the same for every system
DRAIN_S = 3.0
FLOWING_S = 60.0
HEAD = struct.Struct("<dHI")  # when it was due, its step, its number
PRIMING = 0xFFFF  # the step of the records before all steps
LINGER_MS = 1


class Reader:
    """Consumes all partitions of a topic, from its construction to `stop`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.came: dict[int, list[tuple[int, float]]] = {}  # by step: (number, seconds from when it was due)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "enable.metrics.push": False,
                "fetch.error.backoff.ms": 1,
            }
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            message = self._consumer.poll(0.05)
            if message is None or message.error():
                continue
            now = time.perf_counter()
            due, step, number = HEAD.unpack_from(message.value() or b"")
            self.came.setdefault(step, []).append((number, now - due))

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._consumer.close()


def wait_flowing(producer: Producer, reader: Reader, topic: str, partitions: int) -> None:
    """Until a record of every partition has come, which needs all leaders."""
    for index in range(partitions):
        producer.produce(topic, HEAD.pack(time.perf_counter(), PRIMING, index), partition=index)
    deadline = time.monotonic() + FLOWING_S
    while len(reader.came.get(PRIMING, ())) < partitions:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(reader.came.get(PRIMING, ()))} of {partitions} partitions are led")
        producer.poll(0.01)


def offer(producer: Producer, topic: str, step: int, rate: int, seconds: float, size: int) -> float:
    """Produce at that rate; return when the first record was due."""
    padding, count, sent = bytes(size - HEAD.size), round(rate * seconds), 0
    begin = time.perf_counter() + TICK_S
    while sent < count:
        due = min(count, int((time.perf_counter() - begin) * rate))
        for number in range(sent, due):
            producer.produce(topic, HEAD.pack(begin + number / rate, step, number) + padding)
        sent = max(sent, due)
        producer.poll(0)
        time.sleep(TICK_S)
    return begin


def latencies(came: list[tuple[int, float]], numbers: range, rate: int, passed_s: float) -> list[float]:
    """Seconds, of the records with these numbers; of those that are missing, for how long they have been after
    `passed_s` seconds since the first record was due."""
    found = dict(came)
    return [found[number] if number in found else passed_s - number / rate for number in numbers]


def steps(
    bootstrap: str, topic: str, partitions: int, rates: list[int], warm_s: float, seconds: float, size: int
) -> list[dict[str, Any]]:
    """Each rate for `warm_s`, which does not count, and `seconds` after it. The topic is new."""
    reader = Reader(bootstrap, topic, partitions)
    producer, found = make_producer(bootstrap, **{"linger.ms": LINGER_MS}), []
    try:
        wait_flowing(producer, reader, topic, partitions)
        for step, rate in enumerate(rates):
            begin = offer(producer, topic, step, rate, warm_s + seconds, size)
            came, count = reader.came.setdefault(step, []), round(rate * (warm_s + seconds))
            deadline = begin + warm_s + seconds + DRAIN_S
            while len(came) < count and time.perf_counter() < deadline:
                producer.poll(0.01)
            arrived, passed_s = list(came), time.perf_counter() - begin
            took = latencies(arrived, range(round(rate * warm_s), count), rate, passed_s)
            found.append(
                {
                    "rate": rate,
                    "records": len(took),
                    "missing": count - len(arrived),
                    "p50_ms": percentile(took, 0.5),
                    "p95_ms": percentile(took, 0.95),
                    "p99_ms": percentile(took, 0.99),
                }
            )
            if len(arrived) < count:  # it does not keep up, nor would it at a higher rate
                break
    finally:
        reader.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(steps(sys.argv[1], **json.loads(sys.argv[2]))))
