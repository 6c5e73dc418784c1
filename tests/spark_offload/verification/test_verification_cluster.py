"""A real cluster that went through a broker's death, tiering, retention, deletion of records and compaction is clean,
and what its clients were told is written is there; then its bucket is damaged."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.embedded import EmbeddedCluster
from spark_offload.compaction.job import CompactionOptions
from spark_offload.compaction.job import run as compact
from spark_offload.running.job import SilentProgress
from spark_offload.verification.checks import Check
from spark_offload.verification.job import VerifyOptions, run
from spark_offload.verification.ledger import read_ledger
from tests.tidelog.test_tidelog_tier_rebuild import TIERED, create, manifest_ends, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

SETTINGS = {
    "tidelog.tier.roll.ms": "1500",
    "tidelog.tier.interval.ms": "100",
    "tidelog.tier.delete.delay.ms": "3000",
    "tidelog.tier.export.interval.ms": "1000",
    "tidelog.tier.proposals.interval.ms": "200",
    "log.retention.check.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
}
COMPACTED = ["remote.storage.enable=true", "segment.bytes=1048576", "cleanup.policy=compact"]
Written = list[tuple[str, int, int, str]]


def write(cluster: EmbeddedCluster, topic: str, count: int, keys: int, ledger: Written) -> None:
    """By an idempotent producer; every write that was acknowledged goes into the ledger."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 20})

    def told(error: Any, message: Message) -> None:
        assert error is None, error
        key = hashlib.sha256(bytes(message.key() or b"")).hexdigest()[:16]
        ledger.append((topic, message.partition() or 0, message.offset() or 0, key))

    for number in range(count):
        producer.produce(topic, os.urandom(600), b"k%d" % (number % keys), number % 2, on_delivery=told)
        producer.poll(0)
    assert producer.flush(90) == 0


def as_csv(ledger: Written) -> bytes:
    lines = ["topic,partition,offset,key_hash", *(",".join(map(str, row)) for row in ledger)]
    return "\n".join(lines).encode()


def wait_tiered(cluster: EmbeddedCluster, ends: dict[int, int]) -> None:
    """Until the newest manifests reach these ends."""

    def there() -> bool:
        found = [
            (path.parent.parent.parent.name, int(path.parent.parent.name), json.loads(path.read_text())["end_offset"])
            for path in sorted((cluster.data / "tier").glob("*/_/*/*/manifest/*"))
        ]
        newest = {(topic, partition): end for topic, partition, end in found}
        return bool(newest) and all(end >= ends[partition] for (_, partition), end in newest.items())

    wait_for(there, 90)


def test_a_cluster_that_went_through_much_is_clean(spark: SparkSession, tmp_path: Path) -> None:
    ledger: Written = []
    with EmbeddedCluster(brokers=3, settings=SETTINGS, data=tmp_path / "data", controllers=1) as cluster:
        create(cluster, "flights", *TIERED)
        create(cluster, "planes", *COMPACTED)
        for topic, keys in (("flights", 500), ("planes", 50)):
            write(cluster, topic, 6_000, keys, ledger)
        brokers = [node["node"] for node in cluster.nodes() if "broker" in node["node"]]
        cluster.kill(brokers[0])
        for topic, keys in (("flights", 500), ("planes", 50)):
            write(cluster, topic, 4_000, keys, ledger)
        cluster.command("start", brokers[0])
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        place = TopicPartition("flights", 0, 700)
        admin.delete_records([place])[place].result(60)
        for topic, keys in (("flights", 500), ("planes", 50)):
            write(cluster, topic, 2_000, keys, ledger)
        wait_tiered(cluster, {0: 6_000, 1: 6_000})
        assert manifest_ends(cluster)
        tier = (cluster.data / "tier").as_uri()
        report = compact(spark, CompactionOptions(tier=tier, topics=("planes",)), SilentProgress())
        assert not report.failed, report.lines()
        options = VerifyOptions(tier=tier, deep=True, ledger=read_ledger(as_csv(ledger), "ledger"))
        found = run(spark, options, SilentProgress())
    assert found.problems == [], found.lines()
    told = found.ledger
    assert told is not None and told.writes == len(ledger) == 24_000
    assert told.lost == 0 and told.explained > 0 and told.below_log_start >= 700
    assert sum(one.rewritten for one in found.partitions) > 0
    assert {check.name for check in found.checks} >= {Check.SEQUENCE, Check.AUDIT, Check.TIER_STATE, Check.LOG_START}
    (victim, *_) = sorted((tmp_path / "data" / "tier").glob("*/_/flights-*/1/*.segment"))
    victim.unlink()
    assert Check.OBJECT_MISSING in {one.what for one in run(spark, VerifyOptions(tier=tier), SilentProgress()).problems}
