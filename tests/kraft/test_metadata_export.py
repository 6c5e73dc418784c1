"""Every type of metadata record has a rule for export, every event one for the rebuild; what goes out comes back."""

from __future__ import annotations

import base64
import json
import random
import typing
from dataclasses import replace

import pytest

from common.pacing import SLICE_COST, at_once
from kraft.audit.metadata_audit import MetadataAudit
from kraft.audit.metadata_export import EXPORT_RULES, metadata_events
from kraft.batches import Batch, BatchHeader, MetadataRecord
from kraft.controller.brokers import decide_registration
from kraft.controller.first_metadata import first_records
from kraft.image.delta import replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.snapshot import decode_snapshot, encode_snapshot
from kraft.rebuilding.rebuild import (
    EPOCH_MARGIN,
    PRODUCER_ID_UNKNOWN,
    REBUILD_RULES,
    CannotRebuild,
    NamedBroker,
    Rebuild,
    Rebuilder,
    TieredPartition,
    TieredTopic,
)
from kraft.records import (
    NO_LEADER,
    AclOperation,
    AclPattern,
    AclPermission,
    AclRecord,
    AclResource,
    ApiKeyRecord,
    Cause,
    CellRecord,
    ClusterRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RecordBase,
    RemoveScramCredentialRecord,
    ResourceType,
    ScramCredentialRecord,
    ScramMechanism,
    TenantRecord,
    TenantState,
    TopicRecord,
)
from records.audit_event import to_fields
from tests.kraft.images import CLUSTER_ID, POLICY, beaten, new_cluster, registration

TIERED, PLAIN, LOST = bytes([1] * 16), bytes([2] * 16), bytes([3] * 16)
BROKERS = [NamedBroker(broker) for broker in (0, 1, 2)]


def old_cluster() -> MetadataImage:
    image = new_cluster()
    for broker in (0, 1, 2):
        image = replayed(image, decide_registration(image, registration(broker), POLICY, has_session=False).records)
    return replayed(
        image,
        [
            TopicRecord("tiered", TIERED),
            ConfigRecord(ResourceType.TOPIC, "tiered", "remote.storage.enable", "true"),
            ConfigRecord(ResourceType.TOPIC, "tiered", "segment.bytes", "1048576"),
            PartitionRecord(TIERED, 0, (1, 2, 0), (1, 2, 0), 1, leader_epoch=7),
            PartitionRecord(TIERED, 1, (2, 0, 1), (2, 0, 1), 2, leader_epoch=3),
            TopicRecord("plain", PLAIN),
            PartitionRecord(PLAIN, 0, (0, 1), (0, 1), 0),
            ConfigRecord(ResourceType.BROKER, "", "log.retention.ms", "1000"),
            ConfigRecord(ResourceType.BROKER, "1", "tidelog.broker.cordoned", "true"),
            ProducerIdsRecord(-1, -1, 5_000),
        ],
    )


def rebuilt(image: MetadataImage, tiered: list[TieredTopic], brokers: list[NamedBroker] = BROKERS) -> Rebuild:
    rebuilder = Rebuilder(CLUSTER_ID, 2)
    rebuilder.take_events(list(metadata_events(image)))
    rebuilder.take_tier(tiered)
    return rebuilder.build(brokers, 3, random.Random(1))


def test_every_type_of_record_has_a_rule_for_export_and_rebuild() -> None:
    assert set(EXPORT_RULES) == set(typing.get_args(MetadataRecord))
    for kind, rule in EXPORT_RULES.items():
        assert bool(rule.event) != bool(rule.reason), kind
    assert {rule.event for rule in EXPORT_RULES.values() if rule.event} == set(REBUILD_RULES)


def test_every_record_class_is_one_of_the_metadata_records() -> None:
    assert set(RecordBase.__subclasses__()) == set(typing.get_args(MetadataRecord))


def test_an_export_is_rebuilt_with_names_ids_settings_and_placement() -> None:
    image = old_cluster()
    rebuild = rebuilt(image, [TieredTopic("tiered", TIERED, {0: TieredPartition(0, 50, 9)})])
    new = rebuild.image
    assert (new.cluster_id, new.incarnation) == (CLUSTER_ID, 2)
    assert new.features == image.features
    assert new.configs.topic("tiered") == image.configs.topic("tiered")
    assert new.configs.cluster() == {"log.retention.ms": "1000"}
    assert not new.configs.broker(1)
    assert not new.brokers
    assert new.next_producer_id > 5_000
    tiered = new.topics.by_name["tiered"]
    assert tiered.topic_id == TIERED
    assert tiered.adopts_tier
    assert not new.topics.by_name["plain"].adopts_tier
    assert [p.replicas for p in tiered.partitions.values()] == [(1, 2, 0), (2, 0, 1)]
    assert all(p.leader == NO_LEADER and not p.isr for p in new.topics.partitions())
    assert tiered.partitions[0].leader_epoch == 9 + EPOCH_MARGIN
    assert tiered.partitions[1].leader_epoch == 3 + EPOCH_MARGIN
    assert decode_snapshot(encode_snapshot(new)).topics.by_id == new.topics.by_id


