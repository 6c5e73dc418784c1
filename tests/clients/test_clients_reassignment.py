"""Replicas move while a stock client writes: nothing acknowledged is lost, what is cancelled goes back, and a broker
that was drained leaves nothing behind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import NoReassignmentInProgressError

from bench.embedded import EmbeddedCluster
from bench.failover import SteadyLoad

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("failover")]

GAP_MOST_S = 3.0


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=4, controllers=1) as running:
        yield running


def replicas_of(cluster: EmbeddedCluster, topic: str) -> list[list[int]]:
    """Sorted, of each partition."""
    described = json.loads(cluster.command_of("topics", "describe", topic, "--json"))
    return [sorted(row["replicas"]) for row in described["partitions"]]


def logs_of(cluster: EmbeddedCluster, topic: str) -> list[int]:
    """The brokers that have a directory of the topic's partition 0."""
    found = Path(cluster.data).glob(f"broker-*/{topic}-0")
    return sorted(int(path.parent.name.removeprefix("broker-")) for path in found)


def moved(cluster: EmbeddedCluster, topic: str, to: str) -> None:
    rows = json.loads(cluster.command_of("topics", "reassign", topic, "--to", to, "--json"))
    assert [row["adding"] + row["removing"] for row in rows] == [[]]
    assert rows[0]["replicas"] == [int(broker) for broker in to.split(",")]


def test_a_topic_moves_under_load_and_its_old_logs_go(cluster: EmbeddedCluster) -> None:
    load = SteadyLoad(cluster.bootstrap)
    gaps = []
    try:
        for to in ("1,2,3", "2,3,0", "3", "3,0,1", "0,1,2"):
            load.wait_flowing()
            gaps.append(load.gap(lambda to=to: moved(cluster, load.topic, to), watch_s=1.0))  # type: ignore[misc]
            assert logs_of(cluster, load.topic) == sorted(map(int, to.split(",")))
        cluster.command_of("topics", "elect", load.topic)
        assert load.leader() == 0
        load.wait_flowing()
    finally:
        outcome = load.finish()
    assert not (outcome["lost"] or outcome["doubled"] or outcome["reordered"] or outcome["unflushed"]), outcome
    assert max(gaps) < GAP_MOST_S, gaps


def test_a_throttled_move_waits_and_is_cancelled(cluster: EmbeddedCluster) -> None:
    cluster.command_of("topics", "create", "slow", "--partitions", "1", "--replicas", "2")
    before = replicas_of(cluster, "slow")
    other = next(broker for broker in range(4) if broker not in before[0])
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for _ in range(8_000):
        producer.produce("slow", b"x" * 1_000)
        producer.poll(0)
    assert producer.flush(60) == 0
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    rate = {"follower.replication.throttled.rate": "1000000"}
    admin.alter_configs(
        [
            ConfigResource(ConfigResourceType.BROKER, str(other), rate),
            ConfigResource(ConfigResourceType.TOPIC, "slow", {"follower.replication.throttled.replicas": f"0:{other}"}),
        ]
    )
    partition = TopicPartition("slow", 0)
    assert admin.alter_partition_reassignments({partition: [before[0][0], other]}) == {partition: None}
    time.sleep(1.5)
    running = admin.list_partition_reassignments()
    assert running[partition]["adding_replicas"] == [other]
    assert running[partition]["removing_replicas"] == [before[0][1]]
    size = sum(path.stat().st_size for path in Path(cluster.data).glob(f"broker-{other}/slow-0/*.log"))
    assert 100_000 < size < 5_000_000
    assert admin.alter_partition_reassignments({partition: None}) == {partition: None}
    assert admin.list_partition_reassignments() == {}
    assert replicas_of(cluster, "slow") == before
    assert logs_of(cluster, "slow") == before[0]
    assert admin.alter_partition_reassignments({partition: None}) == {partition: NoReassignmentInProgressError}
    admin.close()


