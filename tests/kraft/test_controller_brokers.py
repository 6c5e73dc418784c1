"""Registration, heartbeats, ISR changes and settings, as pure decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.errors import ErrorCode
from common.identifiers import ZERO_UUID
from kraft.controller.brokers import decide_heartbeat, decide_registration, decide_unregister
from kraft.controller.policy import ControllerPolicy
from kraft.controller.producer_ids import decide_allocate_producer_ids
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.snapshot import snapshot_records
from kraft.records import (
    BrokerRegistrationChangeRecord,
    Cause,
    ConfigRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    ResourceType,
)
from tests.kraft.decisions import (
    decide_alter_configs,
    decide_alter_partition,
    decide_create_topics,
    decide_incremental_alter_configs,
    decide_update_features,
)
from tests.kraft.images import (
    POLICY,
    alter_partition,
    beaten,
    create_topics,
    heartbeat,
    new_cluster,
    new_topic,
    partition_of,
    registered,
    registration,
    rng,
    with_brokers,
    with_topic,
)
from wire.messages import (
    AllocateProducerIdsRequest,
    AlterConfigsRequest,
    IncrementalAlterConfigsRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
    schema_uuid,
)


def altered(image: MetadataImage, request: Any, version: int = 3) -> tuple[MetadataImage, ErrorCode]:
    decision = decide_alter_partition(image, request, version, POLICY)
    code = decision.reply.error_code or decision.reply.topics[0].partitions[0].error_code
    return replayed(image, decision.records), ErrorCode(code)


# -- registration and heartbeats


def test_the_broker_epoch_is_the_offset_of_the_registration() -> None:
    image = with_topic()
    decision = decide_registration(image, registration(1, life=1), POLICY, has_session=False)
    at = next(i for i, r in enumerate(decision.records) if isinstance(r, RegisterBrokerRecord))
    assert decision.reply.broker_epoch == image.next_offset + at
    assert replayed(image, decision.records).brokers[1].epoch == decision.reply.broker_epoch


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"incarnation_id": None}, ErrorCode.INVALID_REGISTRATION),
        ({"rack": "r" * 300}, ErrorCode.INVALID_REGISTRATION),
        ({"features": []}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_refused_registrations(changed: dict[str, Any], code: ErrorCode) -> None:
    decision = decide_registration(new_cluster(), registration(0, **changed), POLICY, has_session=False)
    assert (decision.reply.error_code, decision.records) == (code, [])


def test_an_id_in_use_is_not_given_to_another_process() -> None:
    image = with_brokers(1)
    decision = decide_registration(image, registration(0, life=1), POLICY, has_session=True)
    assert decision.reply.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    again = decide_registration(image, registration(0, life=0), POLICY, has_session=True)
    assert (again.reply.broker_epoch, again.records) == (image.brokers[0].epoch, [])


def test_an_unclean_stop_leaves_isr_and_elr_in_the_commit_of_the_registration() -> None:
    image = with_topic()
    image, _ = beaten(image, 2, want_fence=True)
    image, _ = beaten(image, 1, want_fence=True)
    assert (partition_of(image).isr, partition_of(image).elr) == ((0,), (1,))
    after = registered(image, 1, life=1)
    assert partition_of(after).elr == ()
    after = registered(after, 0, life=1)
    lost = partition_of(after)
    assert (lost.isr, lost.elr, lost.leader, lost.last_known_leader) == ((), (), -1, 0)


def test_a_clean_stop_keeps_the_elr() -> None:
    image = with_topic()
    image, _ = beaten(image, 2, want_fence=True)
    image, _ = beaten(image, 1, want_fence=True)
    after = registered(image, 1, life=1, previous_epoch=image.brokers[1].epoch)
    assert partition_of(after).elr == (1,)


@pytest.mark.parametrize(("shown", "is_clean"), [(b"s" * 16, True), (b"t" * 16, False), (ZERO_UUID, False)])
def test_a_start_that_died_before_it_knew_its_epoch_is_no_unclean_stop(shown: bytes, is_clean: bool) -> None:
    image = with_topic()
    image, _ = beaten(image, 2, want_fence=True)
    image, _ = beaten(image, 1, want_fence=True)
    known = image.brokers[1].epoch
    for life, start_id in ((1, b"s" * 16), (2, shown)):
        request = registration(1, life, known, start_id=schema_uuid(start_id))
        image = replayed(image, decide_registration(image, request, POLICY, has_session=False).records)
        image = replayed(
            image, [record for record in snapshot_records(image) if isinstance(record, RegisterBrokerRecord)]
        )
    assert image.brokers[1].is_unclean is not is_clean
    assert partition_of(image).elr == ((1,) if is_clean else ())


def test_two_processes_without_a_start_id_have_nothing_in_common() -> None:
    image = registered(with_topic(), 1, life=1)
    image = registered(image, 1, life=2)
    assert image.brokers[1].is_unclean


def test_a_replaced_disk_is_an_unclean_stop() -> None:
    image = with_topic()
    image, _ = beaten(image, 2, want_fence=True)
    image, _ = beaten(image, 1, want_fence=True)
    request = registration(1, 1, image.brokers[1].epoch, log_dirs=[])
    after = replayed(image, decide_registration(image, request, POLICY, has_session=False).records)
    assert partition_of(after).elr == ()


def test_a_run_that_is_replaced_leaves_the_isr_even_when_it_stopped_cleanly() -> None:
    image = with_topic()
    after = registered(image, 0, life=1, previous_epoch=image.brokers[0].epoch)
    assert (partition_of(after).isr, partition_of(after).leader) == ((1, 2), 1)


def test_unfenced_only_past_its_own_registration_and_when_it_asks() -> None:
    image = registered(new_cluster(), 0)
    _, reply = beaten(image, 0, current_metadata_offset=image.brokers[0].epoch - 1)
    assert (reply.is_caught_up, reply.is_fenced) == (False, True)
    _, reply = beaten(image, 0, want_fence=True)
    assert (reply.is_caught_up, reply.is_fenced) == (True, True)
    after, reply = beaten(image, 0)
    assert reply.is_fenced is False
    assert not after.brokers[0].fenced


@pytest.mark.parametrize(
    ("changed", "code"),
    [({"broker_epoch": 1}, ErrorCode.STALE_BROKER_EPOCH), ({"broker_id": 9}, ErrorCode.BROKER_ID_NOT_REGISTERED)],
)
def test_refused_heartbeats(changed: dict[str, Any], code: ErrorCode) -> None:
    image = with_brokers(2)
    request = heartbeat(image, 1, **changed)
    assert decide_heartbeat(image, request, POLICY, moves_seen=True).reply.error_code == code


def test_controlled_shutdown_moves_the_leaderships_then_lets_go() -> None:
    image = with_topic()
    image, reply = beaten(image, 0, want_shut_down=True)
    assert (reply.should_shut_down, reply.is_fenced) == (False, False)
    assert image.brokers[0].in_controlled_shutdown
    assert (partition_of(image).leader, partition_of(image).isr) == (1, (1, 2))
    decision = decide_heartbeat(image, heartbeat(image, 0, want_shut_down=True), POLICY, moves_seen=False)
    assert not decision.reply.should_shut_down
    image, reply = beaten(image, 0, want_shut_down=True)
    assert reply.should_shut_down


def test_a_broker_without_its_disk_is_fenced_and_not_eligible() -> None:
    image = with_topic()
    image, _ = beaten(image, 2, want_fence=True)
    image, reply = beaten(image, 0, offline_log_dirs=[registration(0).log_dirs[0]])
    assert reply.is_fenced
    assert (partition_of(image).isr, partition_of(image).elr, partition_of(image).leader) == ((1,), (), 1)
    _, reply = beaten(image, 0, offline_log_dirs=[registration(0).log_dirs[0]])
    assert reply.is_fenced


def test_unregistering() -> None:
    image = replayed(with_topic(), [ConfigRecord(ResourceType.BROKER, "0", "tidelog.broker.cordoned", "true")])
    decision = decide_unregister(image, UnregisterBrokerRequest(broker_id=0), POLICY)
    after = replayed(image, decision.records)
    assert 0 not in after.brokers
    assert (partition_of(after).leader, partition_of(after).isr) == (1, (1, 2))
    assert not after.configs.broker(0)
    again = decide_unregister(after, UnregisterBrokerRequest(broker_id=0), POLICY)
    assert again.reply.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_changes_carry_their_causes() -> None:
    image = with_topic()
    records = decide_heartbeat(image, heartbeat(image, 0, want_fence=True), POLICY, moves_seen=True).records
    partition = next(r for r in records if isinstance(r, PartitionChangeRecord))
    broker = next(r for r in records if isinstance(r, BrokerRegistrationChangeRecord))
    assert (partition.cause, broker.cause) == (Cause.BROKER_FENCED, Cause.BROKER_REQUEST)


# -- AlterPartition


def test_the_leader_shrinks_and_grows_the_isr() -> None:
    image = with_topic()
    image, code = altered(image, alter_partition(image, partition_of(image), [0, 1]))
    assert (code, partition_of(image).isr, partition_of(image).partition_epoch) == (ErrorCode.NONE, (0, 1), 1)
    image, code = altered(image, alter_partition(image, partition_of(image), [0]))
    assert (partition_of(image).isr, partition_of(image).elr) == ((0,), (1,))
    image, code = altered(image, alter_partition(image, partition_of(image), [0, 2]))
    assert (partition_of(image).isr, partition_of(image).elr, partition_of(image).leader_epoch) == ((0, 2), (), 0)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ({"partition_index": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader": 1}, ErrorCode.INVALID_REQUEST),
        ({"broker_epoch": 1}, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_refused_isr_changes(changed: dict[str, Any], code: ErrorCode) -> None:
    image = with_topic()
    after, found = altered(image, alter_partition(image, partition_of(image), [0, 1], **changed))
    assert found is code
    assert after == image


def test_an_isr_without_its_leader_or_with_strangers_is_refused() -> None:
    image = with_topic(brokers=4)
    for isr in ([1, 2], [0, 3], [0, 0]):
        request = alter_partition(image, partition_of(image), isr)
        if isr == [0, 0]:
            partition = request.topics[0].partitions[0]
            partition.new_isr_with_epochs = partition.new_isr_with_epochs * 2
        assert altered(image, request)[1] is ErrorCode.INVALID_REQUEST


def test_a_fenced_or_stopping_broker_or_an_old_run_cannot_join() -> None:
    image = with_topic()
    image, _ = altered(image, alter_partition(image, partition_of(image), [0, 1]))
    fenced, _ = beaten(image, 2, want_fence=True)
    assert altered(fenced, alter_partition(fenced, partition_of(fenced), [0, 1, 2]))[1] is ErrorCode.INELIGIBLE_REPLICA
    stopping, _ = beaten(image, 2, want_shut_down=True)
    request = alter_partition(stopping, partition_of(stopping), [0, 1, 2])
    assert altered(stopping, request)[1] is ErrorCode.INELIGIBLE_REPLICA
    old_epoch = image.brokers[2].epoch
    restarted, _ = beaten(registered(image, 2, life=1), 2)
    epochs = {0: image.brokers[0].epoch, 1: image.brokers[1].epoch, 2: old_epoch}
    request = alter_partition(restarted, partition_of(restarted), epochs)
    assert altered(restarted, request)[1] is ErrorCode.INELIGIBLE_REPLICA
    request = alter_partition(restarted, partition_of(restarted), {**epochs, 2: -1})
    assert altered(restarted, request)[1] is ErrorCode.INELIGIBLE_REPLICA
    request = alter_partition(restarted, partition_of(restarted), [0, 1, 2])
    assert altered(restarted, request)[1] is ErrorCode.NONE


# -- settings


def alter(
    image: MetadataImage,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    policy: ControllerPolicy = POLICY,
) -> tuple[MetadataImage, Any]:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [resource.AlterableConfig(name=n, config_operation=op, value=v) for n, op, v in changes]
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=kind, resource_name=name, configs=configs)], validate_only=False
    )
    decision = decide_incremental_alter_configs(image, request, policy)
    return replayed(image, decision.records), decision.reply.responses[0]


def test_settings_are_set_deleted_appended_and_subtracted() -> None:
    image, reply = alter(with_topic(), 2, "t", ("retention.ms", 0, "5"), ("cleanup.policy", 2, "compact"))
    assert reply.error_code == 0
    assert image.configs.topic("t") == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    image, _ = alter(image, 2, "t", ("retention.ms", 1, None), ("cleanup.policy", 3, "delete"))
    assert image.configs.topic("t") == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (2, "u", ("retention.ms", 0, "5"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, "t", ("nonsense", 0, "5"), ErrorCode.INVALID_CONFIG),
        (2, "t", ("retention.ms", 0, "-2"), ErrorCode.INVALID_CONFIG),
        (2, "t", ("retention.ms", 0, None), ErrorCode.INVALID_REQUEST),
        (2, "t", ("retention.ms", 2, "5"), ErrorCode.INVALID_CONFIG),
        (2, "t", ("retention.ms", 7, "5"), ErrorCode.INVALID_REQUEST),
        (2, "t", ("remote.storage.enable", 0, "true"), ErrorCode.INVALID_CONFIG),
        (4, "9", ("log.retention.ms", 0, "5"), ErrorCode.INVALID_REQUEST),
        (4, "x", ("log.retention.ms", 0, "5"), ErrorCode.INVALID_REQUEST),
        (4, "", ("node.id", 0, "5"), ErrorCode.INVALID_REQUEST),
        (4, "", ("tidelog.nonsense", 0, "5"), ErrorCode.INVALID_CONFIG),
        (4, "", ("nonsense", 0, "5"), ErrorCode.NONE),
        (4, "1", ("min.insync.replicas", 0, "2"), ErrorCode.INVALID_CONFIG),
        (4, "1", ("unclean.leader.election.enable", 0, "true"), ErrorCode.INVALID_CONFIG),
        (4, "1", ("log.retention.ms", 0, "5"), ErrorCode.NONE),
        (4, "", ("log.retention.ms", 0, "5"), ErrorCode.NONE),
        (99, "t", ("a", 0, "5"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_may_be_set(kind: int, name: str, change: tuple[str, int, str | None], code: ErrorCode) -> None:
    image = with_topic()
    after, reply = alter(image, kind, name, change)
    assert reply.error_code == code
    assert (after == image) is (code is not ErrorCode.NONE)
    if code is ErrorCode.INVALID_CONFIG:
        assert reply.error_message


def test_a_setting_that_does_not_go_with_another_is_refused() -> None:
    image, reply = alter(with_topic(), 2, "t", ("max.compaction.lag.ms", 0, "5"))
    assert reply.error_code == ErrorCode.NONE
    after, reply = alter(image, 2, "t", ("min.compaction.lag.ms", 0, "6"))
    assert (after, reply.error_code) == (image, ErrorCode.INVALID_CONFIG)
    assert "max.compaction.lag.ms (5)" in reply.error_message
    _, reply = alter(image, 2, "t", ("min.compaction.lag.ms", 0, "6"), ("max.compaction.lag.ms", 0, "6"))
    assert reply.error_code == ErrorCode.NONE
    resource = AlterConfigsRequest.AlterConfigsResource
    for least, code in (("6", ErrorCode.NONE), ("60", ErrorCode.INVALID_CONFIG)):
        configs = {"min.compaction.lag.ms": least, "max.compaction.lag.ms": "50"}
        named = [resource.AlterableConfig(name=name, value=value) for name, value in configs.items()]
        request = AlterConfigsRequest(resources=[resource(resource_type=2, resource_name="t", configs=named)])
        assert decide_alter_configs(image, request, POLICY).reply.responses[0].error_code == code


@pytest.mark.parametrize("where", ["cluster", "node"])
def test_a_setting_that_does_not_go_with_the_clusters_is_refused(where: str) -> None:
    image, policy = with_topic(), POLICY
    if where == "cluster":
        image, reply = alter(image, 4, "", ("log.cleaner.max.compaction.lag.ms", 0, "10"))
        assert reply.error_code == ErrorCode.NONE
    else:
        policy = replace(POLICY, static={"log.cleaner.max.compaction.lag.ms": "10"})
    _, reply = alter(image, 2, "t", ("min.compaction.lag.ms", 0, "11"), policy=policy)
    assert reply.error_code == ErrorCode.INVALID_CONFIG
    topic = new_topic("u", configs={"min.compaction.lag.ms": "11"})
    created = decide_create_topics(image, create_topics(topic), policy, rng())
    assert created.reply.topics[0].error_code == ErrorCode.INVALID_CONFIG
    own, reply = alter(
        image, 2, "t", ("min.compaction.lag.ms", 0, "11"), ("max.compaction.lag.ms", 0, "12"), policy=policy
    )
    assert reply.error_code == ErrorCode.NONE
    _, reply = alter(own, 2, "t", ("max.compaction.lag.ms", 1, None), policy=policy)  # back to the cluster's
    assert reply.error_code == ErrorCode.INVALID_CONFIG
    _, reply = alter(own, 2, "t", ("retention.ms", 0, "5"), policy=policy)
    assert reply.error_code == ErrorCode.NONE


def test_alter_configs_replaces_everything() -> None:
    image, _ = alter(with_topic(), 2, "t", ("retention.ms", 0, "5"), ("retention.bytes", 0, "7"))
    resource = AlterConfigsRequest.AlterConfigsResource
    configs = [resource.AlterableConfig(name="retention.bytes", value="8")]
    request = AlterConfigsRequest(
        resources=[resource(resource_type=2, resource_name="t", configs=configs)], validate_only=False
    )
    decision = decide_alter_configs(image, request, POLICY)
    assert replayed(image, decision.records).configs.of(ResourceType.TOPIC, "t") == {"retention.bytes": "8"}


def test_a_resource_twice_in_a_request_is_refused() -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    twice = [resource(resource_type=2, resource_name="t", configs=[]) for _ in range(2)]
    request = IncrementalAlterConfigsRequest(resources=twice, validate_only=False)
    reply = decide_incremental_alter_configs(with_topic(), request, POLICY).reply
    assert [r.error_code for r in reply.responses] == [ErrorCode.INVALID_REQUEST] * 2


def test_a_change_of_min_insync_replicas_clears_the_elr_and_no_other_change_does() -> None:
    image = with_topic()
    for broker in (2, 1):
        image, _ = beaten(image, broker, want_fence=True)
    assert partition_of(image).elr == (1,)
    image, _ = alter(image, 2, "t", ("retention.ms", 0, "5"), ("min.insync.replicas", 0, "2"))
    assert partition_of(image).elr == (1,)  # it was 2 before
    topic, _ = alter(image, 2, "t", ("min.insync.replicas", 0, "1"))
    assert partition_of(topic).elr == ()
    cluster, _ = alter(image, 4, "", ("min.insync.replicas", 0, "3"))
    assert partition_of(cluster).elr == (1,)  # the topic has its own
    image, _ = alter(image, 2, "t", ("min.insync.replicas", 1, None))
    cluster, _ = alter(image, 4, "", ("min.insync.replicas", 0, "3"))
    assert partition_of(cluster).elr == ()


def test_allowing_unclean_elections_elects_at_once() -> None:
    image = with_topic()
    image, _ = altered(image, alter_partition(image, partition_of(image), [0, 1]))
    for broker in (1, 0):
        image, _ = beaten(image, broker, want_fence=True)
    assert (partition_of(image).leader, partition_of(image).elr) == (-1, (0, 1))
    image, _ = alter(image, 2, "t", ("unclean.leader.election.enable", 0, "true"))
    found = partition_of(image)
    assert (found.leader, found.isr, found.elr) == (2, (2,), ())


# -- producer ids and features


def test_producer_ids_come_in_blocks_for_the_present_run_only() -> None:
    image = with_brokers(1)
    request = AllocateProducerIdsRequest(broker_id=0, broker_epoch=image.brokers[0].epoch)
    starts = []
    for _ in range(3):
        decision = decide_allocate_producer_ids(image, request)
        starts.append((decision.reply.producer_id_start, decision.reply.producer_id_len))
        image = replayed(image, decision.records)
    assert starts == [(0, 1000), (1000, 1000), (2000, 1000)]
    stale = decide_allocate_producer_ids(image, AllocateProducerIdsRequest(broker_id=0, broker_epoch=0))
    assert stale.reply.error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(
    ("name", "level", "upgrade_type", "code"),
    [
        ("metadata.version", 27, 1, ErrorCode.NONE),
        ("metadata.version", 28, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("metadata.version", 26, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("metadata.version", 26, 3, ErrorCode.INVALID_UPDATE_VERSION),
        ("nonsense", 1, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("group.version", 0, 1, ErrorCode.NONE),
    ],
)
def test_feature_levels(name: str, level: int, upgrade_type: int, code: ErrorCode) -> None:
    update = UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
    request = UpdateFeaturesRequest(timeout_ms=1, feature_updates=[update], validate_only=False)
    assert decide_update_features(with_brokers(1), request).reply.error_code == code


def test_a_single_replica_keeps_its_place_over_a_fencing() -> None:
    policy = ControllerPolicy(default_replication_factor=1)
    image = with_topic([1])
    image, _ = beaten(image, 1, policy, want_fence=True)
    assert (partition_of(image).leader, partition_of(image).elr) == (-1, (1,))
    image, _ = beaten(image, 1, policy)
    assert (partition_of(image).leader, partition_of(image).isr) == (1, (1,))
