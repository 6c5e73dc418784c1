"""The audit as a DataFrame: every event with its columns, once, and what is missing."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from common.machine import MachineClock
from common.node_settings.catalogue import NODE_SETTINGS
from object_store.opening import open_store
from records.audit_event import AuditEvent, AuditKind, AuditSource
from spark_offload import audit
from spark_offload.options import OptionError
from tiering.bucket.keys import TierRoot
from tiering.exports.audit_export import AuditPiece, AuditWriter
from tiering.exports.audit_reading import AuditKey, audit_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLUSTER = "Y2x1c3Rlci1vZi10ZXN0cw"
TOPIC_ID = bytes(range(16)).hex()


class Guard:
    async def check(self) -> int:
        return 1


def moved(sequence: int) -> AuditEvent:
    return AuditEvent(
        event=AuditKind.LOG_START_MOVED,
        wall_ms=1_700_000_000_000 + sequence,
        source=AuditSource.BROKER,
        node=2,
        incarnation="a" * 32,
        sequence=sequence,
        cause="DeleteRecords",
        actor="ann@192.0.2.1",
        topic="planes",
        topic_id=TOPIC_ID,
        partition=3,
        before={"log_start_offset": 10 * sequence},
        after={"log_start_offset": 10 * sequence + 10},
    )


def elected(sequence: int) -> AuditEvent:
    return AuditEvent(
        event=AuditKind.LEADER_ELECTED,
        wall_ms=1_700_000_000_500,
        source=AuditSource.METADATA,
        node=100,
        incarnation="1",
        sequence=sequence,
        cause="broker_fenced",
        before={"leader": 1, "isr": [1, 2]},
        after={"leader": 2, "isr": [2]},
    )


@pytest.fixture
def tier(tmp_path: Path) -> str:
    uri = f"file://{tmp_path}"

    async def fill() -> None:
        store = await open_store(uri)
        await store.put(f"{CLUSTER}/cluster.json", b"{}")
        writer = AuditWriter(store, TierRoot(CLUSTER), Guard(), MachineClock(), -1)
        await writer.write(AuditSource.BROKER, 0, AuditPiece(0, 5, [moved(n) for n in range(5)]))
        await writer.write(AuditSource.BROKER, 0, AuditPiece(3, 8, [moved(n) for n in range(3, 8)]))
        await writer.write(AuditSource.METADATA, 0, AuditPiece(0, 10, [elected(4)]))
        await writer.write(AuditSource.METADATA, 0, AuditPiece(12, 20, [elected(13)]))
        await store.close()

    asyncio.run(fill())
    return uri


def test_events_are_rows(spark: SparkSession, tier: str) -> None:
    rows = audit.read(spark, tier).orderBy("source", "sequence").collect()
    assert [(row.source, row.sequence) for row in rows] == [
        *((AuditSource.BROKER, n) for n in range(8)),
        (AuditSource.METADATA, 4),
        (AuditSource.METADATA, 13),
    ]
    first = rows[0]
    assert (first.event, first.node, first.cause, first.actor) == (
        "log_start_moved", 2, "DeleteRecords", "ann@192.0.2.1")  # fmt: skip
    assert (first.topic, first.topic_id, first.partition, first.leader_epoch) == ("planes", TOPIC_ID, 3, -1)
    assert (json.loads(first.before), json.loads(first.after)) == ({"log_start_offset": 0}, {"log_start_offset": 10})
    assert first.wall_time.timestamp() == 1_700_000_000
    assert json.loads(rows[-1].after) == {"leader": 2, "isr": [2]}
    assert first.file.startswith(f"{CLUSTER}/audit/broker/")


def test_one_source_may_be_chosen_and_copies_kept(spark: SparkSession, tier: str) -> None:
    found = audit.read(spark, tier, cluster_id=CLUSTER, sources=[AuditSource.BROKER], distinct=False)
    assert found.count() == 10
    starts = audit.read(spark, tier).selectExpr("max(get_json_object(after, '$.log_start_offset')) start")
    assert starts.collect()[0].start == "80"


def test_what_no_file_holds_is_told(tier: str) -> None:
    (gap,) = audit.missing(tier)
    assert (gap["source"], gap["scope"], gap["first"], gap["end"]) == (AuditSource.METADATA, 0, 10, 12)


def test_a_damaged_file_fails_the_query_by_its_name(spark: SparkSession, tier: str) -> None:
    key = audit_key(TierRoot(CLUSTER), AuditKey(AuditSource.METADATA, 1, 0, 0, 10))
    path = Path(tier.removeprefix("file://")) / key
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Exception, match="00000000000000000000-00000000000000000010"):
        audit.read(spark, tier).collect()


def test_a_store_without_a_cluster_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match="no cluster"):
        audit.read(spark, f"file://{tmp_path / 'empty'}")


def test_the_page_names_everything_and_its_example_runs(
    spark: SparkSession, tier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    settings = [one.name for one in NODE_SETTINGS if one.name.startswith("tidelog.audit.")]
    names = [*AuditKind, *AuditSource, *AuditEvent.__struct_fields__, *audit.IDENTITY, *settings]
    assert [name for name in names if f"`{name}`" not in page] == []
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "docs/audit.md", "exec"), {"spark": spark, "tier": tier})
    assert "ann@192.0.2.1" in capsys.readouterr().out
