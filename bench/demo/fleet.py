"""The demonstration's second half: planes are updated with every flight, compacted in the tier, proven and exported.

Ends well only if the planes as the file tells them, as a consumer reads them from the brokers after compaction, and as
pyiceberg reads them from the exported table are the same, field by field.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import KafkaAdminClient
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.demo.clusters import DemoCluster
from bench.demo.history import TIER_TIMEOUT_S, look
from bench.demo.planes import Fleet, PlanesRead, produce_planes, read_planes

TOPIC, PARTITIONS = "planes", 3
TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "min.insync.replicas": "2",
    "remote.storage.enable": "true",
    "segment.bytes": str(4 << 20),
    "local.retention.bytes": "1",
}
SCHEMA = (
    "tailnum string, manufacturer string, model string, seats int, flights int, miles bigint, month int, "
    "last_route string"
)


def planes_agree(cluster: DemoCluster, folder: Path, console: Console) -> bool:
    """Do all of it, print what was found; whether everything agrees."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=TOPIC_CONFIGS)])[TOPIC].result(30)
    columns = (TextColumn("{task.description:>9}"), BarColumn(), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        fleet, sent = produce_planes(cluster.bootstrap, TOPIC, folder, progress)
    console.print(f"  {sent:,} updates of {len(fleet):,} planes and of those that retired")
    if not _wait_until_tiered(cluster.bootstrap):
        console.print("  [red]the updates are not in the object store in time[/]")
        return False
    console.print("  Spark compacts them in the store, verifies every record, and exports them to Iceberg")
    compacted = cluster.job("compact", "--topic", TOPIC)
    verified = cluster.job("verify", "--topic", TOPIC, "--deep")
    exported = cluster.export(TOPIC, SCHEMA)
    consumed = read_planes(cluster.bootstrap, TOPIC, PARTITIONS)
    console.print(_table(compacted, verified, exported, consumed))
    table: Fleet = {row["tailnum"]: row for row in exported["fleet"]}
    same = fleet == consumed.fleet == table
    clean = not compacted["failed"] and not verified["failed"]
    whole = consumed.records == exported["records"] < sent
    words = "are the same" if same else "DIFFER"
    console.print(
        f"the planes as the file, the consumer and pyiceberg have them {words} "
        f"({len(fleet):,}, {len(consumed.fleet):,}, {len(table):,})"
    )
    return same and clean and whole


def _wait_until_tiered(bootstrap: str) -> bool:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        deadline = time.monotonic() + TIER_TIMEOUT_S
        while time.monotonic() < deadline:
            found = look(admin, TOPIC, PARTITIONS)
            if found.tiered == found.records:
                return True
            time.sleep(0.5)
    finally:
        admin.close()
    return False


def _table(
    compacted: dict[str, Any], verified: dict[str, Any], exported: dict[str, Any], consumed: PlanesRead
) -> Table:
    rows = compacted["partitions"]
    before, after = (sum(row[f"bytes_{when}"] for row in rows) for when in ("before", "after"))
    table = Table(title="Planes, keyed by tail number and updated with every flight")
    table.add_column("step", no_wrap=True)
    table.add_column("what came of it")
    table.add_row("compact", f"{sum(row['records'] for row in rows):,} records read, {before:,} bytes became {after:,}")
    checked = "nothing is wrong" if not verified["failed"] else f"[red]{verified['problems'][:2]}[/]"
    table.add_row("verify", f"every record of {len(verified['partitions'])} partitions: {checked}")
    table.add_row("export", f"{exported['records']:,} records in the table, as pyiceberg counts them")
    table.add_row("consume", f"{consumed.records:,} records from the brokers")
    return table