def test_a_broker_is_added_another_drained_and_removed_and_a_restart_remembers(cluster: EmbeddedCluster) -> None:
    load = SteadyLoad(cluster.bootstrap)
    try:
        cluster.command_of("topics", "create", "wide", "--partitions", "12", "--replicas", "3")
        added = json.loads(cluster.command_of("brokers", "add", "--json"))[0]
        assert (added["node"], added["state"]) == ("broker-4", "running")
        assert added["listeners"]["PLAINTEXT"] == f"127.0.0.1:{cluster.port + 4}"
        load.wait_flowing()
        drained = json.loads(cluster.command_of("brokers", "drain", "1", "--at-once", "3", "--json"))
        assert (drained["broker"], drained["state"]) == (1, "drained")
        rows = {row["broker"]: row for row in json.loads(cluster.command_of("brokers", "list", "--json"))}
        assert (rows[1]["replicas"], rows[1]["leads"], rows[1]["state"]) == (0, 0, "draining")
        assert rows[4]["replicas"] > 0
        assert not list(Path(cluster.data).glob("broker-1/wide-*[0-9]"))
        with pytest.raises(RuntimeError, match="still has"):
            cluster.command_of("brokers", "remove", "2")
        cluster.command_of("brokers", "remove", "1")
        load.wait_flowing()
        assert "broker-1" not in {node["node"] for node in cluster.nodes()}
        described = json.loads(cluster.command_of("topics", "describe", "wide", "--json"))
        assert all(len(row["isr"]) == 3 and 1 not in row["replicas"] for row in described["partitions"])
        assert not any("throttled" in name for name in described["configs"])
    finally:
        outcome = load.finish()
    assert not (outcome["lost"] or outcome["doubled"] or outcome["reordered"] or outcome["unflushed"]), outcome
    cluster.command("down")
    out = cluster.command("up", "--detach")
    assert out.count(":") == 4, out
    rows = {row["broker"]: row for row in json.loads(cluster.command_of("brokers", "list", "--json"))}
    assert {broker: row["state"] for broker, row in rows.items()} == dict.fromkeys((0, 2, 3, 4), "running")
    again = json.loads(cluster.command_of("brokers", "add", "--json"))[0]
    assert again["node"] == "broker-5"


def test_a_broker_that_all_partitions_need_is_not_drained(cluster: EmbeddedCluster) -> None:
    cluster.command_of("topics", "create", "everywhere", "--partitions", "1", "--replicas", "4")
    with pytest.raises(RuntimeError, match="cannot be drained: everywhere-0"):
        cluster.command_of("brokers", "drain", "0")
    rows = json.loads(cluster.command_of("brokers", "list", "--json"))
    assert {row["state"] for row in rows} == {"running"}


def test_a_record_of_a_cluster_is_planned_for_without_it(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    record = tmp_path / "cluster.jsonl"
    cluster.command_of("balance", "record", "--out", str(record))
    there, here = (
        json.loads(cluster.command_of("balance", "plan", "--json", *words)) for words in ((), ("--model", str(record)))
    )
    assert [goal["goal"] for goal in here["goals"]] == [goal["goal"] for goal in there["goals"]]
    counts = ("cell", "racks", "replica-capacity", "replicas", "leaders")
    assert [goal["before"] for goal in here["goals"] if goal["goal"] in counts] == [
        goal["before"] for goal in there["goals"] if goal["goal"] in counts
    ]
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    replicas = [len(one["replicas"]) for row in rows if row["record"] == "topic" for one in row["partitions"]]
    listed = json.loads(cluster.command_of("brokers", "list", "--json"))
    assert sum(replicas) == sum(row["replicas"] for row in listed)


def test_a_topic_that_is_not_there_does_not_pass_for_one_that_stayed(cluster: EmbeddedCluster) -> None:
    cluster.command_of("topics", "create", "everywhere", "--partitions", "1")
    for name in ("everywhere", "everywhere-0"):
        assert f"the balancer has not moved {name} of late" in cluster.command_of("balance", "explain", name)
    for name in ("nope", "nope-0", "no such/name"):
        with pytest.raises(RuntimeError, match=f"there is no topic {name}, and the balancer has moved none"):
            cluster.command_of("balance", "explain", name)
