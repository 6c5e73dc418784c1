"""RestoreTopic: a topic of a given id, whose first leaders adopt what the tier holds of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from common.errors import ErrorCode
from common.pacing import at_once
from kraft.audit.metadata_audit import MetadataAudit
from kraft.batches import Batch, BatchHeader
from kraft.controller.policy import ControllerPolicy
from kraft.controller.restored_topics import LEFT_OUT_CHARACTERS_MAX, restore_topic
from kraft.image.delta import replayed
from records.audit_event import AuditKind
from tests.kraft.images import with_brokers, with_topic
from wire.messages import RestoreTopicRequest, schema_uuid

POLICY = ControllerPolicy(default_replication_factor=2, static={"tidelog.tier.uri": "file:///tier"})
TOPIC_ID = bytes([9] * 16)
Config = RestoreTopicRequest.RestoredTopicConfig


def request(**changed: Any) -> Any:
    fields: dict[str, Any] = {
        "topic_name": "again",
        "topic_id": schema_uuid(TOPIC_ID),
        "replication_factor": -1,
        "leader_epochs": [5, 9],
        "configs": [Config(name="retention.ms", value="-1")],
    }
    return RestoreTopicRequest(**{**fields, **changed})


def test_a_restored_topic_has_its_id_and_epochs_and_adopts() -> None:
    image = with_brokers(3)
    decision = at_once(restore_topic(image, request(), POLICY, random.Random(1)))
    assert decision.reply.error_code == 0
    topic = replayed(image, decision.records).topics.by_name["again"]
    assert (topic.topic_id, topic.adopts_tier) == (TOPIC_ID, True)
    assert [partition.leader_epoch for partition in topic.partitions.values()] == [5, 9]
    assert all(len(partition.isr) == 2 and partition.has_leader for partition in topic.partitions.values())
    configs = replayed(image, decision.records).configs.topic("again")
    assert configs == {"retention.ms": "-1", "remote.storage.enable": "true"}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"leader_epochs": []}, ErrorCode.INVALID_PARTITIONS),
        ({"leader_epochs": [-1]}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"topic_name": "a/b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"topic_id": schema_uuid(bytes(16))}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"configs": [Config(name="no.such", value="1")]}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_what_cannot_be_restored_is_refused(changed: dict[str, Any], code: ErrorCode) -> None:
    decision = at_once(restore_topic(with_brokers(3), request(**changed), POLICY, random.Random(1)))
    assert decision.reply.error_code == code
    assert not decision.records


def test_a_name_or_id_that_is_taken_is_refused() -> None:
    image = with_topic()
    name, topic_id = next((topic.name, topic.topic_id) for topic in image.topics)
    for changed in ({"topic_name": name}, {"topic_id": schema_uuid(topic_id)}):
        decision = at_once(restore_topic(image, request(**changed), POLICY, random.Random(1)))
        assert decision.reply.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_without_a_tier_nothing_is_restored() -> None:
    decision = at_once(restore_topic(with_brokers(3), request(), ControllerPolicy(), random.Random(1)))
    assert decision.reply.error_code == ErrorCode.INVALID_CONFIG


def test_what_was_left_out_is_in_the_audit_and_bounded() -> None:
    image = with_brokers(3)
    text = "partition 0: offsets 0 to 9 (the object is missing)"
    for left_out, kept in ((text, text), ("", None), ("x" * 10_000, "x" * LEFT_OUT_CHARACTERS_MAX)):
        decision = at_once(restore_topic(image, request(left_out=left_out), POLICY, random.Random(1)))
        header = BatchHeader(3, 1, 9, image.next_offset)
        event, *_ = MetadataAudit(image.next_offset, image).events(Batch(header, decision.records))
        assert event.event == AuditKind.TOPIC_CREATED
        assert event.after.get("left_out") == kept
