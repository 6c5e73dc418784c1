"""The erasure job in Spark over built tiers, with leaders that answer, refuse, change or are silent."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from records.compression import Compression
from records.record import Record
from spark_offload.erasure.job import ErasureOptions, run
from spark_offload.erasure.key_digests import ErasureKeys
from spark_offload.erasure.leaders import Waits
from spark_offload.erasure.report import ErasureReport
from spark_offload.options import OptionError
from spark_offload.running.job import SilentProgress, Stage
from tests.spark_offload.pretend_leader import PretendLeader
from tests.spark_offload.tier_builder import NOW, BuiltPartition, TierBuilder, batch, plain_batches
from tiering.jobs.proposal import Proposal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAITS = Waits(ready_s=20, verdict_s=20, manifest_s=20, gone_s=5)
TOPIC = "people"


def options(tier: TierBuilder, *keys: bytes, prove_only: bool = False, waits: Waits = WAITS) -> ErasureOptions:
    found = ErasureKeys(enumerate(keys, 1), os.urandom(32))
    return ErasureOptions(
        tier=tier.uri, topics=(TOPIC,), keys=found, seed=os.urandom(16), prove_only=prove_only, waits=waits
    )


def erase(spark: SparkSession, chosen: ErasureOptions) -> ErasureReport:
    return run(spark, chosen, SilentProgress())


def built(tmp_path: Path, partitions: int = 2) -> tuple[TierBuilder, list[BuiltPartition]]:
    """Each partition: three segments of 40 records, keys k0 to k6."""
    tier = TierBuilder(tmp_path / "tier")
    found = []
    for number in range(partitions):
        partition = tier.partition(TOPIC, number)
        for start in (0, 40, 80):
            partition.add(plain_batches(start, 40, codec=Compression.LZ4))
        partition.publish()
        found.append(partition)
    return tier, found


def records(spark: SparkSession, tier: TierBuilder) -> dict[tuple[int, int], tuple[bytes, bytes, str]]:
    rows = spark.read.format("tidelog").option("tier", tier.uri).option("topic", TOPIC).load().collect()
    return {
        (row["partition"], row["offset"]): (bytes(row["key"]), bytes(row["value"]), str(row["timestamp"]))
        for row in rows
    }


def test_keys_leave_every_partition_and_the_rest_is_proven(spark: SparkSession, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path)
    before = records(spark, tier)
    old = {one.uuid for partition in partitions for one in partition.segments}
    with PretendLeader(partitions) as leader:
        report = erase(spark, options(tier, b"k3", b"k5", b"never was"))
    assert not report.failed, report.problems
    assert report.proven
    assert records(spark, tier) == {at: one for at, one in before.items() if one[0] not in (b"k3", b"k5")}
    wanted = sum(one[0] in (b"k3", b"k5") for one in before.values())
    assert (report.records_erased, report.keys, report.keys_found) == (wanted, 3, 2)
    assert [(one.line, one.records) for one in report.key_counts] == [(1, 34), (2, 34)]
    assert report.objects_gone == 6
    assert not report.held
    assert old.isdisjoint(one.uuid for partition in partitions for one in partition.segments)
    assert {one.erase_end for one in leader.proposals} == {120}
    text = json.dumps(report.as_json())
    assert "k3" not in text
    assert "k5" not in text
    again = erase(spark, options(tier, b"k3", b"k5", prove_only=True))
    assert again.proven
    assert again.records_erased == 0


def test_segments_without_the_keys_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    tier = TierBuilder(tmp_path / "tier")
    partition = tier.partition(TOPIC)
    for start in (0, 10, 20, 30):
        key = b"x" if start in (0, 20) else b"y"
        partition.add([batch([Record(at, NOW, key, b"%d" % at) for at in range(10)], start)])
    partition.publish()
    kept = [partition.segments[1].uuid, partition.segments[3].uuid]
    with PretendLeader([partition]) as leader:
        report = erase(spark, options(tier, b"x"))
    assert report.proven
    assert [one.uuid for one in partition.segments][1::2] == kept
    assert len(leader.proposals) == 2  # the runs do not touch
    assert [one.records for one in partition.segments] == [0, 10, 0, 10]


def test_a_key_that_does_not_exist_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path)
    before = [one.uuid for partition in partitions for one in partition.segments]
    with PretendLeader(partitions) as leader:
        report = erase(spark, options(tier, b"nobody"))
    assert report.proven
    assert not leader.proposals
    assert [one.uuid for partition in partitions for one in partition.segments] == before


def test_proving_alone_finds_what_is_left_and_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path, 1)
    report = erase(spark, options(tier, b"k1", prove_only=True))
    assert report.failed
    assert {one.what for one in report.problems} == {"still-there"}
    assert [(one.line, one.records) for one in report.key_counts] == [(1, 17)]
    assert not (tmp_path / "tier" / partitions[0].tier.proposals_prefix).exists()


def test_many_keys_reach_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """More than Spark sends along with a task: they are broadcast."""
    tier, partitions = built(tmp_path, 1)
    keys = [b"none-%d" % number for number in range(200_000)]
    with PretendLeader(partitions):
        report = erase(spark, options(tier, *keys, b"k2"))
    assert report.proven
    assert [(one.line, one.records) for one in report.key_counts] == [(200_001, 17)]


def test_no_file_of_spark_holds_a_key(spark: SparkSession, tmp_path: Path) -> None:
    """Looked at while the digests are broadcast, between rewriting and proving."""
    tier = TierBuilder(tmp_path / "tier")
    partition = tier.partition(TOPIC)
    key = b"a-key-that-nobody-may-see"
    partition.add([batch([Record(0, NOW, key, b"v"), Record(1, NOW, b"other", b"w")], 0)])
    partition.publish()
    (original,) = partition.segments
    local = Path(spark.conf.get("spark.local.dir") or "")
    sizes: list[int] = []
    found: list[Path] = []

    def judge(proposal: Proposal) -> str | None:
        for file in (file for folder in (tmp_path, local) for file in folder.rglob("*") if file.is_file()):
            sizes.append(file.stat().st_size)
            if key in file.read_bytes() and file != partition.file_of(original):
                found.append(file)
        return None

    with PretendLeader([partition], judge=judge):
        report = erase(spark, options(tier, key, *(b"filler-%d" % number for number in range(100_000))))
    assert report.proven
    assert not found
    assert max(sizes) > 1_000_000  # the digests of all these keys are among the files


def test_a_refused_proposal_is_made_anew(spark: SparkSession, tmp_path: Path) -> None:
    """Another job exchanges a segment between looking and proposing: the erasure begins again with what is there."""
    tier, partitions = built(tmp_path, 1)
    partition = partitions[0]

    def judge(proposal: Proposal) -> str | None:
        if len(leader.proposals) > 1:
            return None
        old = partition.segments[0]
        new = msgspec.structs.replace(old, uuid="ab" * 16, rewritten=True)
        partition.write(tier.tier.segment_key(partition.path, new.id), partition.file_of(old).read_bytes())
        partition.segments[0] = new
        partition.publish()
        return None

    with PretendLeader(partitions, judge=judge) as leader:
        report = erase(spark, options(tier, b"k0"))
    assert report.proven, report.problems
    assert len(leader.proposals) == 2
    assert {row[0] for row in records(spark, tier).values()} == {b"k%d" % one for one in range(1, 7)}
    assert len(report.held) == 4  # what the other job replaced, and what was refused: both for the sweeper


def test_a_leader_that_always_refuses_leaves_everything(spark: SparkSession, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path)
    before = records(spark, tier)
    with PretendLeader(partitions, judge=lambda proposal: "no" if proposal.partition == 1 else None):
        report = erase(spark, options(tier, b"k0"))
    assert report.failed
    assert [row.proven for row in report.partitions] == [True, False]
    assert {(one.partition, one.what) for one in report.problems} == {(1, "still-there")}
    left = {at: one for at, one in before.items() if at[0] == 1 or one[0] != b"k0"}
    assert records(spark, tier) == left


@pytest.mark.parametrize("when", ["at the beginning", "with the verdict"])
def test_leaders_that_do_not_answer_are_named(spark: SparkSession, tmp_path: Path, when: str) -> None:
    tier, partitions = built(tmp_path)
    waits = dataclasses.replace(WAITS, ready_s=2, verdict_s=2)
    silent, undecided = ((1,), ()) if when == "at the beginning" else ((), (1,))
    with PretendLeader(partitions, silent=silent, undecided=undecided):
        report = erase(spark, options(tier, b"k0", waits=waits))
    assert report.failed
    assert [row.proven for row in report.partitions] == [True, False]
    expected = "no-answer" if when == "at the beginning" else "no-verdict"
    assert {(one.partition, one.what) for one in report.problems} == {(1, expected)}


@pytest.mark.parametrize("prove_only", [False, True])
def test_a_manifest_that_cannot_be_read_is_its_partition_alone(
    spark: SparkSession, tmp_path: Path, prove_only: bool
) -> None:
    tier, partitions = built(tmp_path)
    manifest = tier.root / tier.tier.manifest_key(partitions[1].path, 1)
    manifest.write_bytes(manifest.read_bytes()[:40])
    with PretendLeader(partitions[:1] if prove_only else partitions):
        report = erase(spark, options(tier, b"never was" if prove_only else b"k3", prove_only=prove_only))
    assert [(problem.what, problem.partition) for problem in report.problems] == [("damaged", 1)]
    assert [row.proven for row in report.partitions] == [True, False]
    assert report.failed and not report.proven
    assert report.records_erased == (0 if prove_only else 17)


def test_a_damaged_segment_is_named_and_the_others_are_done(spark: SparkSession, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path)
    bad = partitions[0].segments[1]
    file = partitions[0].file_of(bad)
    data = bytearray(file.read_bytes())
    data[bad.log_bytes // 2] ^= 1
    file.write_bytes(bytes(data))
    partitions[1].file_of(partitions[1].segments[2]).unlink()
    with PretendLeader(partitions) as leader:
        report = erase(spark, options(tier, b"k0"))
    assert report.failed
    assert not report.proven
    named = {(one.partition, one.what, one.offset) for one in report.problems}
    assert named == {(0, "damaged", 40), (1, "damaged", 80)}
    assert file.exists()
    assert bad in partitions[0].segments
    assert report.records_erased == 6 + 6 + 6 + 6
    assert {(one.partition, one.erase_end) for one in leader.proposals} == {
        (0, 40),
        (1, 80),
    }  # what cannot be read stays


def test_objects_of_a_deleted_topic_of_that_name_are_named(spark: SparkSession, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path, 1)
    dropped = tier.partition(TOPIC, 0, topic_id=9)
    dropped.add(plain_batches(0, 10))
    dropped.publish(dropped_ms=NOW)
    with PretendLeader(partitions):
        report = erase(spark, options(tier, b"k0"))
    assert report.proven
    assert [one.key for one in report.held] == [tier.tier.segment_key(dropped.path, dropped.segments[0].id)]
    assert "deleted" in report.held[0].reason


def test_objects_that_stay_are_named_until_they_are_gone(spark: SparkSession, tmp_path: Path) -> None:
    tier, partitions = built(tmp_path, 1)
    files = [partitions[0].file_of(one) for one in partitions[0].segments]
    with PretendLeader(partitions, keeps_objects=True):
        report = erase(spark, options(tier, b"k0", waits=dataclasses.replace(WAITS, gone_s=0.1)))
        assert report.proven
        assert report.objects_gone == 0
        assert [Path(one.key).name for one in report.held] == [file.name for file in files]
        for file in files:
            file.unlink()
        assert not erase(spark, options(tier, b"k0", prove_only=True)).held


def test_a_run_after_one_that_was_killed_ends_it(spark: SparkSession, tmp_path: Path) -> None:
    """Killed between writing and proposing, a run leaves objects that nobody names: the next one does not mind."""
    tier, partitions = built(tmp_path, 1)

    class Killed(BaseException):
        pass

    class KilledProgress(SilentProgress):
        def stage(self, title: str, total: int, unit: str = "partitions") -> Stage:
            if title == "leaders exchange segments":
                raise Killed
            return super().stage(title, total, unit)

    with PretendLeader(partitions) as leader:
        with pytest.raises(Killed):
            run(spark, options(tier, b"k0"), KilledProgress())
        assert not leader.proposals
        before = records(spark, tier)
        report = erase(spark, options(tier, b"k0"))
    assert report.proven
    assert records(spark, tier) == {at: one for at, one in before.items() if one[0] != b"k0"}
    assert len(report.held) == 3  # the first run's outputs, which the sweeper takes


def test_an_erasure_takes_one_topic(spark: SparkSession, tmp_path: Path) -> None:
    tier, _ = built(tmp_path, 1)
    other = tier.partition("others", 0, topic_id=2)
    other.add(plain_batches(0, 10))
    other.publish()
    both = dataclasses.replace(options(tier, b"k0"), topics=())
    with pytest.raises(OptionError, match="one topic"):
        erase(spark, both)
