"""The metadata log as events: what was before, why, and who asked; also for one who takes over in the middle."""

from __future__ import annotations

import asyncio
import random
import typing
from typing import Any

import msgspec
import pytest

from common.decision import Decision
from kraft.audit.metadata_audit import AUDIT_RULES, WITHHELD, MetadataAudit
from kraft.batches import Batch, BatchHeader, BatchKind, MetadataRecord, decode_batch, encode_batch
from kraft.controller.attribution import actor_of, attributed
from kraft.controller.state_machine import MetadataStateMachine, Verdict
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.metadata_log import MetadataLog, unframe_batches
from kraft.records import (
    BrokerRegistrationChangeRecord,
    Cause,
    ClusterRecord,
    ConfigRecord,
    Endpoint,
    FeatureLevelRecord,
    LeaderChangeRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
    UnregisterBrokerRecord,
)
from records.audit_event import AuditEvent, AuditKind, decode_audit_event, encode_audit_event
from tests.kraft.line_counts import LineCount
from tidelog.nodes.metadata_feed import MetadataFeed

TOPIC_ID = bytes(range(16))
OTHER_ID = bytes(range(16, 32))
SOMEONE = "someone@192.0.2.1"
HISTORY: list[list[MetadataRecord]] = [
    [ClusterRecord("Y2x1c3Rlcg")],
    [RegisterBrokerRecord(n, bytes(16), (Endpoint("P", "h", 1),), None, fenced=False) for n in range(3)],
    [
        TopicRecord("t", TOPIC_ID, actor=SOMEONE),
        PartitionRecord(TOPIC_ID, 0, (0, 1, 2), (0, 1, 2), 0, cause=Cause.TOPIC_CREATED, actor=SOMEONE),
        ConfigRecord(ResourceType.TOPIC, "t", "retention.ms", "5", SOMEONE),
    ],
    [PartitionChangeRecord(TOPIC_ID, 0, isr=(0, 2), cause=Cause.ISR_CHANGE_BY_LEADER)],
    [
        BrokerRegistrationChangeRecord(0, 2, fenced=True, cause=Cause.SESSION_EXPIRED),
        PartitionChangeRecord(TOPIC_ID, 0, leader=2, isr=(2,), elr=(0,), cause=Cause.BROKER_FENCED),
        NoOpRecord(),
    ],
    [
        ConfigRecord(ResourceType.TOPIC, "t", "retention.ms", None, SOMEONE),
        ConfigRecord(ResourceType.BROKER, "", "not.known.here", "secret", SOMEONE),
    ],
    [FeatureLevelRecord("group.version", 1), FeatureLevelRecord("group.version", 2)],
    [ConfigRecord(ResourceType.TOPIC, "t", "retention.ms", "6", SOMEONE)],
    [RemoveTopicRecord(TOPIC_ID, "t", SOMEONE)],
    [
        TopicRecord("t", OTHER_ID, actor=SOMEONE),
        ConfigRecord(ResourceType.TOPIC, "t", "retention.ms", "7", SOMEONE),
    ],
]


def machine_with(history: list[list[MetadataRecord]], tail: int = 1000) -> MetadataStateMachine:
    machine = MetadataStateMachine(MetadataLog(batches_max=tail))
    header = BatchHeader(1, 7, 1, 0, BatchKind.LEADER_CHANGE)
    machine.apply(0, encode_batch(Batch(header, [LeaderChangeRecord(7, 1)])))
    for number, records in enumerate(history, 2):
        header = BatchHeader(1, 7, number, machine.image.next_offset, timestamp_ms=1_000 + number)
        assert machine.apply(0, encode_batch(Batch(header, list(records)))).verdict is Verdict.APPLIED
    return machine


async def all_events(feed: MetadataFeed, position: int = 0) -> list[AuditEvent]:
    events: list[AuditEvent] = []
    while (piece := await feed.take(position)) is not None:
        assert piece.first == position
        events += [decode_audit_event(encode_audit_event(event)) for event in piece.events]
        position = piece.end
    return events


