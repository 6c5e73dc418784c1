"""MirrorMaker 2 with exactly-once between two clusters of Tidelog, both ways, while it and brokers are killed.

Each copy is its original, partition by partition, without the records of aborted transactions. A topic's settings and
new partitions follow it, and a group's offsets come along: what its members read in the copy from there on contains
everything that they have not read in the original.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from bench.committed_records import committed_records, committed_values
from bench.embedded import EmbeddedCluster, free_ports
from bench.java_programs import TIMEOUT_S, JavaTools, Program, ended_after, expect, until
from bench.tenant_clients import QUIET

MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
FORMATTER = "org.apache.kafka.connect.mirror.formatters.CheckpointFormatter"
PARTITIONS, RECORDS, GROUP = 2, 4_000, "readers"
RETENTION = "retention.ms", "86400001"
UNREAD = 100  # records of each partition that the group has not read
FOLLOWS = {
    "refresh.topics.interval.seconds": "2",
    "refresh.groups.interval.seconds": "2",
    "sync.topic.configs.interval.seconds": "2",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
}


@dataclass(frozen=True, slots=True)
class Way:
    """One topic and its copy in the other cluster. `source` and `target` are addresses, `alias` is the source's."""

    alias: str
    source: str
    topic: str
    target: str

    @property
    def copy(self) -> str:
        return f"{self.alias}.{self.topic}"

    def make(self) -> None:
        topics = [NewTopic(self.topic, PARTITIONS, -1, config={"compression.type": "lz4"})]
        admin = _admin(self.source)
        admin.create_topics(topics)[self.topic].result(TIMEOUT_S)

    def write(self, begin: int) -> None:
        """More records, from number `begin` on, in a transaction, and another one that is aborted."""
        producer = Producer({**_client(self.source), "transactional.id": f"writer-of-{self.topic}"})
        producer.init_transactions(TIMEOUT_S)
        for word, finish in (("aborted", producer.abort_transaction), ("record", producer.commit_transaction)):
            producer.begin_transaction()
            for number in range(begin, begin + RECORDS):
                producer.produce(self.topic, f"{word}-{number}".encode(), partition=number % PARTITIONS)
                producer.poll(0)
            finish(TIMEOUT_S)

    def copied(self, begin: dict[int, int] | None = None) -> list[list[bytes]]:
        """What readers of committed records see in the copy, from offsets on."""
        return committed_values(_client(self.target), self.copy, PARTITIONS, begin)

    def wait_for(self, records: int) -> None:
        """Until so many are copied."""

        def are_there() -> bool:
            is_made = self.copy in _admin(self.target).list_topics(timeout=TIMEOUT_S).topics
            return is_made and sum(map(len, self.copied())) >= records

        until(are_there, f"{records} records of {self.topic} are copied")


def _client(bootstrap: str) -> dict[str, str | int | float | bool]:
    return {"bootstrap.servers": bootstrap, **QUIET}


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient(_client(bootstrap))


def _mirror_file(folder: Path, addresses: dict[str, str], ways: list[Way]) -> Path:
    settings = {
        "clusters": ", ".join(addresses),
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{free_ports(1)}",
        "replication.factor": "-1",  # the cluster's own default, also of the topics below
        **FOLLOWS,
    }
    for topic in ("heartbeats.topic", "checkpoints.topic", "offset-syncs.topic", "offset.storage", "status.storage",
                  "config.storage"):  # fmt: skip
        settings[f"{topic}.replication.factor"] = "-1"
    for alias, address in addresses.items():
        of_cluster = {
            "bootstrap.servers": address,
            "exactly.once.source.support": "enabled",
            "consumer.isolation.level": "read_committed",
            "session.timeout.ms": "10000",
            "scheduled.rebalance.max.delay.ms": "2000",
            "offset.flush.interval.ms": "1000",
            "plugin.discovery": "service_load",
        }
        settings |= {f"{alias}.{name}": value for name, value in of_cluster.items()}
    for way in ways:
        (other,) = (alias for alias in addresses if alias != way.alias)
        settings |= {f"{way.alias}->{other}.enabled": "true", f"{way.alias}->{other}.topics": way.topic}
    path = folder / "mirrors.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def mirrors(cluster: EmbeddedCluster, jars: Path, folder: Path, faults: int, rng: random.Random) -> str:
    """`faults`: how often MirrorMaker and a broker, in turn, are killed."""
    settings = cluster.settings | {"default.replication.factor": "1"}
    with EmbeddedCluster(brokers=1, controllers=1, settings=settings) as other:
        addresses = {"east": cluster.bootstrap, "west": other.bootstrap}
        ways = [
            Way("east", addresses["east"], "outbound", addresses["west"]),
            Way("west", addresses["west"], "inbound", addresses["east"]),
        ]
        file = _mirror_file(folder, addresses, ways)
        for way in ways:
            way.make()
        programs: list[Program] = []
        with ended_after(programs):
            programs.append(Program(jars, folder / "mirrors.out", MAIN, str(file)))
            for turn in range(faults + 1):
                for way in ways:
                    way.write(turn * RECORDS)
                for way in ways:
                    way.wait_for(turn * RECORDS + 1)
                if turn == faults:
                    break
                if turn % 2 == 0:
                    programs[0].kill()
                    programs[0] = Program(jars, folder / "mirrors.out", MAIN, str(file))
                else:
                    broker = f"broker-{rng.randrange(3)}"
                    cluster.kill(broker)
                    cluster.command("start", broker)
            for way in ways:
                _copy_is_whole(way, (faults + 1) * RECORDS)
                _settings_follow(way)
                _offsets_follow(way, JavaTools(jars, way.target))
    return f"{(faults + 1) * RECORDS} records each way, each once and in order, with settings, partitions and offsets"


