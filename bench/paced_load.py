"""A producer that writes at a steady pace and keeps how long each record waited for its acknowledgement."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

FLUSH_S = 30.0


class PacedLoad:
    """Produces `rate` records a second in turn to all partitions of a topic, from its construction to `finish`."""

    def __init__(
        self, client: Mapping[str, Any], topic: str, partitions: int, rate: float, value: bytes = b"x" * 100
    ) -> None:
        self.took: list[tuple[float, float]] = []  # (monotonic seconds when sent, milliseconds)
        self.failed = 0
        self.sent = 0
        self._topic, self._partitions, self._rate, self._value = topic, partitions, rate, value
        self._producer = Producer({"acks": "all", "linger.ms": 0, **client})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        """Send no more; `finish` waits for what is under way."""
        self._ended.set()

    def finish(self) -> None:
        self.end()
        self._thread.join()

    def between(self, begin: float, end: float) -> list[float]:
        """Milliseconds of the records that were sent in that time and are acknowledged."""
        return [took for sent, took in list(self.took) if begin <= sent < end]

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            self._send(self.sent % self._partitions)
            self.sent, due = self.sent + 1, due + 1 / self._rate
            while (left := due - time.monotonic()) > 0:
                self._producer.poll(left)
        self._producer.flush(FLUSH_S)

    def _send(self, partition: int) -> None:
        sent = time.monotonic()

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self.failed += 1
            else:
                self.took.append((sent, (time.monotonic() - sent) * 1000))

        self._producer.produce(self._topic, self._value, partition=partition, on_delivery=delivered)
        self._producer.poll(0)


def quantile(values: Sequence[float], percent: int) -> float:
    """Of one value or more."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {"records": 0}
    return {"records": len(values)} | {f"p{share}_ms": round(quantile(values, share), 1) for share in (50, 95, 99)}