def named(events: list[AuditEvent], kind: str) -> list[AuditEvent]:
    return [event for event in events if event.event == kind]


def test_every_type_of_record_has_a_rule() -> None:
    assert set(AUDIT_RULES) == set(typing.get_args(MetadataRecord))


async def test_each_change_tells_before_after_cause_and_actor() -> None:
    events = await all_events(MetadataFeed(machine_with(HISTORY)))
    assert [event.sequence for event in events] == sorted({event.sequence for event in events})
    (shrunk,) = named(events, AuditKind.ISR_CHANGED)
    assert (shrunk.topic, shrunk.partition, shrunk.cause) == ("t", 0, "isr_change_by_leader")
    assert (shrunk.before["isr"], shrunk.after["isr"], shrunk.actor) == ([0, 1, 2], [0, 2], "broker-0")
    (elected,) = named(events, AuditKind.LEADER_ELECTED)
    assert (elected.before["leader"], elected.after["leader"], elected.leader_epoch) == (0, 2, 1)
    assert (elected.after["elr"], elected.cause, elected.actor) == ([0], "broker_fenced", "controller-7")
    first, second = named(events, AuditKind.CONFIG_CHANGED)[:2]
    assert (first.before, first.after["value"], first.actor) == ({"value": None}, "5", SOMEONE)
    assert (second.before, second.after["value"], second.topic_id) == ({"value": "5"}, None, TOPIC_ID.hex())
    assert named(events, AuditKind.CONFIG_CHANGED)[2].after["value"] == WITHHELD
    (gone,) = named(events, AuditKind.TOPIC_DELETED)
    assert (gone.topic, gone.actor) == ("t", SOMEONE)
    (fenced,) = named(events, AuditKind.BROKER_CHANGED)
    assert (fenced.before, fenced.after["fenced"], fenced.cause) == ({"fenced": False}, True, "session_expired")


async def test_what_a_deleted_topic_left_is_not_what_the_next_of_its_name_had_before() -> None:
    events = await all_events(MetadataFeed(machine_with(HISTORY)))
    last = named(events, AuditKind.CONFIG_CHANGED)[-1]
    assert (last.before, last.after["value"], last.topic_id) == ({"value": None}, "7", OTHER_ID.hex())
    levels = [(one.before["level"], one.after["level"]) for one in named(events, AuditKind.FEATURE_CHANGED)]
    assert levels == [(0, 1), (1, 2)]


@pytest.mark.parametrize("batch", range(len(HISTORY) + 1))
async def test_one_who_takes_over_behind_any_batch_tells_the_same(batch: int) -> None:
    machine = machine_with(HISTORY)
    position = _ends(machine)[batch]
    whole = await all_events(MetadataFeed(machine_with(HISTORY)))
    assert await all_events(MetadataFeed(machine), position) == [one for one in whole if one.sequence >= position]


def _ends(machine: MetadataStateMachine) -> list[int]:
    ends, offset = [], 0
    while frames := machine.log.read(offset, 1):
        offset = next(iter(unframe_batches(memoryview(frames)))).batch.end_offset
        ends.append(offset)
    return ends


async def test_without_an_image_of_before_it_tells_what_it_can() -> None:
    audit = MetadataAudit(20, None)
    header = BatchHeader(3, 1, 9, 20)
    (event,) = audit.events(Batch(header, [PartitionChangeRecord(TOPIC_ID, 4, isr=(1,), cause=Cause.UNCLEAN_STOP)]))
    assert (event.before, event.after, event.partition, event.topic) == ({}, {"isr": (1,)}, 4, "")