@pytest.mark.parametrize("left", ["nothing", "records", "a manifest that cannot be read"])
def test_a_topic_for_which_tiering_was_disabled_stays_so_unless_the_bucket_may_hold_some_of_it(left: str) -> None:
    image = old_cluster()
    disabled = [("remote.storage.enable", "false"), ("tidelog.tier.generation", "1")]
    image = replayed(image, [ConfigRecord(ResourceType.TOPIC, "tiered", *setting) for setting in disabled])
    empty = TieredPartition(9, 9, 4, is_empty=True)
    last = {"nothing": empty, "records": TieredPartition(0, 50, 9)}.get(left, TieredPartition(0, 0, 0))
    rebuild = rebuilt(image, [TieredTopic("tiered", TIERED, {0: empty, 1: last})])
    assert rebuild.image.topics.by_name["tiered"].adopts_tier, "its log begins where the tier ended"
    is_tiered = rebuild.image.configs.topic("tiered")["remote.storage.enable"]
    assert is_tiered == ("false" if left == "nothing" else "true")
    assert any("it is tiered again" in note for note in rebuild.notes) == (left != "nothing")


def test_fewer_brokers_get_fewer_replicas_and_it_is_said() -> None:
    rebuild = rebuilt(old_cluster(), [], BROKERS[:1])
    assert {p.replicas for p in rebuild.image.topics.partitions()} == {(0,)}
    assert any("fewer replicas" in note for note in rebuild.notes)


def test_without_an_export_the_manifests_alone_make_topics() -> None:
    rebuilder = Rebuilder(CLUSTER_ID, 5)
    rebuilder.take_tier([TieredTopic("lost", LOST, {2: TieredPartition(10, 20, 4)})])
    rebuild = rebuilder.build(BROKERS, 3, random.Random(1))
    topic = rebuild.image.topics.by_name["lost"]
    assert topic.topic_id == LOST
    assert len(topic.partitions) == 3
    assert rebuild.image.configs.topic("lost")["retention.ms"] == "-1"
    assert rebuild.image.next_producer_id >= PRODUCER_ID_UNKNOWN
    assert any("no export of the metadata was there" in note for note in rebuild.notes)
    assert any("lost" in note for note in rebuild.notes)


def test_a_topic_whose_name_was_used_again_is_passed_over_and_told() -> None:
    rebuild = rebuilt(old_cluster(), [TieredTopic("tiered", LOST, {0: TieredPartition(0, 5, 0)})])
    assert rebuild.image.topics.get_by_id(LOST) is None
    assert any(LOST.hex() in note for note in rebuild.notes)


ACCESS: list[MetadataRecord] = [
    CellRecord("east", is_open=False, limits={"tenants.max": 3}),
    TenantRecord("lkc-aaaaaa", "a", "east", 5, {"keys.max": 2}, ("10.0.0.0/8",), ("::/0",), 7, TenantState.MOVING,
                 "west"),
    TenantRecord("lkc-bbbbbb", "b", "east", 6),
    ApiKeyRecord("TKA", "lkc-aaaaaa", "of a", ("read:x", "admin"), 8),
    AclRecord(bytes(16), AclResource.GROUP, "lkc-aaaaaa_", AclPattern.PREFIXED, "User:lkc-aaaaaa_TKA", "*",
              AclOperation.READ, AclPermission.DENY),
    ScramCredentialRecord("TKA", ScramMechanism.SHA_256, b"salt-1", b"stored-1", b"server-1", 4096),
    ScramCredentialRecord("alice", ScramMechanism.SHA_512, b"salt-2", b"stored-2", b"server-2", 8192),
]  # fmt: skip
VERIFIERS = [b"salt-1", b"stored-1", b"server-1", b"salt-2", b"stored-2", b"server-2"]


def shows(text: str, secret: bytes) -> bool:
    """In any of the forms in which bytes stand in text."""
    return any(form in text for form in (secret.decode(), secret.hex(), base64.b64encode(secret).decode()[:6]))


def test_tenants_keys_acls_and_cells_are_rebuilt_as_they_were() -> None:
    image = replayed(old_cluster(), ACCESS)
    rebuild = rebuilt(image, [])
    new = rebuild.image
    assert dict(new.tenants) == {  # their groups are in no topic yet, so they come to be where the tenant lives
        tenant_id: replace(tenant, keys_cell=tenant.home, ids_cell=tenant.home)
        for tenant_id, tenant in image.tenants.items()
    }
    assert dict(new.keys) == dict(image.keys)
    assert list(new.acls) == list(image.acls)
    assert dict(new.cells) == dict(image.cells)
    assert not new.scram
    assert any("alice" in note and "password" in note for note in rebuild.notes)
    assert any("TKA" in note and "secret" in note for note in rebuild.notes)
    begun = replayed(replayed(EMPTY_IMAGE, at_once(first_records(EMPTY_IMAGE, new, random.Random(1)))), [])
    assert dict(begun.tenants) == dict(new.tenants)
    assert list(begun.acls) == list(image.acls)