def _copy_is_whole(way: Way, total: int) -> None:
    way.wait_for(total)
    original, found = committed_values(_client(way.source), way.topic, PARTITIONS), way.copied()
    expect(sum(map(len, original)) == total, f"{way.topic} has what was committed")
    expect(found == original, f"{way.copy} is its original: {[len(values) for values in found]}")
    with _member(way.target) as consumer:
        ends = [consumer.get_watermark_offsets(TopicPartition(way.copy, n), TIMEOUT_S)[1] for n in range(PARTITIONS)]
    expect(sum(ends) > total, f"{way.copy} was written in transactions: markers lie between its records")


def _settings_follow(way: Way) -> None:
    """Settings of the topic's beginning and later ones, and a new partition."""
    admin, resource = _admin(way.source), ConfigResource(ResourceType.TOPIC, way.topic)
    resource.add_incremental_config(ConfigEntry(*RETENTION, incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    admin.create_partitions([NewPartitions(way.topic, PARTITIONS + 1)])[way.topic].result(TIMEOUT_S)

    def have_followed() -> bool:
        admin, copy = _admin(way.target), ConfigResource(ResourceType.TOPIC, way.copy)
        found = admin.describe_configs([copy])[copy].result(TIMEOUT_S)
        partitions = admin.list_topics(way.copy, TIMEOUT_S).topics[way.copy].partitions
        settings = {name: found[name].value for name in ("compression.type", RETENTION[0])}
        return settings == {"compression.type": "lz4", RETENTION[0]: RETENTION[1]} and len(partitions) > PARTITIONS

    until(have_followed, f"settings and partitions of {way.topic} come along")


def _offsets_follow(way: Way, java: JavaTools) -> None:
    """A group that has read most of the original finds offsets in the copy, and loses nothing by going on there."""
    original = committed_records(_client(way.source), way.topic, PARTITIONS)
    places = [TopicPartition(way.topic, index, list(found)[-UNREAD]) for index, found in enumerate(original)]
    with _member(way.source) as consumer:
        consumer.commit(offsets=places, asynchronous=False)

    def translated() -> dict[int, int]:
        admin = _admin(way.target)
        rows = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])[GROUP].result(TIMEOUT_S)
        return {row.partition: row.offset for row in rows.topic_partitions or [] if row.topic == way.copy}

    until(lambda: len(translated()) == PARTITIONS, f"the group's offsets of {way.copy} come along")
    offsets = translated()
    for index, (values, whole) in enumerate(zip(way.copied(offsets), way.copied(), strict=True)):
        going_on = f"{GROUP} goes on in {way.copy} {index} at {offsets[index]}"
        expect(values[-UNREAD:] == whole[-UNREAD:] and len(values) < len(whole), f"{going_on}: {len(values)} to read")
    until(lambda: _are_in_checkpoints(way, java, offsets), f"checkpoints of {way.copy} have the group's offsets")


def _are_in_checkpoints(way: Way, java: JavaTools, offsets: dict[int, int]) -> bool:
    said = java.tool(
        "consumer.ConsoleConsumer", "--topic", f"{way.alias}.checkpoints.internal", "--formatter", FORMATTER,
        "--from-beginning", "--timeout-ms", "20000",
    )  # fmt: skip
    rows = [line for line in said.splitlines() if f"consumerGroupId={GROUP}," in line]
    wanted = [(f"topicPartition={way.copy}-{index},", f"downstreamOffset={at},") for index, at in offsets.items()]
    return all(any(place in row and offset in row for row in rows) for place, offset in wanted)


@contextmanager
def _member(bootstrap: str) -> Iterator[Consumer]:
    """A consumer of the group, which subscribes to nothing."""
    consumer = Consumer({**_client(bootstrap), "group.id": GROUP, "isolation.level": "read_committed"})
    try:
        yield consumer
    finally:
        consumer.close()
