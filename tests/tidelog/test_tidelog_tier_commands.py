"""`tidelog tier status | ls | check | restore` as an operator uses them: real processes, a stock client."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.embedded import EmbeddedCluster
from tests.tidelog.test_tidelog_tier_rebuild import TIERED, create, produce, read_all, succeeded, tidelog, wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SETTINGS = {
    "tidelog.tier.roll.ms": "1500",
    "tidelog.tier.interval.ms": "100",
    "tidelog.tier.delete.delay.ms": "30000",
    "log.retention.check.interval.ms": "1000",
    "tidelog.tier.export.interval.ms": "1000",
}


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    """The parameter are more settings."""
    settings = SETTINGS | getattr(request, "param", {})
    with EmbeddedCluster(brokers=2, settings=settings, data=tmp_path / "data", controllers=1) as cluster:
        yield cluster


def tier(cluster: EmbeddedCluster, *words: str) -> Any:
    return succeeded("tier", *words, "--data", str(cluster.data))


def refused(cluster: EmbeddedCluster, *words: str) -> str:
    done = tidelog("tier", *words, "--data", str(cluster.data))
    assert done.returncode == 1, done.stdout
    return done.stderr


def wait_agreed(cluster: EmbeddedCluster) -> None:
    """Until manifests and objects are what `__tier_state` says; a manifest follows a moment later."""
    check = ("tier", "check", "--json", "--data", str(cluster.data))
    wait_for(lambda: json.loads(tidelog(*check).stdout)["disagreements"] == [])


def rows_of(cluster: EmbeddedCluster, topic: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tier(cluster, "status", topic)["partitions"]
    return rows


def test_status_ls_and_check_tell_what_is_so(cluster: EmbeddedCluster) -> None:
    create(cluster, "flights", *TIERED)
    produce(cluster.bootstrap, "flights", 6_000)
    wait_for(lambda: [row["tier_end"] for row in rows_of(cluster, "flights")] == [3_000, 3_000])
    for row in rows_of(cluster, "flights"):
        assert row["claimed"]
        assert (row["log_start"], row["high_watermark"], row["lag_bytes"], row["trouble"]) == (0, 3_000, 0, None)
        assert row["local_start"] >= 0
    listed = tier(cluster, "ls", "flights", "--partition", "1")
    assert [row["base_offset"] for row in listed] == [0, *(row["end_offset"] for row in listed[:-1])]
    assert listed[-1]["end_offset"] == 3_000
    store = cluster.data / "tier"
    assert all((store / row["object"]).stat().st_size == row["bytes"] for row in listed)
    wait_agreed(cluster)

    # the store goes away: all still answer, and say so
    store.rename(cluster.data / "away")
    status = wait_for(lambda: not (found := tier(cluster, "status"))["store"]["answers"] and found)
    assert status["store"]["reason"]
    assert len(status["partitions"]) == 2
    assert "DOES NOT ANSWER" in tidelog("tier", "status", "--data", str(cluster.data)).stdout
    assert tier(cluster, "ls", "flights", "--partition", "1") == listed
    done = tidelog("tier", "check", "--json", "--data", str(cluster.data))
    assert done.returncode == 1
    assert json.loads(done.stdout)["store"] != "answers"
    produce(cluster.bootstrap, "flights", 100)
    time.sleep(3)  # segments close, and cannot be copied: no broker minds
    assert {node["state"] for node in cluster.nodes()} == {"running"}
    assert all(row["tier_end"] == 3_000 for row in rows_of(cluster, "flights"))
    (cluster.data / "away").rename(store)
    wait_for(lambda: [row["tier_end"] for row in rows_of(cluster, "flights")] == [3_050, 3_050])
    assert tier(cluster, "status")["store"]["answers"] is True

    # damage
    objects = [store / row["object"] for row in listed]
    os.truncate(objects[0], 100)
    objects[1].unlink()
    done = tidelog("tier", "check", "flights", "--json", "--data", str(cluster.data))
    assert done.returncode == 1
    told = {row["disagreement"] for row in json.loads(done.stdout)["disagreements"]}
    assert any("has 100 bytes" in text for text in told)
    assert any("is missing" in text for text in told)
    assert rows_of(cluster, "flights")[1]["trouble"] is None, "nobody has asked for it"
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap.split(","), enable_auto_commit=False)
    place = TopicPartition("flights", 1)
    consumer.assign([place])
    consumer.seek(place, 0)

    def told_of() -> Any:
        assert not consumer.poll(500), "records of a damaged object"
        return rows_of(cluster, "flights")[1]["trouble"]

    assert objects[0].name in wait_for(told_of)
    consumer.close()
    assert rows_of(cluster, "flights")[0]["trouble"] is None
    assert refused(cluster, "ls", "nothing") == refused(cluster, "status", "nothing")
    assert "no partition 7" in refused(cluster, "ls", "flights", "--partition", "7")
    assert tidelog("tier", "ls", "flights@zzz", "--data", str(cluster.data)).returncode == 2


def check_damage(cluster: EmbeddedCluster, topic_id: str) -> None:
    """What is lost, cut short or missing is told before anything is copied, and then mended again."""
    store = cluster.data / "tier"
    before = set(store.rglob("*.segment"))
    (partition,) = store.glob(f"*/_/flights-{topic_id}/1")
    cut, gone = sorted(partition.glob("*.segment"))[:2]
    body = cut.read_bytes()
    os.truncate(cut, len(body) - 10)
    gone.rename(gone.with_suffix(".away"))
    told = refused(cluster, "restore", "flights", "--as", "again")
    assert f"has {len(body) - 10} bytes, not {len(body)}" in told and "is missing" in told
    assert "copied" not in told and "--allow-holes" in told
    cut.write_bytes(body)
    gone.with_suffix(".away").rename(gone)
    for lost in (partition / "manifest", partition):
        lost.rename(cluster.data / "away")
        told = refused(cluster, "restore", "flights", "--as", "again")
        assert "no manifest is there of partition 1 (" in told and "--without-partition 1" in told
        assert "copied" not in told
        assert set(store.rglob("*.segment")) <= before
        if lost == partition:
            rows = tier(cluster, "restore", "flights", "--as", "partial", "--without-partition", "1")
            assert [row["end_offset"] for row in rows] == [2_001, 0]
        (cluster.data / "away").rename(lost)


@pytest.mark.parametrize("cluster", [{"tidelog.tier.delete.delay.ms": "3600000"}], indirect=True)
def test_a_topic_that_lost_an_object_comes_back_from_behind_it(cluster: EmbeddedCluster) -> None:
    here = ("--data", str(cluster.data))
    create(cluster, "flights", *TIERED)
    produce(cluster.bootstrap, "flights", 4_000)
    wait_for(lambda: [row["tier_end"] for row in rows_of(cluster, "flights")] == [2_000, 2_000])
    cluster.command_of("topics", "delete", "flights")
    wait_for(lambda: tier(cluster, "status")["deleted"])
    cut, *others = sorted((cluster.data / "tier").glob("*/_/flights-*/1/*.segment"))
    assert others
    os.truncate(cut, 10)
    assert "--allow-holes" in refused(cluster, "restore", "flights", "--as", "holes")
    done = tidelog("tier", "restore", "flights", "--as", "holes", "--allow-holes", "--json", *here)
    assert done.returncode == 0, done.stderr
    whole, rest = json.loads(done.stdout)
    assert (whole["log_start_offset"], whole["end_offset"]) == (0, 2_000)
    assert 0 < rest["log_start_offset"] < rest["end_offset"] == 2_000
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("left out: ")]
    assert f"partition 1: offsets 0 to {rest['log_start_offset'] - 1} (" in told
    assert cut.stem.partition("-")[2] in told
    read = [offset for partition, offset, *_ in read_all(cluster.bootstrap, "holes") if partition == 1]
    assert read == list(range(rest["log_start_offset"], 2_000))

    def audited() -> Any:
        told = tidelog("audit", "--topic", "holes", "--kind", "topic_created", "--json", *here).stdout
        return [json.loads(line)["after"].get("left_out", "") for line in told.splitlines()]

    (left_out,) = wait_for(audited)
    assert told == f"left out: {left_out}"


def test_a_deleted_topic_comes_back_under_a_new_name(cluster: EmbeddedCluster) -> None:
    create(cluster, "flights", *TIERED)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","), acks="all")
    produce(cluster.bootstrap, "flights", 4_000)
    producer.send("flights", b"the same producer goes on", partition=0).get(30)
    wait_for(lambda: [row["tier_end"] for row in rows_of(cluster, "flights")] == [2_001, 2_000])
    before = read_all(cluster.bootstrap, "flights")
    assert "lives" in refused(cluster, "restore", "flights", "--as", "again")
    cluster.command_of("topics", "delete", "flights")
    deleted = wait_for(lambda: tier(cluster, "status")["deleted"])
    assert [(row["topic"], row["partitions"]) for row in deleted] == [("flights", 2)]
    wait_agreed(cluster)
    assert len(tier(cluster, "ls", "flights")) > 2

    done = tidelog("tier", "restore", "flights", "--as", "a/b", "--data", str(cluster.data))
    assert done.returncode == 2
    assert done.stderr.startswith("tidelog: --as: ") and "copied" not in done.stderr, done.stderr
    told = refused(cluster, "restore", "flights", "--as", "again", "--replicas", "9")
    assert told.startswith("tidelog: flights cannot be restored as again: INVALID_REPLICATION_FACTOR")
    assert "copied" not in told
    told = refused(cluster, "restore", "flights", "--as", "again", "--config", "remote.storage.enable=false")
    assert "remote.storage.enable cannot be switched off" in told
    check_damage(cluster, deleted[0]["id"])
    rows = tier(cluster, "restore", f"flights@{deleted[0]['id']}", "--as", "again", "--config", "segment.bytes=2097152")
    assert [row["end_offset"] for row in rows] == [2_001, 2_000]
    assert read_all(cluster.bootstrap, "again") == before
    assert producer.send("again", b"the same producer goes on", partition=0).get(30).offset == 2_001
    producer.close()
    configs = succeeded("topics", "describe", "again", "--data", str(cluster.data))["configs"]
    assert (configs["segment.bytes"], configs["retention.ms"]) == ("2097152", "-1")
    assert "already" in refused(cluster, "restore", "flights", "--as", "again")
    assert "nothing of it" in refused(cluster, "restore", "unknown", "--as", "other")

    wait_for(lambda: not tier(cluster, "status")["deleted"])  # the delay has passed
    assert "cannot be restored" in refused(cluster, "restore", "flights", "--as", "late")
    assert read_all(cluster.bootstrap, "again")[: len(before) // 2] == before[: len(before) // 2]
    wait_for(lambda: [row["tier_end"] for row in rows_of(cluster, "again")] == [2_002, 2_000])
    wait_agreed(cluster)
