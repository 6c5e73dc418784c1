"""The compaction job in Spark over built tiers, with leaders that answer, refuse or are silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from object_store.blocking import BlockingStore
from records.compression import Compression
from records.events import Event, EventsHeader, encode_events
from spark_offload.compaction.job import NO_VERDICT, CompactionOptions, plan, run
from spark_offload.compaction.report import BAR_WIDTH, FAILED, REFUSED, SWAPPED, UNCHANGED, UNDECIDED, CompactionReport
from spark_offload.options import OptionError
from spark_offload.running.job import SilentProgress
from tests.spark_offload.pretend_leader import PretendLeader
from tests.spark_offload.tier_builder import NOW, BuiltPartition, TierBuilder, plain_batches
from tiering.exports.exports import ExportKey, export_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "planes"


def export(tier: TierBuilder, configs: dict[str, dict[str, str]], defaults: dict[str, str] | None = None) -> None:
    """What the controllers tell: topics, in order with the ids 1, 2, …, and their settings."""
    events: list[Event] = []
    for number, (name, settings) in enumerate(configs.items(), 1):
        events.append({"event": "topic", "name": name, "topic_id": number.to_bytes(16, "big").hex()})
        events += [
            {"event": "config", "resource_type": "topic", "resource_name": name, "name": key, "value": value}
            for key, value in settings.items()
        ]
    events += [
        {"event": "config", "resource_type": "broker", "resource_name": "", "name": key, "value": value}
        for key, value in (defaults or {}).items()
    ]
    header = EventsHeader(
        kind="metadata", cluster_id=tier.tier.cluster_id, incarnation=1, scope=0, position=1, created_ms=NOW
    )
    target = tier.root / export_key(tier.tier, ExportKey("metadata", 1, 0, 1))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(encode_events(header, events))


def built(
    tmp_path: Path, partitions: int = 3, topic: str = TOPIC, topic_id: int = 1
) -> tuple[TierBuilder, list[BuiltPartition]]:
    tier = TierBuilder(tmp_path / "tier")
    found = []
    for number in range(partitions):
        partition = tier.partition(TOPIC, number)
        for start in (0, 40, 80):
            partition.add(plain_batches(start, 40, codec=Compression.LZ4))
        partition.publish()
        found.append(partition)
    export(tier, {TOPIC: {"cleanup.policy": "compact,delete", "delete.retention.ms": "5000"}})
    return tier, found


def compact(
    spark: SparkSession, tier: TierBuilder, verdict_s: float = 30, topics: tuple[str, ...] = ()
) -> CompactionReport:
    options = CompactionOptions(tier=tier.uri, topics=topics, verdict_s=verdict_s)
    return run(spark, options, SilentProgress())


def offsets(spark: SparkSession, tier: TierBuilder) -> dict[int, list[int]]:
    rows = spark.read.format("tidelog").option("tier", tier.uri).option("topic", TOPIC).load().collect()
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row["partition"], []).append(row["offset"])
    return {number: sorted(some) for number, some in found.items()}


def test_all_partitions_are_compacted_and_read_on(spark: SparkSession, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path)
    with PretendLeader(partitions) as leader:
        report = compact(spark, tier)
        assert not report.failed, report.problems
        assert offsets(spark, tier) == {number: list(range(113, 120)) for number in range(3)}
        assert [(row.state, row.superseded, row.keys) for row in report.partitions] == [(SWAPPED, 113, 7)] * 3
        assert {one.kind for one in leader.proposals} == {"compaction"}
        again = compact(spark, tier)
    assert [row.state for row in again.partitions] == [UNCHANGED] * 3
    assert json.loads(json.dumps(report.as_json()))["partitions"][0]["segments_after"] == 1
    assert "3 of 3 partitions compacted" in report.lines()[-1]
    assert sum(f"before {'█' * BAR_WIDTH} " in line for line in report.lines()) == 3
    assert sum("after  █" in line for line in report.lines()) == 3


def test_damage_stops_its_partition_alone(spark: SparkSession, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path)
    file = partitions[1].file_of(partitions[1].segments[1])
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    before = list(partitions[1].segments)
    with PretendLeader(partitions):
        report = compact(spark, tier)
    assert report.failed
    assert [row.state for row in report.partitions] == [SWAPPED, FAILED, SWAPPED]
    (problem,) = report.problems
    assert (problem.what, problem.partition, problem.position) == ("damaged", 1, 0)
    assert problem.key.endswith(f"{before[1].uuid}.segment")
    assert "wrong CRC" in problem.reason
    assert partitions[1].segments == before


def test_who_is_refused_or_gets_no_answer_has_changed_nothing(spark: SparkSession, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path)
    before = offsets(spark, tier)
    with PretendLeader(
        partitions, judge=lambda proposal: "too late" if proposal.partition == 0 else None, undecided=(1,)
    ):
        report = compact(spark, tier, verdict_s=2)
    assert report.failed
    assert [row.state for row in report.partitions] == [REFUSED, UNDECIDED, SWAPPED]
    assert [problem.what for problem in report.problems] == [REFUSED, NO_VERDICT]
    assert "too late" in report.problems[0].reason
    after = offsets(spark, tier)
    assert (after[0], after[1]) == (before[0], before[1])
    assert len(after[2]) == 7


def test_of_two_jobs_over_the_same_segments_one_wins(spark: SparkSession, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path, 1)

    def meanwhile(_: object) -> None:
        """Another job was faster: an input has another uuid now."""
        (partition,) = partitions
        segment = partition.segments[0]
        other = msgspec.structs.replace(segment, uuid="f" * 32)
        partition.file_of(segment).rename(partition.file_of(other))
        partition.segments[0] = other
        partition.publish()

    with PretendLeader(partitions, judge=meanwhile):
        report = compact(spark, tier)
    assert [row.state for row in report.partitions] == [REFUSED]
    assert offsets(spark, tier) == {0: list(range(120))}


def test_what_is_compacted_is_told_by_the_exports(tmp_path: Path) -> None:
    tier, _ = built(tmp_path)
    other = tier.partition("events", topic_id=2)
    other.add(plain_batches(0, 10))
    other.publish()
    export(
        tier,
        {TOPIC: {"cleanup.policy": "compact", "min.compaction.lag.ms": "77"}, "events": {"cleanup.policy": "delete"}},
        {"log.cleaner.delete.retention.ms": "5", "log.cleanup.policy": "compact"},
    )

    def planned(**fields: object) -> list[tuple[str, int, int, int]]:
        options = CompactionOptions(tier=tier.uri, **fields)  # type: ignore[arg-type]
        with BlockingStore(tier.uri) as store:
            tasks = store.wait(lambda: plan(store.store, options)).tasks
        return [
            (one.path.topic, one.path.partition, one.policy.delete_retention_ms, one.policy.min_compaction_lag_ms)
            for one in tasks
        ]

    assert sorted(planned()) == [(TOPIC, number, 5, 77) for number in range(3)]
    assert planned(partitions="1", delete_retention_ms=9, min_compaction_lag_ms=0) == [(TOPIC, 1, 9, 0)]
    with pytest.raises(OptionError, match="is not compacted: its"):
        planned(topics=("events",))
    assert planned(topics=("events",), assume_compacted=True) == [("events", 0, 5, 0)]
    export(tier, {})
    assert planned() == []
    with pytest.raises(OptionError, match="no export"):
        planned(topics=(TOPIC,))


def test_a_manifest_that_cannot_be_read_is_a_problem_of_its_partition(tmp_path: Path) -> None:
    tier, partitions = built(tmp_path)
    (tier.root / tier.tier.manifest_key(partitions[2].path, 1)).write_text("{}")
    with BlockingStore(tier.uri) as store:
        planned = store.wait(lambda: plan(store.store, CompactionOptions(tier=tier.uri, topics=(TOPIC,))))
    assert [one.path.partition for one in planned.tasks] == [0, 1]
    (problem,) = planned.problems
    assert (problem.what, problem.topic, problem.partition) == ("damaged", TOPIC, 2)
    assert tier.tier.manifest_key(partitions[2].path, 1) in problem.reason
