"""The way in: an idempotent producer with acks=all, and a leader that dies under it."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from rich.progress import Progress

from bench.demo.clusters import DemoCluster
from bench.demo.flights import read_flights
from bench.demo.ledger import Ledger

KILL_AFTER, START_AFTER = 0.3, 0.6  # shares of the file


def produce(cluster: DemoCluster, topic: str, folder: Path, total: int, ledger: Ledger, progress: Progress) -> None:
    """Send all rows; kill the leader of partition 0 on the way and bring it back."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "log_level": 2,  # a broker that is killed on the way is news to nobody
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
            "message.timeout.ms": 60_000,
        }
    )
    task = progress.add_task("produced", total=total)
    killed: list[int] = []

    def delivered(error: KafkaError | None, message: Message, carrier: str) -> None:
        if error is not None:
            ledger.errors[error.name()] += 1
        else:
            ledger.acknowledged[carrier] += 1

    for number, flight in enumerate(read_flights(folder)):
        value = json.dumps(flight, separators=(",", ":")).encode()
        carrier = flight["carrier"]
        ledger.sent[carrier] += 1
        ledger.rows_sent[number] = hash(value)
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    flight["tailnum"].encode(),
                    on_delivery=lambda e, m, c=carrier: delivered(e, m, c),  # type: ignore[misc]
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 500 == 0:
            producer.poll(0)
            progress.update(task, completed=number)
        if not killed and number >= total * KILL_AFTER:
            killed.append(kill_leader(cluster, topic, progress))
        elif len(killed) == 1 and number >= total * START_AFTER:
            cluster.restart_broker(killed[0])
            progress.console.print(f"  broker {killed[0]} is started again")
            killed.append(-1)
    left = producer.flush(60)
    progress.update(task, completed=total)
    if left:
        ledger.errors["not flushed"] += left


def kill_leader(cluster: DemoCluster, topic: str, progress: Progress) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    leader = admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
    cluster.kill_broker(leader)
    progress.console.print(f"  broker {leader}, which leads partition 0, is killed with SIGKILL")
    return int(leader)