def test_no_verifier_is_in_an_export_or_in_the_audit() -> None:
    image = replayed(old_cluster(), ACCESS)
    exported = "\n".join(json.dumps(event) for event in metadata_events(image))
    changes = [*ACCESS, RemoveScramCredentialRecord("alice", ScramMechanism.SHA_512)]
    batch = Batch(BatchHeader(1, 1, 1, image.next_offset), changes)
    audited = "\n".join(str(to_fields(event)) for event in MetadataAudit(image.next_offset, image).events(batch))
    assert "alice" in exported
    assert "alice" in audited
    for secret in VERIFIERS:
        assert not shows(exported, secret)
        assert not shows(audited, secret)
        assert shows(repr({"planted": secret}), secret), "the check sees what it looks for"


def test_no_secret_leaves_the_cluster_in_clear() -> None:
    record = ConfigRecord(ResourceType.BROKER, "", "not.a.setting.of.this.version", "hunter2")
    (event,) = [e for e in metadata_events(replayed(EMPTY_IMAGE, [record])) if e["event"] == "config"]
    assert event["withheld"]
    assert "hunter2" not in str(event)


def test_a_feature_level_beyond_this_version_is_refused() -> None:
    image = replayed(new_cluster(), [FeatureLevelRecord("metadata.version", 99)])
    with pytest.raises(CannotRebuild, match=r"metadata\.version 99"):
        rebuilt(image, [])


def test_an_event_of_a_later_version_is_told_and_passed_over() -> None:
    rebuilder = Rebuilder(CLUSTER_ID, 2)
    rebuilder.take_events([{"event": "starship", "name": "x"}])
    assert any("starship" in note for note in rebuilder.build(BROKERS, 1, random.Random(1)).notes)


# the first records -----------------------------------------------------------------------------------------


def test_a_controller_that_finds_a_part_of_the_first_records_adds_the_rest() -> None:
    target = rebuilt(old_cluster(), []).image
    records = at_once(first_records(EMPTY_IMAGE, target, random.Random(0)))
    assert isinstance(records[-1], ClusterRecord)
    for cut in range(len(records)):
        half = replayed(EMPTY_IMAGE, records[:cut])
        assert half.cluster_id is None
        whole = replayed(half, at_once(first_records(half, target, random.Random(0))))
        assert whole.topics.by_id == target.topics.by_id
        assert whole.configs == target.configs
        assert (whole.cluster_id, whole.incarnation) == (CLUSTER_ID, 2)


def test_the_first_records_of_many_partitions_are_made_in_slices() -> None:
    target = rebuilt(old_cluster(), []).image
    many = [PartitionRecord(TIERED, number, (1, 2), (), NO_LEADER) for number in range(10, 1_510)]
    costs = list(first_records(EMPTY_IMAGE, replayed(target, many), random.Random(0)))
    assert max(costs) < SLICE_COST
    assert sum(costs) > 3 * SLICE_COST


def _begun(target: MetadataImage) -> MetadataImage:
    return replayed(EMPTY_IMAGE, at_once(first_records(EMPTY_IMAGE, target, random.Random(0))))


def _arrive(image: MetadataImage, broker: int) -> MetadataImage:
    image = replayed(image, decide_registration(image, registration(broker), POLICY, has_session=False).records)
    return beaten(image, broker)[0]


def test_the_first_live_replica_leads_a_partition_that_nobody_has_led() -> None:
    image = replayed(
        EMPTY_IMAGE, at_once(first_records(EMPTY_IMAGE, rebuilt(old_cluster(), []).image, random.Random(0)))
    )
    before = image.partition(TIERED, 0)
    assert before is not None
    image = _arrive(image, 2)
    after = image.partition(TIERED, 0)
    assert after is not None
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2,), before.leader_epoch + 1)
    plain = image.partition(PLAIN, 0)
    assert plain is not None
    assert plain.leader == NO_LEADER  # broker 2 has no replica of it
    assert Cause.FIRST_LEADER in Cause
    image = _arrive(image, 1)
    led = image.partition(TIERED, 0)
    assert led is not None
    assert led.leader == 2


def test_a_partition_that_was_led_waits_for_who_led_it() -> None:
    image = replayed(
        EMPTY_IMAGE, at_once(first_records(EMPTY_IMAGE, rebuilt(old_cluster(), []).image, random.Random(0)))
    )
    gone = PartitionChangeRecord(TIERED, 0, leader=NO_LEADER, isr=(), last_known_leader=1)
    image = _arrive(replayed(image, [gone]), 2)
    partition = image.partition(TIERED, 0)
    assert partition is not None
    assert partition.leader == NO_LEADER
