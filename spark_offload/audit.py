"""The audit as a DataFrame: every change of consistency metadata, one row each, read from the object store.

    from spark_offload import audit
    audit.read(spark, "s3://bucket/prefix").where("event = 'log_start_moved'").orderBy("wall_time").show()

Columns: `event`, `wall_time` (timestamp, by the clock of its writer), `source` (broker, metadata, tier), `node`,
`incarnation`, `sequence`, `cause`, `actor`, `topic`, `topic_id` (hexadecimal), `partition` (-1: none), `leader_epoch`
(-1: unknown), `before` and `after` (JSON), and `file`, where in the store the row was read. docs/audit.md lists the
events and what they hold. Files are decoded in Spark's tasks, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from object_store.blocking import BlockingStore
from records.audit_event import AuditEvent, AuditSource
from spark_offload.reading.catalog import chosen_root
from spark_offload.reading.task import store_at
from tiering.bucket.keys import TierRoot
from tiering.exports.audit_reading import audit_key, decode_audit_file, list_audit, missed_positions, parse_audit_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "event string, wall_time timestamp, source string, node int, incarnation string, sequence long, cause string, "
    "actor string, topic string, topic_id string, partition int, leader_epoch int, before string, after string, "
    "file string"
)
IDENTITY = ("source", "node", "incarnation", "sequence")
FILES_PER_TASK = 32
_FIELDS = pa.schema(
    [
        ("event", pa.string()),
        ("wall_time", pa.timestamp("us", "UTC")),
        ("source", pa.string()),
        ("node", pa.int32()),
        ("incarnation", pa.string()),
        ("sequence", pa.int64()),
        ("cause", pa.string()),
        ("actor", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("leader_epoch", pa.int32()),
        ("before", pa.string()),
        ("after", pa.string()),
        ("file", pa.string()),
    ]
)


def read(
    spark: SparkSession,
    tier: str,
    *,
    cluster_id: str = "",
    sources: Iterable[str] = AuditSource,
    distinct: bool = True,
) -> DataFrame:
    """All events of `sources` in the store at the URI `tier`. With `distinct` off, events that were exported twice for
    a moment come twice, and nothing is shuffled.

    Raises OptionError when the store holds no cluster, or several and no `cluster_id`; StoreError. A damaged file fails
    the query that reads it, with its name; `missing` tells what no file holds.
    """
    with BlockingStore(tier) as store:
        root = store.wait(lambda: chosen_root(store.store, cluster_id))
        names = [audit_key(root, key) for key in store.wait(lambda: list_audit(store.store, root, sources))]
    cluster = root.cluster_id

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name in batch.column(0).to_pylist():
                yield from _rows_of(tier, cluster, name)

    files = spark.createDataFrame([(name,) for name in names], "file string")
    spread = files.repartition(max(1, -(-len(names) // FILES_PER_TASK)))
    found = spread.mapInArrow(rows, SCHEMA)
    return found.dropDuplicates(list(IDENTITY)) if distinct else found


def missing(tier: str, *, cluster_id: str = "", sources: Iterable[str] = AuditSource) -> list[dict[str, Any]]:
    """Positions between the files of a source that no file holds: `source`, `scope`, `first`, `end`, `reason`."""
    with BlockingStore(tier) as store:
        root = store.wait(lambda: chosen_root(store.store, cluster_id))
        keys = store.wait(lambda: list_audit(store.store, root, sources))
    return [
        {"source": one.source, "scope": one.scope, "first": one.first, "end": one.end, "reason": one.reason}
        for one in missed_positions(root, keys)
    ]


def _rows_of(tier: str, cluster_id: str, name: str) -> Iterator[pa.RecordBatch]:
    """Runs in a Spark task."""
    root = TierRoot(cluster_id)
    key = parse_audit_key(root, name)
    if key is None:
        return
    events = decode_audit_file(root, key, store_at(tier).get(name))
    if events:
        yield pa.RecordBatch.from_pylist([_row(event, name) for event in events], schema=_FIELDS)


def _row(event: AuditEvent, name: str) -> dict[str, Any]:
    return {
        "event": event.event,
        "wall_time": event.wall_ms * 1_000,
        "source": event.source,
        "node": event.node,
        "incarnation": event.incarnation,
        "sequence": event.sequence,
        "cause": event.cause,
        "actor": event.actor,
        "topic": event.topic,
        "topic_id": event.topic_id,
        "partition": event.partition,
        "leader_epoch": event.leader_epoch,
        "before": msgspec.json.encode(event.before).decode(),
        "after": msgspec.json.encode(event.after).decode(),
        "file": name,
    }
