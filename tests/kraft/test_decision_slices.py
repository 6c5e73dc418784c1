"""Each decision of a controller, asked for as much as a client may ask, over a large cluster: what it does in one go is
bounded. Counted in lines of Python; a loop over all there is of anything would pass the bound several times."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from common.node_settings.shares import ShareSettings
from common.node_settings.tenants import TenantSettings
from kraft.batches import MetadataRecord
from kraft.controller.balance_status import BalanceStatus
from kraft.controller.balance_steps import draining
from kraft.controller.broker_loads import BrokerLoads
from kraft.controller.brokers import decide_heartbeat, decide_registration, decide_unregister
from kraft.controller.cell_duties import CellDuties
from kraft.controller.decisions import DECISIONS, Circumstances, decision_of
from kraft.controller.health_duties import HealthConfig, HealthDuties
from kraft.controller.key_moves import KeyReports
from kraft.controller.key_ranges import range_step
from kraft.controller.move_throttles import rate_lifted
from kraft.controller.partitions import alter_partition
from kraft.controller.policy import ControllerPolicy
from kraft.controller.quota_coordinator import QuotaCoordinator
from kraft.controller.reported_usage import ReportedUsage
from kraft.controller.tenant_deletion import deletion_step
from kraft.controller.tenant_moves import moving
from kraft.controller.usage_rates import PIECE_ROWS_MAX
from kraft.fleet_records import BalanceOperationRecord, OperationKind, OperationState
from kraft.image.delta import MetadataDelta, replayed
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import (
    AclOperation,
    AclPattern,
    AclPermission,
    AclRecord,
    AclResource,
    ApiKeyRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ResourceType,
    ScramCredentialRecord,
    ScramMechanism,
    TenantRecord,
    TenantState,
    TopicRecord,
)
from tests.common.call_count import counted_calls
from tests.kraft.fake_quorum import TestClock
from tests.kraft.images import create_topics, heartbeat, new_topic, registration, with_brokers
from tests.kraft.line_counts import LineCount
from tests.kraft.usage_reports import report, tenant_row
from wire import messages
from wire.apis import ApiKey
from wire.messages import schema_uuid

MANY = 5_000
LINES_MAX = 15_000  # some 2 ms; what looks at each of MANY things with a few lines is more
PIECE_LINES_MAX = 80_000  # of a decision over one piece of partitions, however many there are
SCALED_LIMITS = {"partitions.max": MANY * 4, "acls.max": MANY * 2, "keys.max": MANY}
TENANT, LEAVING, DELETED = "lkc-aaaaaa", "lkc-bbbbbb", "lkc-cccccc"

POLICY = ControllerPolicy(
    default_replication_factor=3,
    min_insync_replicas=2,
    access=TenantSettings(users_max=MANY * 4, acls_max=MANY * 8, tenants_max=MANY * 2),
)
ISR = (0, 1, 2)
Decide = Callable[[MetadataImage], Any]


def number_id(number: int) -> bytes:
    return number.to_bytes(4, "big") * 4


def acl(number: int, name: str, principal: str) -> AclRecord:
    return AclRecord(
        number_id(number),
        AclResource.TOPIC,
        name,
        AclPattern.LITERAL,
        principal,
        "*",
        AclOperation.READ,
        AclPermission.ALLOW,
    )


def topic(number: int, name: str, partitions: int, leader: int, replicas: tuple[int, ...]) -> list[MetadataRecord]:
    made: list[MetadataRecord] = [TopicRecord(name, number_id(number))]
    topic_id = number_id(number)
    made += [PartitionRecord(topic_id, index, replicas, (1, 2), leader, elr=(0,)) for index in range(partitions)]
    return made


@cache
def large_image() -> MetadataImage:
    """MANY topics, of which one has as many partitions, tenants, ACLs of one resource, users, keys, and settings. No
    leader is the preferred one, and a replica of each partition is out of sync."""
    records: list[MetadataRecord] = [
        TenantRecord(TENANT, "active", "default", 1, SCALED_LIMITS),
        TenantRecord(LEAVING, "leaving", "default", 1, SCALED_LIMITS, state=TenantState.MOVING, target_cell="west"),
        TenantRecord(DELETED, "deleted", "default", 1, SCALED_LIMITS, state=TenantState.DELETING),
    ]
    for number in range(MANY):
        records.append(TenantRecord(f"lkc-d{number:05}", f"t{number}", "default", 1))
        records += topic(number, f"{TENANT}_t{number}", 1, leader=1, replicas=ISR)
        records.append(ConfigRecord(ResourceType.TOPIC, f"{TENANT}_t{number}", "retention.ms", "5"))
        records.append(acl(number, "t", f"User:u{number}"))
        records.append(ScramCredentialRecord(f"u{number}", ScramMechanism.SHA_256, b"s", b"k", b"k", 4_096))
    records += topic(MANY, "large", MANY, leader=1, replicas=ISR)
    records += topic(MANY + 1, "without", MANY, leader=-1, replicas=ISR)
    records += topic(MANY + 2, f"{LEAVING}_t", MANY, leader=1, replicas=ISR)
    for number in range(1_000):
        key = f"TK{number:05}"
        records.append(ApiKeyRecord(key, DELETED, "", (), 1))
        records.append(acl(MANY + number, f"{DELETED}_t", f"User:{DELETED}_{key}"))
    image = with_brokers(6)
    for at in range(0, len(records), 2_000):
        image = replayed(image, records[at : at + 2_000])
    return image


def requests() -> Iterator[tuple[str, Any]]:
    """API key and message: its lists are as long as a portion of them, or the whole where none is cut."""
    some = range(50)
    dotted = [new_topic("a.b_c.d_e.f_g.h_i.j.k" + str(n), 1, 3) for n in some]
    yield "CreateTopics, names with periods", create_topics(*dotted[:3])
    yield "CreateTopics of tenants", create_topics(*(new_topic(f"{TENANT}_n.x.y.z{n}", 50, 3) for n in some))
    yield "CreateTopics, one large", create_topics(new_topic("l2", MANY, 3))
    yield "CreateTopics, assigned", create_topics(new_topic("l3", assignments=[[0, 1, 2]] * MANY))
    yield "CreateTopics, assigned of a tenant", create_topics(new_topic(f"{TENANT}_l3", assignments=[[0]] * MANY))
    delete = messages.DeleteTopicsRequest
    states = [delete.DeleteTopicState(name=f"{TENANT}_t{n}") for n in range(MANY)]
    yield "DeleteTopics", delete(topics=states, timeout_ms=1)
    acls = messages.CreateAclsRequest.AclCreation
    creations = [
        acls(
            resource_type=2,
            resource_name="t",
            resource_pattern_type=3,
            principal=f"User:n{n}",
            host="*",
            operation=3,
            permission_type=3,
        )
        for n in range(MANY)
    ]
    yield "CreateAcls of one resource", messages.CreateAclsRequest(creations=creations)
    wanted = messages.DeleteAclsRequest.DeleteAclsFilter
    for label, resource_type, name, pattern in (("all", 1, None, 1), ("by name", 2, "t", 2)):
        one = wanted(
            resource_type_filter=resource_type,
            resource_name_filter=name,
            pattern_type_filter=pattern,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        yield f"DeleteAcls {label}", messages.DeleteAclsRequest(filters=[one] * 3)
    yield from settings_requests()
    more = messages.CreatePartitionsRequest
    grown = more.CreatePartitionsTopic(name="large", count=2 * MANY, assignments=None)
    yield "CreatePartitions", more(topics=[grown], timeout_ms=1, validate_only=False)
    given = [more.CreatePartitionsTopic.CreatePartitionsAssignment(broker_ids=[0, 1, 2])] * MANY
    grown = more.CreatePartitionsTopic(name="large", count=2 * MANY, assignments=given)
    yield "CreatePartitions, assigned", more(topics=[grown], timeout_ms=1, validate_only=False)
    for kind in (0, 1):
        elect = messages.ElectLeadersRequest(election_type=kind, topic_partitions=None, timeout_ms=1)
        yield f"ElectLeaders {kind}", elect
    moves = messages.AlterPartitionReassignmentsRequest
    rows = [moves.ReassignableTopic.ReassignablePartition(partition_index=n, replicas=[3, 4, 5]) for n in range(1_000)]
    yield (
        "AlterPartitionReassignments",
        moves(topics=[moves.ReassignableTopic(name="large", partitions=rows)], allow_replication_factor_change=True),
    )
    yield "ListPartitionReassignments", messages.ListPartitionReassignmentsRequest(topics=None)
    scram = messages.AlterUserScramCredentialsRequest
    upserts = [
        scram.ScramCredentialUpsertion(
            name=f"v{n}", mechanism=1, iterations=4_096, salt=b"salt", salted_password=b"password"
        )
        for n in range(MANY)
    ]
    yield "AlterUserScramCredentials", scram(deletions=[], upsertions=upserts)
    update = messages.UpdateFeaturesRequest.FeatureUpdateKey
    updates = [update(feature=f"f{n}", max_version_level=1, upgrade_type=1) for n in range(MANY)]
    yield "UpdateFeatures", messages.UpdateFeaturesRequest(feature_updates=updates, validate_only=False)
    yield from quota_requests()
    yield from tenants_requests()


def quota_requests() -> Iterator[tuple[str, Any]]:
    quotas = messages.AlterClientQuotasRequest.EntryData
    quota = quotas.OpData(key="producer_byte_rate", value=1.0, remove=False)
    users = [quotas.EntityData(entity_type="user", entity_name=f"v{n}") for n in range(MANY)]
    entries = [quotas(entity=[user], ops=[quota]) for user in users]
    yield "AlterClientQuotas", messages.AlterClientQuotasRequest(entries=entries, validate_only=False)


def settings_requests() -> Iterator[tuple[str, Any]]:
    change = messages.IncrementalAlterConfigsRequest.AlterConfigsResource

    def altered(kind: int, name: str, setting: str, value: str) -> Any:
        setting_of = change.AlterableConfig(name=setting, config_operation=0, value=value)
        return change(resource_type=kind, resource_name=name, configs=[setting_of])

    for label, resources in (
        ("everywhere", [altered(4, "", "min.insync.replicas", "1")]),
        ("nowhere new", [altered(4, "", "min.insync.replicas", "2")]),
        ("one large topic", [altered(2, "without", "min.insync.replicas", "1")]),
        ("many topics", [altered(2, f"{TENANT}_t{n}", "min.insync.replicas", "1") for n in range(MANY)]),
        ("many values", [altered(2, f"{TENANT}_t{n}", "retention.ms", "7") for n in range(MANY)]),
    ):
        yield (
            f"IncrementalAlterConfigs {label}",
            messages.IncrementalAlterConfigsRequest(resources=resources, validate_only=False),
        )


def tenants_requests() -> Iterator[tuple[str, Any]]:
    restore = messages.RestoreTopicRequest
    yield (
        "RestoreTopic",
        restore(
            topic_name="back.a.b.c.d.e.f.g.h.i",
            topic_id=schema_uuid(b"r" * 16),
            replication_factor=3,
            leader_epochs=[1] * MANY,
            configs=[],
            left_out="",
        ),
    )
    yield "CreateTenant", messages.CreateTenantRequest(tenant_name="new", limits=[])
    yield "AlterTenant", messages.AlterTenantRequest(tenant=TENANT, limits=[])
    yield "DeleteTenant", messages.DeleteTenantRequest(tenant=DELETED)
    yield "MoveTenant", messages.MoveTenantRequest(tenant=TENANT, cell="default")
    yield "DescribeCells", messages.DescribeCellsRequest(cells=None)
    yield "DescribeBalance", messages.DescribeBalanceRequest()
    yield "PlanBalance", messages.PlanBalanceRequest(toward=[], moves_max=100)
    yield "AlterBalance", messages.AlterBalanceRequest(act=6, brokers=[1])
    yield "ListBalanceMoves", messages.ListBalanceMovesRequest(limit=1_000)
    yield "AlterCell", messages.AlterCellRequest(cell_name="west", limits=[])
    yield "AlterBrokerHealth", messages.AlterBrokerHealthRequest(action=1, broker_id=1)
    yield (
        "DescribeUsage",
        messages.DescribeUsageRequest(brokers=None, include_tenants=True, include_partitions=True),
    )
    reserved = messages.AlterTenantRequest.AlteredTenantLimit(name="ingress.reserved", value=5)
    yield "AlterTenant that reserves", messages.AlterTenantRequest(tenant=TENANT, limits=[reserved])
    yield "DescribeShares", messages.DescribeSharesRequest(tenant=None)


CASES = dict(requests())


@cache
def health_duties() -> HealthDuties:
    return HealthDuties(POLICY, TestClock(), HealthConfig(), 5.0)


@cache
def reported_by_all() -> ReportedUsage:
    """Every broker has named every tenant."""
    usage, image = ReportedUsage(), large_image()
    rows = [tenant_row(tenant, 1) for tenant in image.tenants]
    for broker in image.brokers.values():
        for piece, first in enumerate(range(0, len(rows), PIECE_ROWS_MAX)):
            some = rows[first : first + PIECE_ROWS_MAX]
            is_last = first + PIECE_ROWS_MAX >= len(rows)
            usage.take(image, report(broker.broker_id, broker.epoch, piece=piece, is_last=is_last, tenants=some), 0.5)
    return usage


@pytest.mark.parametrize("label", CASES)
def test_no_slice_of_a_decision_is_long(label: str) -> None:
    message = CASES[label]
    image = large_image()
    quotas = QuotaCoordinator(reported_by_all(), POLICY, ShareSettings())
    for tenant in image.tenants:
        quotas.unfair.add(tenant, 5, 1)
    at = Circumstances(
        POLICY, random.Random(1), 1, BrokerLoads(), reported_by_all(), BalanceStatus(), 1.0, health_duties(), quotas
    )
    decide = decision_of(message.API_KEY, message, at)
    assert decide is not None
    count = LineCount()
    decision = count.of(lambda: decide(image))
    assert decision.reply is not None
    assert count.most <= LINES_MAX, f"{count.most} lines in one go: {count.where}"


def test_every_decision_that_a_client_can_ask_for_is_looked_at() -> None:
    of_one_key = {ApiKey.CREATE_API_KEY, ApiKey.DELETE_API_KEY}
    short = of_one_key | {ApiKey.ALTER_CONFIGS}  # as IncrementalAlterConfigs
    assert {message.API_KEY for message in CASES.values()} | short == set(DECISIONS)


def of_brokers(image: MetadataImage) -> dict[str, Callable[[], Any]]:
    beat = heartbeat(image, 1, want_fence=True)
    again = registration(1, life=2, previous_epoch=image.brokers[1].epoch)
    data = messages.AlterPartitionRequest.TopicData
    change = data.PartitionData
    members = [change.BrokerState(broker_id=b, broker_epoch=image.brokers[b].epoch) for b in ISR]
    rows = [
        change(
            partition_index=n, leader_epoch=0, new_isr_with_epochs=members, leader_recovery_state=0, partition_epoch=0
        )
        for n in range(MANY)
    ]
    joining = messages.AlterPartitionRequest(
        broker_id=1,
        broker_epoch=image.brokers[1].epoch,
        topics=[data(topic_id=schema_uuid(number_id(MANY)), partitions=rows)],
    )
    gone = messages.UnregisterBrokerRequest(broker_id=1)
    emptied = BalanceOperationRecord(1, OperationKind.DRAIN, (1,), OperationState.RUNNING)
    leaving, deleted, rng = image.tenants[LEAVING], image.tenants[DELETED], random.Random(1)
    return {
        "fence": lambda: decide_heartbeat(image, beat, POLICY, moves_seen=False),
        "no room": lambda: decide_heartbeat(image, heartbeat(image, 1, lacks_room=True), POLICY, moves_seen=False),
        "registration": lambda: decide_registration(image, again, POLICY, has_session=False),
        "unregister": lambda: decide_unregister(image, gone, POLICY),
        "alter partition": lambda: alter_partition(image, joining, 3, POLICY),
        "tenant move": lambda: moving(image, POLICY, leaving, rng, KeyReports(), 0.0),
        "tenant deletion": lambda: deletion_step(image, deleted, groups_are_gone=False),
        "ranges": lambda: range_step(image, POLICY, rng),
        "drain": lambda: draining(image, POLICY, emptied, 1),
    }


@pytest.mark.parametrize("label", [
    "fence", "no room", "registration", "unregister", "alter partition", "tenant move", "tenant deletion", "ranges",
    "drain",
])  # fmt: skip
def test_no_slice_of_what_nodes_and_duties_decide_is_long(label: str) -> None:
    count = LineCount()
    count.of(of_brokers(large_image())[label])
    assert count.most <= PIECE_LINES_MAX, f"{count.most} lines in one go: {count.where}"


@pytest.mark.parametrize(("old", "new"), [(EMPTY_IMAGE, large_image), (large_image, EMPTY_IMAGE)], ids=["to", "from"])
def test_no_slice_of_a_jump_is_long(old: Any, new: Any) -> None:
    before, after = (image() if callable(image) else image for image in (old, new))
    count = LineCount()
    delta = count.of(lambda: differing(before, after))
    assert len(delta.access.tenants.changed) > MANY
    assert count.most <= LINES_MAX, f"{count.most} lines in one go: {count.where}"


def test_a_move_that_ends_among_many_tenants_costs_no_look_at_each() -> None:
    image = large_image()
    with counted_calls() as count:
        rate_lifted(image, POLICY, LEAVING)
    assert count.calls < MANY / 10


def test_many_changed_topics_are_not_looked_at_for_the_one_with_ranges() -> None:
    duties, delta = CellDuties(POLICY, random.Random(1)), MetadataDelta(large_image())
    delta.replay_all(PartitionChangeRecord(number_id(number), 0, isr=(1,)) for number in range(MANY))
    image = delta.image()
    with counted_calls() as count:
        duties.applied(delta, image)
    assert count.calls < MANY / 10
