"""The audit of a real cluster: who did what, with what before and after, through kills between an act and its shipping.

Events come out of the object store, where brokers and controllers export them, and out of `__audit` itself.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from bench.embedded import EmbeddedCluster
from object_store.opening import open_store
from records.audit_event import AuditEvent, AuditKind, decode_audit_event
from tiering.bucket.keys import TierRoot
from tiering.exports.audit_reading import ExportedAudit, read_audit

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SETTINGS = {
    "log.dir.free.bytes.min": "0",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "100",
    "tidelog.tier.interval.ms": "50",
    "tidelog.tier.enable": "false",
    "tidelog.tier.export.interval.ms": "1000",
}
PATIENCE_S = 60.0
BROKERS = ("broker-0", "broker-1", "broker-2")


@pytest.fixture(scope="module")
def audited() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings=SETTINGS) as running:
        yield running


def eventually(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.2)


def topic_of(cluster: EmbeddedCluster, count: int, **config: str) -> tuple[str, bytes]:
    name = f"audited-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 1, 3, config=config)])[name].result(30)
    produce(cluster, name, count)
    described = admin.describe_topics(TopicCollection([name]))[name].result(30)
    return name, uuid.UUID(bytes=_uuid_bytes(described.topic_id)).bytes


def _uuid_bytes(found: object) -> bytes:
    high = found.get_most_significant_bits() & (2**64 - 1)  # type: ignore[attr-defined]
    low = found.get_least_significant_bits() & (2**64 - 1)  # type: ignore[attr-defined]
    return int(high).to_bytes(8, "big") + int(low).to_bytes(8, "big")


def produce(cluster: EmbeddedCluster, topic: str, count: int) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.size": 1_000})
    for number in range(count):
        producer.produce(topic, b"%d" % number, on_delivery=lambda e, _: failed.append(e) if e else None)
        producer.poll(0)
    producer.flush(60)
    assert not failed


def trail_of(cluster: EmbeddedCluster) -> ExportedAudit:
    """What the object store tells by now; nothing as long as no node has written anything to it."""

    async def read() -> ExportedAudit:
        store = await open_store(f"file://{cluster.data / 'tier'}")
        try:
            clusters = [name.rstrip("/") for name in await store.list_names("") if name.endswith("/")]
            return await read_audit(store, TierRoot(clusters[0])) if clusters else ExportedAudit()
        finally:
            await store.close()

    return asyncio.run(read())


def found(cluster: EmbeddedCluster, topic_id: bytes, **wanted: object) -> list[AuditEvent]:
    events = trail_of(cluster).of_partition(topic_id, 0)
    return [event for event in events if all(getattr(event, name) == value for name, value in wanted.items())]


def test_the_object_store_tells_who_changed_what(audited: EmbeddedCluster) -> None:
    topic, topic_id = topic_of(audited, 200, **{"segment.bytes": "2000"})
    admin = AdminClient({"bootstrap.servers": audited.bootstrap})
    admin.delete_records([TopicPartition(topic, 0, 120)])[TopicPartition(topic, 0, 120)].result(30)
    change = ConfigEntry("retention.bytes", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(30)

    def moves(cause: str) -> list[AuditEvent]:
        return found(audited, topic_id, event=AuditKind.LOG_START_MOVED, cause=cause)

    eventually(lambda: moves("DeleteRecords") and moves("retention.bytes"), "both moves of the log's start are told")
    (deleted,) = moves("DeleteRecords")
    assert deleted.before == {"log_start_offset": 0} and deleted.after == {"log_start_offset": 120}
    assert "@127.0.0.1" in deleted.actor
    others = {0, 1, 2} - {deleted.node}
    eventually(lambda: {event.node for event in moves("the leader's log start")} == others, "followers tell as well")
    assert all(event.actor == f"broker-{deleted.node}" for event in moves("the leader's log start"))

    def changes() -> list[AuditEvent]:
        told = found(audited, topic_id, event=AuditKind.CONFIG_CHANGED)
        return [event for event in told if event.after["name"] == "retention.bytes"]

    eventually(changes, "the metadata log is exported")
    (changed,) = changes()
    assert (changed.before, changed.after["name"], changed.after["value"]) == ({"value": None}, "retention.bytes", "1")
    assert "@127.0.0.1" in changed.actor
    assert "@127.0.0.1" in found(audited, topic_id, event=AuditKind.TOPIC_CREATED)[0].actor
    admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: len(found(audited, topic_id, event=AuditKind.LOG_DELETED)) == 3, "three logs are deleted")
    eventually(lambda: found(audited, topic_id, event=AuditKind.TOPIC_DELETED), "the deletion is told")
    (gone,) = found(audited, topic_id, event=AuditKind.TOPIC_DELETED)
    assert gone.topic == topic and "@127.0.0.1" in gone.actor
    assert not trail_of(audited).problems


def test_what_was_not_shipped_when_all_brokers_were_killed_is_shipped_later_and_once(audited: EmbeddedCluster) -> None:
    topic, topic_id = topic_of(audited, 300)
    moved = 0
    for _ in range(3):
        moved += 50
        wanted = TopicPartition(topic, 0, moved)
        eventually(lambda wanted=wanted: _deleted(audited, wanted), "records are deleted")  # type: ignore[misc]
        for name in BROKERS:  # the shipper waits a moment for more, so most of it has not left yet
            audited.kill(name)
        for name in BROKERS:
            audited.command("start", name)

    def told() -> bool:
        moves = found(audited, topic_id, event=AuditKind.LOG_START_MOVED, cause="DeleteRecords")
        return {event.after["log_start_offset"] for event in moves} >= {50, 100, 150}

    def started() -> set[int]:
        return {event.node for event in events_of_topic(audited) if event.event == AuditKind.UNCLEAN_START}

    eventually(told, "every move of the log's start is told")
    eventually(lambda: started() == {0, 1, 2}, "every node tells that it was killed")
    shipped = events_of_topic(audited)
    assert len({event.identity for event in shipped}) == len(shipped), "the topic has each event once"
    for incarnation in {event.incarnation for event in shipped}:
        sequences = [event.sequence for event in shipped if event.incarnation == incarnation]
        assert sequences == sorted(sequences)
    eventually(lambda: found(audited, topic_id, event=AuditKind.LEADER_ELECTED), "elections are told")
    elected = found(audited, topic_id, event=AuditKind.LEADER_ELECTED)
    assert all("leader" in event.after and event.cause for event in elected)


def _deleted(cluster: EmbeddedCluster, wanted: TopicPartition) -> bool:
    """By a client of its own: one that has seen a partition without a leader believes that as long as it lives."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    try:
        admin.delete_records([wanted])[wanted].result(30)
    except KafkaException:
        return False
    return True


def events_of_topic(cluster: EmbeddedCluster) -> list[AuditEvent]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "enable.partition.eof": True})
    partitions = list(consumer.list_topics("__audit", timeout=30).topics["__audit"].partitions)
    consumer.assign([TopicPartition("__audit", partition, 0) for partition in partitions])
    events, ended = [], 0
    while ended < len(partitions):
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            ended += 1
        else:
            assert json.loads(message.value() or b"")["event"]
            events.append(decode_audit_event(message.value() or b""))
    consumer.close()
    return events


def test_clients_cannot_write_to_it(audited: EmbeddedCluster) -> None:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": audited.bootstrap, "message.timeout.ms": 20_000})
    producer.produce("__audit", b"forged", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert errors and errors[0] is not None
