"""A cluster rebuilt from its bucket alone, as an operator does it: real processes, a stock client."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.embedded import EmbeddedCluster, free_ports
from object_store.opening import open_store
from records.events import Event
from tests.prepared_command import prepared
from tiering.bucket.keys import TierRoot
from tiering.exports.exports import GROUPS, METADATA, POSITIONS, newest_exports

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SETTINGS = {
    "tidelog.tier.export.interval.ms": "1000",
    "tidelog.tier.interval.ms": "100",
    "log.retention.check.interval.ms": "1000",
}
TIERED = ["remote.storage.enable=true", "segment.bytes=1048576", "local.retention.bytes=1"]
Record = tuple[int, int, int, bytes, bytes]


def tidelog(*words: str) -> subprocess.CompletedProcess[str]:
    return prepared(words)


def succeeded(*words: str) -> Any:
    done = tidelog(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wait_for(what: Callable[[], Any], within_s: float = 60.0) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all")
    for number in range(count):
        producer.send(topic, key=b"%d" % number, value=os.urandom(600), partition=number % 2)
    producer.flush()
    producer.close()


def read_all(bootstrap: str, topic: str, group: str | None = None) -> list[Record]:
    places = [TopicPartition(topic, index) for index in (0, 1)]
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), group_id=group, enable_auto_commit=False)
    consumer.assign(places)
    consumer.seek_to_end()  # not `end_offsets`, which would go on asking a broker that has ceased to lead meanwhile
    ends = {place: consumer.position(place) for place in places}
    consumer.seek_to_beginning()
    found: list[Record] = []
    deadline = time.monotonic() + 60
    while any(consumer.position(place) < ends[place] for place in places) and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            found += [(r.partition, r.offset, r.timestamp, r.key, r.value) for r in records]
    if group is not None:
        consumer.commit()
    consumer.close()
    return sorted(found)


def exported(cluster: EmbeddedCluster, kind: str) -> list[Event]:
    """What the newest exports of this kind tell."""

    async def read() -> list[Event]:
        store = await open_store((cluster.data / "tier").as_uri())
        try:
            roots = [TierRoot(name.rstrip("/")) for name in await store.list_names("") if name.endswith("/")]
            return [event for root in roots for one in await newest_exports(store, root, kind) for event in one.events]
        finally:
            await store.close()

    return asyncio.run(read())


def manifest_ends(cluster: EmbeddedCluster) -> dict[str, int]:
    """The end of the newest manifest by partition."""
    ends = {}
    for path in sorted((cluster.data / "tier").glob("*/_/*/*/manifest/*")):
        ends[path.parent.parent.name] = json.loads(path.read_text())["end_offset"]
    return ends


def wait_exported(cluster: EmbeddedCluster, ends: dict[str, int], committed: dict[str, int] | None = None) -> None:
    """Until the topics, the ends of their two partitions each, and the offsets of their readers are exported."""

    def by_partition(topics: dict[str, int]) -> set[tuple[str, int, int]]:
        return {(topic, index, end) for topic, end in topics.items() for index in (0, 1)}

    def is_told() -> bool:
        topics = {event["name"] for event in exported(cluster, METADATA) if event["event"] == "topic"}
        positions = exported(cluster, POSITIONS)
        reached = {(event["topic"], event["partition"], event["high_watermark"]) for event in positions}
        offsets = {(event["topic"], event["partition"], event["offset"]) for event in exported(cluster, GROUPS)}
        return topics >= ends.keys() and reached >= by_partition(ends) and offsets >= by_partition(committed or {})

    wait_for(is_told)


@pytest.fixture
def old(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    """The parameter is `tidelog.tier.roll.ms`."""
    settings = SETTINGS | {"tidelog.tier.roll.ms": str(request.param)}
    cluster = EmbeddedCluster(brokers=3, settings=settings, data=tmp_path / "old", controllers=1)
    cluster.up()
    yield cluster
    tidelog("down", "--data", str(cluster.data))


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "new"
    tidelog("down", "--data", str(tmp_path / "new"))


def create(cluster: EmbeddedCluster, name: str, *configs: str) -> str:
    settings = [part for config in configs for part in ("--config", config)]
    cluster.command_of("topics", "create", name, "--partitions", "2", *settings)
    topic_id: str = json.loads(cluster.command_of("topics", "describe", name, "--json"))["id"]
    return topic_id


def kill_all(cluster: EmbeddedCluster) -> None:
    for node in cluster.nodes():
        cluster.kill(node["node"])


def rebuild(cluster: EmbeddedCluster, new: Path, *words: str) -> Any:
    tier, port = (cluster.data / "tier").as_uri(), str(free_ports(3))
    sizes = ("--controllers", "1", "--port", port)
    return succeeded("tier", "rebuild", "--tier", tier, "--data", str(new), "--no-wait", *sizes, *words)


@pytest.mark.parametrize("old", [1500], indirect=True)
def test_a_rebuilt_cluster_serves_the_same_records_under_the_same_offsets(old: EmbeddedCluster, new: Path) -> None:
    topic_id = create(old, "flights", *TIERED)
    produce(old.bootstrap, "flights", 6_000)
    before = read_all(old.bootstrap, "flights", group="readers")
    assert len(before) == 6_000
    wait_for(lambda: sorted(manifest_ends(old).values()) == [3_000, 3_000])
    wait_exported(old, {"flights": 3_000}, {"flights": 3_000})
    kill_all(old)
    report = rebuild(old, new)
    assert report["incarnation"] == 2
    assert [sentence for sentence in report["not_there"] if "flights" in sentence] == []
    (topic,) = report["topics"]
    assert topic["id"] == topic_id
    assert [partition["end_offset"] for partition in topic["partitions"]] == [3_000, 3_000]
    assert read_all(report["bootstrap"], "flights") == before
    described = succeeded("topics", "describe", "flights", "--data", str(new))
    assert described["id"] == topic_id
    assert described["configs"]["segment.bytes"] == "1048576"
    assert all(partition["epoch"] > 100 for partition in described["partitions"])
    group = succeeded("groups", "describe", "readers", "--data", str(new))
    assert [offset["offset"] for offset in group["offsets"]] == [3_000, 3_000]
    produce(report["bootstrap"], "flights", 100)
    after = read_all(report["bootstrap"], "flights")
    assert after[:3_000] == before[:3_000]
    assert [offset for partition, offset, *_ in after if partition == 0] == list(range(3_050))


@pytest.mark.parametrize("old", [86400000], indirect=True)
def test_what_was_on_the_brokers_alone_is_named(old: EmbeddedCluster, new: Path) -> None:
    create(old, "flights", *TIERED)
    create(old, "untiered")
    produce(old.bootstrap, "flights", 6_000)
    produce(old.bootstrap, "untiered", 10)
    before = read_all(old.bootstrap, "flights", group="readers")
    ends = wait_for(lambda: manifest_ends(old) if min(manifest_ends(old).values(), default=0) > 0 else None)
    wait_exported(old, {"flights": 3_000, "untiered": 5}, {"flights": 3_000})
    kill_all(old)
    report = rebuild(old, new)
    told = "\n".join(report["not_there"])
    for index in (0, 1):
        end = ends[str(index)]
        assert 0 < end < 3_000
        assert f"flights-{index}: records {end} to 2999 were on the brokers alone" in told
        assert f"untiered-{index}: records 0 to 4 were on the brokers alone" in told
    assert "2 committed offsets were above the tier's end" in told
    assert [moved["to"] for moved in sorted(report["clamped"], key=lambda m: int(m["partition"]))] == [
        ends["0"],
        ends["1"],
    ]
    there = read_all(report["bootstrap"], "flights")
    assert there == [record for record in before if record[1] < ends[str(record[0])]]
    assert read_all(report["bootstrap"], "untiered") == []
    produce(report["bootstrap"], "untiered", 2)


@pytest.mark.parametrize("old", [1500], indirect=True)
def test_an_old_cluster_that_still_lives_stops_writing_and_says_so(old: EmbeddedCluster, tmp_path: Path) -> None:
    create(old, "flights", *TIERED)
    produce(old.bootstrap, "flights", 2_000)
    wait_for(lambda: sorted(manifest_ends(old).values()) == [1_000, 1_000])
    wait_exported(old, {"flights": 1_000})
    tier, out = (old.data / "tier").as_uri(), tmp_path / "metadata"
    report = succeeded("tier", "rebuild", "--tier", tier, "--out", str(out), "--no-wait")
    assert report["file"] == str(out)
    assert out.stat().st_mode & 0o777 == 0o600

    def has_noticed() -> bool:
        nodes = ["broker-0", "broker-1", "broker-2", "controller-0"]  # each looks once in ten seconds
        return all("belongs to incarnation 2" in (old.data / "logs" / f"{node}.log").read_text() for node in nodes)

    produce(old.bootstrap, "flights", 100)  # goes on: only the bucket is not theirs any more
    wait_for(has_noticed)
    names = {path for path in (old.data / "tier").rglob("*") if path.is_file()}
    produce(old.bootstrap, "flights", 100)
    time.sleep(4)
    assert {path for path in (old.data / "tier").rglob("*") if path.is_file()} <= names
    assert len(read_all(old.bootstrap, "flights")) == 2_200


def test_a_rebuild_of_nothing_says_what_is_missing(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = tidelog("tier", "rebuild", "--tier", empty.as_uri(), "--data", str(tmp_path / "new"))
    assert done.returncode == 1
    assert "of no cluster" in done.stderr
    assert tidelog("tier", "rebuild", "--tier", "ftp://x", "--data", str(tmp_path / "new")).returncode == 2
    assert tidelog("tier", "rebuild", "--tier", empty.as_uri()).returncode == 2
