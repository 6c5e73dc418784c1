"""Compaction beside Apache Kafka: partitions that it wrote, what its cleaner left of them, its reader of segments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from bench.peers import KAFKA_VERSION
from storage.indexes import transaction_index
from storage.producers.producer_snapshot import decode_snapshot
from tests.spark_offload.compaction_world import Batch, batches_of, decided, survivors
from tests.spark_offload.test_spark_compaction import all_batches, compact, policy
from tests.spark_offload.tier_builder import BuiltPartition, TierBuilder
from tiering.bucket.segment import OFFSET_INDEX, PRODUCER_SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX

HERE = Path(__file__).parent
FIXTURE = HERE / "apache_kafka_4_1_transactions.tar.xz"
JARS = Path(os.environ.get("KAFKA_JARS") or HERE.parents[1] / "bench" / "work" / f"kafka-{KAFKA_VERSION}")
ACTIVE, END = 215, 241  # base offset and end of the last segment, which Kafka's cleaner left alone
SUFFIXES = {
    OFFSET_INDEX: "index",
    TIME_INDEX: "timeindex",
    TRANSACTION_INDEX: "txnindex",
    PRODUCER_SNAPSHOT: "snapshot",
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kafka")
    with tarfile.open(FIXTURE) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
        packed.extractall(folder)
    return folder


def tiered(kafka: Path, folder: Path) -> BuiltPartition:
    """The partition that Kafka left alone, as a tier has it."""
    partition = TierBuilder(folder).partition("left-alone")
    logs = sorted((kafka / "left-alone-0").glob("*.log"))
    ends = [*logs[1:], kafka / "left-alone-0" / f"{END:020d}.log"]
    for log, following in zip(logs, ends, strict=True):
        aborted = log.with_suffix(".txnindex")
        entries = transaction_index.decode(aborted.read_bytes()) if aborted.exists() else []
        snapshot = decode_snapshot(following.with_suffix(".snapshot").read_bytes())
        partition.add([log.read_bytes()], aborted=entries, snapshot=snapshot)
    assert partition.segments[-1].end_offset == END
    partition.publish()
    return partition


def cleaned_by_kafka(kafka: Path) -> list[Batch]:
    """What its cleaner left of the same records, and the active segment, which it does not touch."""
    logs = sorted((kafka / "cleaned-0").glob("*.log"))
    return [one for log in logs for one in batches_of(log.read_bytes())]


@pytest.mark.parametrize("segment_bytes", [1_000, 1 << 20])
def test_what_stays_is_what_kafkas_cleaner_leaves(kafka: Path, tmp_path: Path, segment_bytes: int) -> None:
    partition = tiered(kafka, tmp_path)
    before = all_batches(partition)
    compact(partition, policy(segment_bytes=segment_bytes))
    ours, theirs = all_batches(partition), cleaned_by_kafka(kafka)
    assert decided(ours)[0] == survivors(before) == survivors(theirs)
    assert len(decided(ours)[0]) > 15
    left_by_kafka = {one.base_offset: one for one in theirs if one.base_offset < ACTIVE}
    same = 0
    for one in ours:
        other = left_by_kafka.get(one.base_offset)
        if other is None or other.end != one.end or one.is_control:  # a marker may come a little earlier or later
            continue
        assert one.producer[1:] == other.producer[1:]
        if one.records:
            assert set(one.records) <= set(other.records), "more of them are superseded in the active segment"
            assert one.attributes | 0x40 == other.attributes | 0x40
            same += 1
        if one.records == other.records:
            assert one.attributes == other.attributes, "the delete horizon too"
    assert same > 1
    assert any(one.attributes & 0x40 for one in ours)
    assert any(not one.records for one in ours), "producers' last batches stay"


@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")
@pytest.mark.skipif(not JARS.is_dir(), reason=f"Apache Kafka's jars are neither in KAFKA_JARS nor in {JARS}")
def test_kafkas_own_reader_reads_the_result(kafka: Path, tmp_path: Path) -> None:
    partition = tiered(kafka, tmp_path / "tier")
    rules = policy(segment_bytes=1_500, delete_retention_ms=0)
    files = []
    for round_ in range(3):
        compact(partition, rules)
        for segment in partition.segments:
            whole = partition.file_of(segment).read_bytes()
            stem = tmp_path / f"{round_}" / f"{segment.base_offset:020d}"
            stem.parent.mkdir(exist_ok=True)
            stem.with_suffix(".log").write_bytes(whole[: segment.log_bytes])
            files.append(stem.with_suffix(".log"))
            for name, suffix in SUFFIXES.items():
                section = segment.sections.get(name)
                if section is not None and section.length:
                    place = stem if suffix != "snapshot" else stem.with_name(f"{segment.end_offset:020d}")
                    files.append(place.with_suffix(f".{suffix}"))
                    files[-1].write_bytes(whole[section.position : section.position + section.length])
    assert {file.suffix for file in files} == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    line = ["java", "-Xmx256M", "-cp", f"{JARS}/*", "kafka.tools.DumpLogSegments", "--deep-iteration", "--files"]
    out = subprocess.run([*line, ",".join(map(str, files))], capture_output=True, text=True, check=False, timeout=100)
    assert out.returncode == 0, out.stderr[-1_000:]
    wrong = re.search(r"(?i)mismatch|corrupt|invalid|non-consecutive|isvalid: false|not found|could not", out.stdout)
    assert not wrong, out.stdout[max(wrong.start() - 300, 0) : wrong.end() + 300]
    assert out.stdout.count("Dumping ") == len(files)
    assert "deleteHorizonMs: OptionalLong[" in out.stdout
    assert out.stdout.count(" offset: ") > 50
