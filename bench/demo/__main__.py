"""Every flight that left New York in 2013 goes in, moves to the object store, and comes back on two ways.

336,776 real flights are produced as JSON, keyed by tail number, into a tiered topic of six partitions, replicated three
times; the leader of partition 0 is killed on the way. Segments close and are copied, the brokers let go of their local
copies. Then a new group of three consumers reads everything from offset 0, mostly out of the store, and Spark reads
the same topic from the bucket alone. At last the planes themselves, keyed by tail number and updated with every flight,
are compacted in the tier, verified, exported to Iceberg, and read back by a consumer and by pyiceberg.

Ends 0 only if every record was acknowledged and read exactly once with its bytes, if flights and mean departure delays
by carrier are the same for pandas over the file, consumers and Spark, and if the planes are the same for all three.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.demo.clusters import ComposedDemo, DemoCluster, EmbeddedDemo
from bench.demo.fleet import planes_agree
from bench.demo.flights import CarrierFigures, airline_names, data_folder, figures_of_the_file, read_flights
from bench.demo.history import History, wait_for_the_tier
from bench.demo.ledger import Ledger
from bench.demo.producing import produce
from bench.demo.reading import read_all

TOPIC, PARTITIONS = "flights", 6
TOPIC_CONFIGS = {
    "min.insync.replicas": "2",
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "local.retention.bytes": "1",  # nothing of a closed segment stays once the store holds it
}


def main() -> int:
    arguments = argparse.ArgumentParser(prog="bench.demo", description=__doc__.splitlines()[0])
    arguments.add_argument("--compose", action="store_true", help="in the containers of docker-compose.yml, with MinIO")
    chosen: DemoCluster = ComposedDemo() if arguments.parse_args().compose else EmbeddedDemo()
    console = Console(width=110)
    folder = data_folder()
    started = time.monotonic()
    total = sum(1 for _ in read_flights(folder))
    ledger = Ledger()
    with chosen as cluster:
        console.print(f"three brokers and three controllers serve at {cluster.bootstrap}")
        create_topic(cluster.bootstrap)
        columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            produce(cluster, TOPIC, folder, total, ledger, progress)
            history = wait_for_the_tier(cluster.bootstrap, TOPIC, PARTITIONS)
            console.print(
                f"  {history.tiered:,} of {history.records:,} records are in the object store, "
                f"{history.local:,} still with the brokers"
            )
            read_all(cluster.bootstrap, TOPIC, total, ledger, progress)
        console.print("  Spark reads the same topic from the bucket")
        spark = {
            row["carrier"]: CarrierFigures(row["flights"], row["delayed"], row["mean_delay"] or 0.0)
            for row in cluster.spark(TOPIC)
        }
        agrees = report(console, folder, ledger, history, spark, time.monotonic() - started)
        agrees = planes_agree(cluster, folder, console) and agrees
        console.print(f"{'everything agrees' if agrees else 'SOMETHING IS WRONG'}; {time.monotonic() - started:.0f} s")
    return 0 if agrees else 1


def create_topic(bootstrap: str) -> None:
    """By a client that is gone before the cluster is."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=TOPIC_CONFIGS)])[TOPIC].result(30)


def report(
    console: Console,
    folder: Path,
    ledger: Ledger,
    history: History,
    spark: dict[str, CarrierFigures],
    seconds: float,
) -> bool:
    """Print the table; whether everything agrees."""
    names, expected, read = airline_names(folder), figures_of_the_file(folder), ledger.figures_read()
    table = Table(title="Flights from New York, 2013: number, mean departure delay in minutes")
    table.add_column("carrier", no_wrap=True, max_width=20)
    for column in ("file (pandas)", "acknowledged", "consumers", "Spark"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    agrees = True
    for carrier in sorted(expected, key=lambda c: -expected[c].flights):
        ways = [expected[carrier], read.get(carrier), spark.get(carrier)]
        same = all(way is not None and _same(expected[carrier], way) for way in ways)
        same = same and ledger.acknowledged[carrier] == expected[carrier].flights
        agrees = agrees and same
        cells = [_cell(way) for way in ways]
        cells.insert(1, f"{ledger.acknowledged[carrier]:,}")
        table.add_row(f"{carrier} {names.get(carrier, '')}", *cells, "[green]✓[/]" if same else "[red]✗[/]")
    console.print(table)
    agrees = agrees and ledger.is_whole and history.is_settled and set(read) == set(spark) == set(expected)
    console.print(
        f"{'the flights agree' if agrees else 'SOMETHING IS WRONG'}: {ledger.missing} missing, {ledger.doubled} "
        f"doubled, {ledger.changed} changed, errors {dict(ledger.errors)}; {seconds:.0f} s"
    )
    return agrees


def _same(one: CarrierFigures, other: CarrierFigures) -> bool:
    return one[:2] == other[:2] and math.isclose(one.mean_delay, other.mean_delay, rel_tol=1e-9, abs_tol=1e-9)


def _cell(figures: CarrierFigures | None) -> str:
    return "-" if figures is None else f"{figures.flights:,}  {figures.mean_delay:6.2f}"


if __name__ == "__main__":
    sys.exit(main())
