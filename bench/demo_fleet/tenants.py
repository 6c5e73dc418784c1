"""The tenants at work: each writes at a steady pace, and one of them can turn noisy."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.paced_load import PacedLoad, quantile

TENANTS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "indigo", "jade", "koala", "lotus")
TOPIC, PARTITIONS, REPLICAS = "orders", 3, 3
RATE = 30
"""Records per second of each tenant."""
VALUE = b"x" * 500
TIMEOUT_S = 30.0
QUIET_POLL_S = 0.05


class Tenants:
    """Every tenant makes its topic `orders` and writes to it until the end of the block."""

    def __init__(self, clients: Mapping[str, Mapping[str, Any]], cells: Mapping[str, str]) -> None:
        """`clients`: what each tenant's clients are configured with; `cells`: where it lives."""
        self.clients = dict(clients)
        self.cells = dict(cells)
        self._loads: dict[str, PacedLoad] = {}

    def __enter__(self) -> Tenants:
        for tenant, client in self.clients.items():
            admin = AdminClient(dict(client))
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, REPLICAS)])[TOPIC].result(TIMEOUT_S)
            self._loads[tenant] = PacedLoad(client, TOPIC, PARTITIONS, RATE, VALUE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def finish(self) -> None:
        for load in self._loads.values():
            load.end()
        for load in self._loads.values():
            load.finish()

    def in_cell(self, cell: str, but: str = "") -> list[str]:
        return [tenant for tenant in self.clients if self.cells[tenant] == cell and tenant != but]

    def moved(self, tenant: str, cell: str) -> None:
        self.cells[tenant] = cell

    def acknowledged(self, tenant: str) -> int:
        return len(self._loads[tenant].took)

    @property
    def sent(self) -> int:
        return sum(load.sent for load in self._loads.values())

    @property
    def failed(self) -> int:
        return sum(load.failed for load in self._loads.values())

    def waits(self, tenants: Collection[str], begin: float, end: float) -> list[float]:
        """Milliseconds that records of these tenants waited, of those that were sent in that time."""
        return [took for tenant in tenants for took in self._loads[tenant].between(begin, end)]

    def p99_of(self, tenants: Collection[str], seconds: float) -> float:
        """The p99 of the next seconds."""
        begin = time.monotonic()
        time.sleep(seconds)
        return quantile(self.waits(tenants, begin, time.monotonic()), 99)

    def stored(self, tenant: str) -> int:
        """Records in the tenant's topic, as its leaders have them."""
        consumer = Consumer({**self.clients[tenant], "group.id": "count"})
        try:
            marks = [
                consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), TIMEOUT_S)
                for partition in range(PARTITIONS)
            ]
        finally:
            consumer.close()
        return sum(high - low for low, high in marks)


class Noise:
    """One tenant offers `offered` bytes per second while it is `loud`. What is not taken in time is dropped.

    It is not idempotent: librdkafka's idempotent producer (2.16) takes a whole core while a broker throttles it.

    `taken`: when its records were acknowledged, and their bytes. `throttled_ms`: the throttle times that brokers gave.
    """

    VALUE = b"y" * 4_000
    QUEUE_KB = 4_000

    def __init__(self, client: Mapping[str, Any], offered: float) -> None:
        self.taken: list[tuple[float, int]] = []
        self.throttled_ms: list[float] = []
        self.failed = 0
        self._offered = offered
        self._producer = Producer(
            {
                **client,
                "linger.ms": 5,
                "batch.size": 16_384,  # this and the next as the Java client has it
                "max.in.flight.requests.per.connection": 5,
                "queue.buffering.max.kbytes": self.QUEUE_KB,
                "throttle_cb": lambda event: self.throttled_ms.append(event.throttle_time * 1000),
            }
        )
        self._ended, self._loud = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Noise:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._loud.set()
        self._thread.join()

    @contextmanager
    def loud(self) -> Iterator[None]:
        self._loud.set()
        try:
            yield
        finally:
            self._loud.clear()

    def rate(self, begin: float, end: float) -> float:
        """Bytes per second that were taken in that time."""
        return sum(size for at, size in list(self.taken) if begin <= at < end) / (end - begin)

    def fastest(self, begin: float, end: float, span_s: float) -> float:
        """The most bytes per second that were taken in any span of this length that begins in that time."""
        taken = [(at, size) for at, size in list(self.taken) if begin <= at]
        most = within = first = 0
        for at, size in taken:
            within += size
            while taken[first][0] < at - span_s:
                within -= taken[first][1]
                first += 1
            if taken[first][0] < end:
                most = max(most, within)
        return most / span_s

    def _run(self) -> None:
        due, number = time.monotonic(), 0
        while not self._ended.is_set():
            if not self._loud.is_set():
                self._producer.purge()
                self._producer.poll(QUIET_POLL_S)
                continue
            try:
                self._producer.produce(TOPIC, self.VALUE, partition=number % PARTITIONS, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.01)
            number, due = number + 1, max(due + len(self.VALUE) / self._offered, time.monotonic() - 1)
            while (left := due - time.monotonic()) > 0:
                self._producer.poll(left)
        self._producer.purge()
        self._producer.flush(TIMEOUT_S)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.taken.append((time.monotonic(), len(self.VALUE)))
        elif error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self.failed += 1
