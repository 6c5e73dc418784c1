"""The way back through the brokers: a new group of three consumers reads the topic from offset 0."""

from __future__ import annotations

import contextlib
import json
import threading
import time

from confluent_kafka import Consumer, KafkaException
from rich.progress import Progress

from bench.demo.ledger import Ledger

CONSUMERS = 3
READ_TIMEOUT_S = 120.0


def consume(
    bootstrap: str, topic: str, total: int, ledger: Ledger, lock: threading.Lock, done: threading.Event
) -> None:
    """One member of the group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 2,  # a broker that is killed on the way is news to nobody
            "group.id": "demo",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
        }
    )
    consumer.subscribe([topic])
    while not done.is_set():
        messages = consumer.consume(2_000, 0.2)
        with lock:
            for message in messages:
                value, error = message.value(), message.error()
                if error is not None or value is None:
                    ledger.errors[error.name() if error else "no value"] += 1
                    continue
                place = (message.partition() or 0, message.offset() or 0)
                ledger.note_read(place, json.loads(value), hash(value))
            if len(ledger.rows_read) >= total:
                done.set()
        if messages:
            with contextlib.suppress(KafkaException):  # the group rebalances: the next owner reads these again
                consumer.commit(asynchronous=False)
    consumer.close()


def read_all(bootstrap: str, topic: str, total: int, ledger: Ledger, progress: Progress) -> None:
    lock, done = threading.Lock(), threading.Event()
    members = [
        threading.Thread(target=consume, args=(bootstrap, topic, total, ledger, lock, done)) for _ in range(CONSUMERS)
    ]
    for member in members:
        member.start()
    task = progress.add_task("read", total=total)
    deadline = time.monotonic() + READ_TIMEOUT_S
    while not done.wait(0.2) and time.monotonic() < deadline:
        progress.update(task, completed=len(ledger.rows_read))
    done.set()
    for member in members:
        member.join()
    progress.update(task, completed=len(ledger.rows_read))
