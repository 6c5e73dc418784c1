"""`tidelog load` and `tidelog usage record`: what clients use of the brokers, now and over time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from tidelog.admin.admin_client import ClusterOptions, admin_client
from tidelog.admin.replica_moves import Refused
from tidelog.admin.usage_admin import described
from tidelog.command_group import CommandGroup
from tidelog.output import EXIT_USAGE, Json, fail, show

app = CommandGroup("What clients use of the brokers: record.")

RATES = ("in_rate", "out_rate", "request_rate", "busy_share")
DISK = ("disk_used_bytes", "disk_size_bytes")
LOAD = ("load", "queue_wait_ms", "loop_busy")
NOT_KNOWN = "the controller has not heard all brokers yet: what is missing shows as -"


def load(
    tenants: Annotated[bool, typer.Option("--tenants", help="A row for each tenant, over all brokers.")] = False,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="A row for each partition that is among its leader's busiest.")
    ] = False,
    *,
    cluster: ClusterOptions,
    as_json: Json = False,
) -> None:
    """How loaded each broker is, from 0 to 1, and what its clients send and are sent in a second, without replication,
    as the brokers reported last."""
    if tenants and partitions:
        fail("give one of --tenants and --partitions", EXIT_USAGE)
    with admin_client(cluster) as client:
        try:
            known, brokers = described(client, tenants=tenants, partitions=partitions)
        except Refused as error:
            fail(str(error))
    if tenants:
        rows = by_tenant(brokers)
        columns = ["tenant", "load", *RATES, "connections", "attempts", "throttled_ms", "brokers"]
    elif partitions:
        rows = busiest(brokers)
        columns = ["topic", "partition", "broker", "load", "in_rate", "out_rate"]
    else:
        rows = [{name: value for name, value in row.items() if not isinstance(value, list)} for row in brokers]
        columns = ["broker", *LOAD, *RATES, "cpu_share", "moved_rate", "connections", *DISK]
    show(rows, as_json=as_json, columns=columns, empty="nothing")
    if not known:
        print(f"tidelog: {NOT_KNOWN}", file=sys.stderr)


def by_tenant(brokers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each tenant, the busiest first. A sum of rates of which one is unknown is unknown."""
    found: dict[str, dict[str, Any]] = {}
    for broker in brokers:
        for row in broker["tenants"]:
            sums = found.get(row["id"])
            if sums is None:
                found[row["id"]] = row | {"throttled_ms": dict(row["throttled_ms"]), "brokers": [broker["broker"]]}
                continue
            sums["brokers"].append(broker["broker"])
            for name in ("connections", "attempts", "bytes_in", "bytes_out", "requests", "busy_ns"):
                sums[name] += row[name]
            for name in (*RATES, "load"):
                known = sums[name] is not None and row[name] is not None
                sums[name] = round(sums[name] + row[name], 3) if known else None
            for reason, ms in row["throttled_ms"].items():
                sums["throttled_ms"][reason] = sums["throttled_ms"].get(reason, 0) + ms
    return sorted(found.values(), key=lambda row: -((row["in_rate"] or 0) + (row["out_rate"] or 0)))


def busiest(brokers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The busiest partition first."""
    rows = [row | {"broker": broker["broker"]} for broker in brokers for row in broker["partitions"]]
    return sorted(rows, key=lambda row: -((row["in_rate"] or 0) + (row["out_rate"] or 0)))


@app.command()
def record(
    out: Annotated[Path, typer.Option("--out", help="Append to this file.", metavar="FILE")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 5.0,
    looks: Annotated[int, typer.Option(min=0, help="End after so many looks; 0: at Ctrl-C.")] = 0,
    *,
    cluster: ClusterOptions,
) -> None:
    """Keep every report of every broker, one JSON object a line. A look that fails is said, and tried again later.

    docs/operations.md has the fields.
    """
    from kafka.errors import KafkaError  # noqa: PLC0415

    kept: dict[int, tuple[int, int]] = {}  # by broker: epoch and round
    with admin_client(cluster) as client, appending(out) as file:
        look = 0
        while True:
            look += 1
            try:
                _, brokers = described(client, tenants=True, partitions=True)
            except (Refused, KafkaError) as error:
                print(f"tidelog: {error}", file=sys.stderr, flush=True)
            else:
                for row in new_rounds(kept, brokers):
                    print(json.dumps({"time_ms": time.time_ns() // 1_000_000} | row), file=file)
                file.flush()
            if look == looks:
                return
            time.sleep(every)


def appending(out: Path) -> TextIO:
    try:
        return out.open("a")
    except OSError as error:
        fail(f"--out {out}: {error.strerror}")


def new_rounds(kept: dict[int, tuple[int, int]], brokers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The brokers whose last round is not among `kept`, into which it is noted."""
    found = []
    for row in brokers:
        mark = (row["epoch"], row["round"])
        if row["round"] and kept.get(row["broker"]) != mark:
            kept[row["broker"]] = mark
            found.append(row)
    return found
