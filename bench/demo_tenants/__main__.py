"""Sixteen airlines on one cluster, each a tenant of its own: the same topic name, sixteen keys, two cells, one port.

Every flight that left New York in 2013 is written by its airline into a topic `flights` and read back at the same time,
by unmodified clients through the proxy, over TLS and with SCRAM. Ends 0 only if each airline has read exactly its own
flights, each once and as it was written, and sees no topic and no broker but its own.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import private_hosts
from bench.demo.flights import CarrierFigures, airline_names, data_folder, figures_of_the_file, read_flights
from bench.demo_tenants.airline import Airline, fly
from bench.embedded import EmbeddedCluster
from bench.tenant_clients import client_of, name_hosts

BROKERS, CELLS, PROXIES = 6, 2, 2
SETTINGS = {"group.initial.rebalance.delay.ms": "500"}


def main() -> int:
    hosts = private_hosts.enter("bench.demo_tenants", sys.argv[1:])
    console = Console(width=110)
    folder, started = data_folder(), time.monotonic()
    flights: dict[str, list[tuple[int, bytes, bytes]]] = {}
    for row, flight in enumerate(read_flights(folder)):
        value = json.dumps(flight, separators=(",", ":")).encode()
        flights.setdefault(flight["carrier"], []).append((row, flight["tailnum"].encode(), value))
    tenants = [carrier.lower() for carrier in sorted(flights)]
    cluster = EmbeddedCluster(BROKERS, SETTINGS, proxies=PROXIES, tenants=tenants, cells=CELLS)
    with cluster:
        airlines = _airlines(cluster, flights, hosts)
        port = airlines[0].client["bootstrap.servers"].rpartition(":")[2]
        cells = sorted({airline.cell for airline in airlines})
        console.print(
            f"{len(airlines)} tenants in {len(cells)} cells of {BROKERS // CELLS} brokers, all behind 127.0.0.1:{port}"
        )
        _fly_all(airlines, sum(map(len, flights.values())), console)
    figures = figures_of_the_file(folder)
    agrees = _report(console, airlines, airline_names(folder), figures)
    agrees = agrees and len(cells) == CELLS and len(airlines) == len(figures)
    verdict = "each airline read its own flights, and nothing else" if agrees else "SOMETHING IS WRONG"
    console.print(f"{verdict}; {time.monotonic() - started:.0f} s")
    return 0 if agrees else 1


def _airlines(
    cluster: EmbeddedCluster, flights: dict[str, list[tuple[int, bytes, bytes]]], hosts: Path | None
) -> list[Airline]:
    rows = {row["tenant"]: row for row in json.loads(cluster.command_of("tenants", "list", "--json"))}
    airlines = []
    for carrier in sorted(flights, key=lambda one: -len(flights[one])):
        row = rows[carrier.lower()]
        client = client_of(cluster, carrier.lower())
        airlines.append(Airline(carrier, client, flights[carrier], row["cell"], row["id"]))
    name_hosts(hosts, (one.client for one in airlines), BROKERS)
    return airlines


def _fly_all(airlines: list[Airline], total: int, console: Console) -> None:
    """All at the same time."""
    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        written, read = progress.add_task("written", total=total), progress.add_task("read", total=total)

        def moved(more_written: int, more_read: int) -> None:
            progress.advance(written, more_written)
            progress.advance(read, more_read)

        threads = [threading.Thread(target=fly, args=(airline, moved)) for airline in airlines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _report(
    console: Console, airlines: list[Airline], names: dict[str, str], figures: dict[str, CarrierFigures]
) -> bool:
    """Print the table; whether every airline has what is its own."""
    table = Table(title="Flights from New York, 2013: sixteen topics `flights`")
    table.add_column("airline", no_wrap=True, max_width=28)
    for column in ("tenant", "cell"):
        table.add_column(column, no_wrap=True)
    for column in ("file (pandas)", "written", "read", "of others"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    agrees = True
    for one in airlines:
        own = all(one.tenant_id in host for host in one.brokers) and len(one.brokers) == BROKERS // CELLS
        expected = figures[one.carrier].flights
        same = one.is_whole and own and expected == one.written == sum(one.read.values())
        agrees = agrees and same
        counts = [f"{number:,}" for number in (expected, one.written, sum(one.read.values()), one.foreign)]
        name = f"{one.carrier} {names.get(one.carrier, '')}"
        table.add_row(name, one.tenant_id, one.cell, *counts, "[green]✓[/]" if same else "[red]✗[/]")
    console.print(table)
    for one in airlines:
        if one.errors or one.topics != ["flights"]:
            console.print(f"{one.carrier}: errors {dict(one.errors)}, topics {one.topics}")
    return agrees


if __name__ == "__main__":
    sys.exit(main())
