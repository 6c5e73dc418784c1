"""Images and requests for the tests of decisions."""

from __future__ import annotations

import random
from typing import Any

from kraft.controller.brokers import decide_heartbeat, decide_registration
from kraft.controller.policy import ControllerPolicy
from kraft.features import INITIAL_LEVELS, SUPPORTED_FEATURES
from kraft.image.delta import replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.records import ClusterRecord, FeatureLevelRecord
from tests.kraft.decisions import decide_create_topics
from wire.messages import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    CreateTopicsRequest,
    schema_uuid,
)

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
POLICY = ControllerPolicy(num_partitions=1, default_replication_factor=3, min_insync_replicas=2)


def new_cluster() -> MetadataImage:
    return replayed(EMPTY_IMAGE, [ClusterRecord(CLUSTER_ID), *(FeatureLevelRecord(*i) for i in INITIAL_LEVELS.items())])


def incarnation(broker_id: int, life: int) -> bytes:
    return bytes([broker_id, life, *([7] * 14)])


def registration(broker_id: int, life: int = 0, previous_epoch: int = -1, **changed: Any) -> Any:
    request = BrokerRegistrationRequest
    fields: dict[str, Any] = {
        "broker_id": broker_id,
        "cluster_id": CLUSTER_ID,
        "incarnation_id": schema_uuid(incarnation(broker_id, life)),
        "listeners": [request.Listener(name="PLAINTEXT", host="h", port=9092 + broker_id, security_protocol=0)],
        "features": [
            request.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in SUPPORTED_FEATURES.items()
        ],
        "rack": None,
        "log_dirs": [schema_uuid(bytes([broker_id + 1] * 16))],
        "previous_broker_epoch": previous_epoch,
    }
    return request(**{**fields, **changed})


def heartbeat(image: MetadataImage, sender: int, **changed: Any) -> Any:
    fields: dict[str, Any] = {
        "broker_id": sender,
        "broker_epoch": image.brokers[sender].epoch if sender in image.brokers else -1,
        "current_metadata_offset": image.offset,
        "want_fence": False,
        "want_shut_down": False,
        "offline_log_dirs": [],
    }
    return BrokerHeartbeatRequest(**{**fields, **changed})


def registered(
    image: MetadataImage, broker_id: int, life: int = 0, previous_epoch: int = -1, rack: str | None = None
) -> MetadataImage:
    request = registration(broker_id, life, previous_epoch, rack=rack)
    decision = decide_registration(image, request, POLICY, has_session=False)
    assert decision.reply.error_code == 0
    return replayed(image, decision.records)


def beaten(
    image: MetadataImage, broker_id: int, policy: ControllerPolicy = POLICY, **changed: Any
) -> tuple[MetadataImage, Any]:
    """The image and the reply after a heartbeat."""
    decision = decide_heartbeat(image, heartbeat(image, broker_id, **changed), policy, moves_seen=True)
    return replayed(image, decision.records), decision.reply


def with_brokers(count: int, racks: list[str] | None = None) -> MetadataImage:
    """A cluster of unfenced brokers 0, 1, …"""
    image = new_cluster()
    for broker_id in range(count):
        image = registered(image, broker_id, rack=racks[broker_id] if racks else None)
        image, _reply = beaten(image, broker_id)
    return image


def create_topics(*topics: Any, validate_only: bool = False) -> Any:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)


def new_topic(
    name: str,
    partitions: int = -1,
    factor: int = -1,
    assignments: list[list[int]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> Any:
    topic = CreateTopicsRequest.CreatableTopic
    return topic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            topic.CreatableReplicaAssignment(partition_index=i, broker_ids=b) for i, b in enumerate(assignments or [])
        ],
        configs=[topic.CreatableTopicConfig(name=n, value=v) for n, v in (configs or {}).items()],
    )


def with_topic(assignment: list[int] | None = None, brokers: int = 3, **configs: str) -> MetadataImage:
    image = with_brokers(brokers)
    named = {name.replace("_", "."): value for name, value in configs.items()}
    topic = new_topic("t", assignments=[assignment or [0, 1, 2]], configs=dict(named))
    return replayed(image, decide_create_topics(image, create_topics(topic), POLICY, rng()).records)


def partition_of(image: MetadataImage) -> PartitionImage:
    partition = image.partition_by_name("t", 0)
    assert partition is not None
    return partition


def alter_partition(
    image: MetadataImage, partition: PartitionImage, isr: dict[int, int] | list[int], **changed: Any
) -> Any:
    """From the leader; `isr` with broker epochs, or those of the present registrations."""
    epochs = isr if isinstance(isr, dict) else {b: image.brokers[b].epoch for b in isr}
    leader = changed.pop("leader", partition.leader)
    broker_epoch = changed.pop("broker_epoch", image.brokers[leader].epoch if leader in image.brokers else -1)
    data = AlterPartitionRequest.TopicData
    fields: dict[str, Any] = {
        "partition_index": partition.partition,
        "leader_epoch": partition.leader_epoch,
        "new_isr_with_epochs": [data.PartitionData.BrokerState(broker_id=b, broker_epoch=e) for b, e in epochs.items()],
        "leader_recovery_state": 0,
        "partition_epoch": partition.partition_epoch,
    }
    topic = data(topic_id=schema_uuid(partition.topic_id), partitions=[data.PartitionData(**{**fields, **changed})])
    return AlterPartitionRequest(broker_id=leader, broker_epoch=broker_epoch, topics=[topic])


def rng(seed: int = 1) -> random.Random:
    return random.Random(seed)
