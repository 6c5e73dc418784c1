"""The planes, keyed by tail number and updated with every flight: only the last record of each one counts."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from rich.progress import Progress

from bench.demo.flights import read_flights

READ_TIMEOUT_S = 120.0
RETIRED_BEFORE_MONTH = 3  # planes that have not flown since leave the topic with a tombstone

Fleet = dict[str, dict[str, Any]]


class PlanesRead(NamedTuple):
    """`fleet` as the last record of each key has it, tombstones left out; `records` is how many were read for it."""

    fleet: Fleet
    records: int


def plane_updates(folder: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """(tail number, the plane as it is after one more flight), and a tombstone for each that is retired."""
    with open(folder / "planes.csv", newline="") as file:
        planes = {row["tailnum"]: row for row in csv.DictReader(file)}
    flown: dict[str, dict[str, Any]] = {}
    for flight in read_flights(folder):
        plane = planes.get(flight["tailnum"])
        if plane is None:
            continue
        before = flown.get(plane["tailnum"], {"flights": 0, "miles": 0})
        flown[plane["tailnum"]] = update = {
            "tailnum": plane["tailnum"],
            "manufacturer": plane["manufacturer"],
            "model": plane["model"],
            "seats": int(plane["seats"]),
            "flights": before["flights"] + 1,
            "miles": before["miles"] + int(flight["distance"]),
            "month": int(flight["month"]),
            "last_route": f"{flight['origin']}-{flight['dest']}",
        }
        yield plane["tailnum"], update
    for tailnum, update in flown.items():
        if update["month"] < RETIRED_BEFORE_MONTH:
            yield tailnum, None


def produce_planes(bootstrap: str, topic: str, folder: Path, progress: Progress) -> tuple[Fleet, int]:
    """(the fleet as it is in the end, records sent). RuntimeError when one is not acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 2,  # a broker that is killed on the way is news to nobody
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
            "message.timeout.ms": 60_000,
        }
    )
    task = progress.add_task("updated", total=None)
    fleet: Fleet = {}
    refused: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error.name())

    sent = 0
    for tailnum, plane in plane_updates(folder):
        value = None if plane is None else json.dumps(plane, separators=(",", ":")).encode()
        if plane is None:
            del fleet[tailnum]
        else:
            fleet[tailnum] = plane
        while True:
            try:
                producer.produce(topic, value, tailnum.encode(), on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        sent += 1
        if sent % 500 == 0:
            producer.poll(0)
            progress.update(task, completed=sent)
    left = producer.flush(60)
    progress.update(task, completed=sent, total=sent)
    if left or refused:
        raise RuntimeError(f"{left} updates not flushed, {len(refused)} refused: {refused[:3]}")
    return fleet, sent


def read_planes(bootstrap: str, topic: str, partitions: int) -> PlanesRead:
    """A consumer from the beginning to the end. RuntimeError when it does not get there."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 2,  # a broker that is killed on the way is news to nobody
            "group.id": "planes",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    fleet: Fleet = {}
    records, at_end = 0, set[int]()
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    try:
        deadline = time.monotonic() + READ_TIMEOUT_S
        while len(at_end) < partitions:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the consumer of {topic} got stuck after {records} records")
            for message in consumer.consume(2_000, 0.5):
                error, key = message.error(), message.key()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    at_end.add(message.partition() or 0)
                    continue
                if error is not None or key is None:
                    raise RuntimeError(f"{topic}: {error}")
                records += 1
                value = message.value()
                if value is None:
                    fleet.pop(key.decode(), None)
                else:
                    fleet[key.decode()] = json.loads(value)
    finally:
        consumer.close()
    return PlanesRead(fleet, records)