def test_a_broker_that_was_never_registered_did_not_stop_uncleanly() -> None:
    def causes(base: MetadataImage | None) -> list[str]:
        records: list[MetadataRecord] = [
            RegisterBrokerRecord(7, bytes(16), (), None, clean_stop=False),
            RegisterBrokerRecord(7, bytes(15) + b"1", (), None, clean_stop=False),
            RegisterBrokerRecord(7, bytes(15) + b"2", (), None, clean_stop=True),
            UnregisterBrokerRecord(7, 22),
            RegisterBrokerRecord(7, bytes(15) + b"3", (), None, clean_stop=False),
        ]
        events = MetadataAudit(20, base).events(Batch(BatchHeader(3, 1, 9, 20), records))
        return [event.cause for event in events if event.event == AuditKind.BROKER_REGISTERED]

    assert causes(EMPTY_IMAGE) == ["first start", "unclean shutdown", "clean start", "first start"]
    assert causes(None)[0] == "unclean shutdown", "what was before is not known"


async def test_what_the_log_has_cut_is_left_out_and_the_gap_shows() -> None:
    machine = machine_with(HISTORY, tail=2)
    piece = await MetadataFeed(machine).take(0)
    assert piece is not None and piece.first == machine.log.start_offset > 0


def test_old_records_have_no_actor_and_new_ones_are_read_by_who_does_not_know_it() -> None:
    old = msgspec.msgpack.encode([msgspec.to_builtins(BatchHeader(1, 1, 1, 0)), [[12, 2, "t", "retention.ms", "5"]]])
    batch = decode_batch(old)
    assert batch is not None and batch.records == [ConfigRecord(ResourceType.TOPIC, "t", "retention.ms", "5")]
    new = Batch(BatchHeader(1, 1, 1, 0), [RemoveTopicRecord(TOPIC_ID, "t", SOMEONE)])
    assert decode_batch(encode_batch(new)) == new


def test_records_name_who_asked() -> None:
    def decide(image: MetadataImage) -> Decision[MetadataRecord, Any]:
        return Decision("reply", [RemoveTopicRecord(TOPIC_ID), NoOpRecord()])

    decision = attributed(decide, actor_of(b"User:ann", b"192.0.2.7"))(EMPTY_IMAGE)
    assert isinstance(decision, Decision)
    assert decision.reply == "reply"
    assert decision.records == [RemoveTopicRecord(TOPIC_ID, "", "User:ann@192.0.2.7"), NoOpRecord()]
    assert actor_of(b"broker", b"") == "broker"
    assert len(actor_of(bytes(random.Random(1).randbytes(1000)), b"x")) <= 200


async def test_images_that_were_noted_serve_a_log_that_was_cut() -> None:
    machine = machine_with(HISTORY[:3], tail=3)
    feed = MetadataFeed(machine)
    feed.note()
    noted = machine.image.next_offset
    header = BatchHeader(1, 7, 50, noted, timestamp_ms=9)
    change = PartitionChangeRecord(TOPIC_ID, 0, isr=(0,), cause=Cause.ISR_CHANGE_BY_LEADER)
    assert machine.apply(0, encode_batch(Batch(header, [change]))).verdict is Verdict.APPLIED
    (event,) = await all_events(feed, noted)
    assert event.before["isr"] == [0, 1, 2]
    await asyncio.sleep(0)


def test_the_deletion_of_many_topics_looks_at_none_of_the_others() -> None:
    ids = [number.to_bytes(16, "big") for number in range(100)]
    made: list[MetadataRecord] = []
    for topic_id in ids:
        made.append(TopicRecord(topic_id.hex(), topic_id))
        made += [PartitionRecord(topic_id, index, (0,), (0,), 0) for index in range(50)]
    gone: list[MetadataRecord] = [RemoveTopicRecord(topic_id) for topic_id in ids]
    audit, count = MetadataAudit(0, None), LineCount()
    audit.events(Batch(BatchHeader(1, 7, 2, 0), made))
    count.of(lambda: audit.events(Batch(BatchHeader(1, 7, 3, len(made)), gone)))
    assert count.most < len(ids) * 100
