"""Tenants, their keys and cells: where tenants go, what keys may do, that topics stay in their cell."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ErrorCode
from kraft.controller.api_keys import decide_delete_api_key
from kraft.controller.cells import decide_describe_cells
from kraft.controller.tenants import (
    decide_alter_tenant,
)
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.tenant_usage import topics_of
from kraft.records import (
    AclOperation,
    AclPattern,
    AclResource,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    TenantState,
)
from tests.kraft.decisions import decide_alter_partition_reassignments, decide_create_partitions, usage_by_tenant
from tests.kraft.images import POLICY, new_topic
from tests.kraft.tenants import (
    CELLS,
    alter_cell,
    cells_of_three,
    created,
    in_cell,
    key,
    replicas_of,
    tenant_of,
    verifier,
    with_topics,
)
from wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterTenantRequest,
    CreatePartitionsRequest,
    DeleteApiKeyRequest,
    DescribeCellsRequest,
)

# tenants and cells ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "A", "a b", "a_b", "ä", "x" * 41])
def test_a_tenants_name_is_plain(name: str) -> None:
    image, reply = created(cells_of_three(), name)
    assert reply.error_code == ErrorCode.INVALID_REQUEST
    assert not image.tenants


def test_names_are_unique_and_ids_are_their_own() -> None:
    image = cells_of_three()
    for number in range(20):
        image, reply = created(image, f"t{number}", seed=number % 2)  # chance that repeats itself gives other ids
        assert reply.error_code == 0
    assert len(image.tenants) == 20
    _, reply = created(image, "t3")
    assert reply.error_code == ErrorCode.DUPLICATE_RESOURCE


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=2, max_size=6), st.integers(0, 1 << 30))
def test_a_tenant_goes_to_the_lighter_of_two_drawn_cells(partitions: list[int], seed: int) -> None:
    """Never to the heaviest one, unless two are drawn that are as heavy."""
    cells = {f"c{number}": (number,) for number in range(len(partitions))}
    image = cells_of_three(cells)
    policy = replace(POLICY, default_replication_factor=1)
    for number, count in enumerate(partitions):
        if count:
            image, _ = with_topics(image, new_topic(f"t{number}", assignments=[[number]] * count))
    _, reply = created(image, policy=policy, seed=seed)
    assert reply.error_code == 0
    heavier = [count for name, count in zip(cells, partitions, strict=True) if name != reply.cell]
    assert partitions[int(reply.cell[1:])] <= max(heavier)


def test_each_cell_may_be_drawn() -> None:
    image = cells_of_three({f"c{number}": (number,) for number in range(4)})
    policy = replace(POLICY, default_replication_factor=1)
    drawn = {created(image, policy=policy, seed=seed)[1].cell for seed in range(60)}
    assert drawn == {"c0", "c1", "c2", "c3"}


@pytest.mark.parametrize("why", ["closed", "brokers", "replicas", "tenants"])
def test_a_full_cell_refuses_with_a_sentence_and_others_take_the_tenant(why: str) -> None:
    image = cells_of_three()
    if why == "closed":
        image, _ = alter_cell(image, "east", 0)
    elif why == "brokers":
        epoch = image.brokers[1].epoch
        image = replayed(image, [BrokerRegistrationChangeRecord(1, epoch, fenced=True)])
    elif why == "replicas":
        image, _ = with_topics(image, new_topic("t", assignments=[[0, 1, 2]] * 5))
        image, _ = alter_cell(image, "east", replicas_per_broker_max=5)
    else:
        image, _ = created(image, "first", cell="east")
        image, _ = alter_cell(image, "east", tenants_max=1)
    after, reply = created(image, cell="east")
    assert reply.error_code == ErrorCode.POLICY_VIOLATION
    assert reply.error_message.startswith("Cell east")
    assert reply.error_message.endswith(".")
    assert after is not None
    assert {created(image, seed=seed)[1].cell for seed in range(20)} == {"west"}
    image, _ = alter_cell(image, "west", 0)
    _, reply = created(image)
    assert reply.error_code == ErrorCode.POLICY_VIOLATION
    assert "No cell has room" in reply.error_message


def test_an_unknown_cell_and_an_unknown_limit_are_refused() -> None:
    image = cells_of_three()
    assert created(image, cell="north")[1].error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert created(image, limits={"nonsense": 1})[1].error_code == ErrorCode.INVALID_REQUEST
    assert alter_cell(image, "east", nonsense=1)[1] == ErrorCode.INVALID_REQUEST
    assert alter_cell(image, "a/b")[1] == ErrorCode.INVALID_REQUEST


def test_cells_are_described_with_what_they_hold() -> None:
    image, _ = alter_cell(cells_of_three(), "east", tenants_max=7)
    image, _ = created(image, cell="east")
    image, _ = with_topics(image, new_topic(f"{tenant_of(image).prefix}t", partitions=4, factor=3))
    (east, west) = decide_describe_cells(image, DescribeCellsRequest(), POLICY).reply.cells
    assert (east.name, east.replicas, east.tenant_count, east.tenants_max, list(east.tenants)) == (
        "east",
        12,
        1,
        7,
        ["a"],
    )
    assert [broker.replicas for broker in east.brokers] == [4, 4, 4]
    assert east.load == 12 / 12_000
    assert (west.name, west.replicas, west.full_reason) == ("west", 0, None)


def test_networks_and_limits_are_changed_and_checked() -> None:
    image, tenant = in_cell("east")

    def altered(**fields: Any) -> tuple[MetadataImage, int]:
        limits = [AlterTenantRequest.AlteredTenantLimit(name=n, value=v) for n, v in fields.pop("limits", {}).items()]
        decision = decide_alter_tenant(image, AlterTenantRequest(tenant="a", limits=limits, **fields), POLICY)
        return replayed(image, decision.records), decision.reply.error_code

    after, code = altered(limits={"partitions.max": 5}, allow_networks=["10.1.2.3/8", "::1"])
    found = after.tenants[tenant.id]
    assert (code, dict(found.limits), found.allow_networks) == (0, {"partitions.max": 5}, ("10.0.0.0/8", "::1/128"))
    assert found.epoch == tenant.epoch + 1
    assert altered()[0].tenants[tenant.id] == tenant
    assert altered(deny_networks=["300.0.0.0/8"])[1] == ErrorCode.INVALID_REQUEST
    assert altered(deny_networks=[f"10.0.{n}.0/24" for n in range(101)])[1] == ErrorCode.INVALID_REQUEST
    assert altered(allow_networks=["10.0.0.0/8"] * 101)[1] == ErrorCode.INVALID_REQUEST  # before any is parsed
    unknown = decide_alter_tenant(image, AlterTenantRequest(tenant="b", limits=[]), POLICY)
    assert unknown.reply.error_code == ErrorCode.RESOURCE_NOT_FOUND


def test_nothing_is_made_before_all_nodes_know_the_records() -> None:
    image, _ = in_cell("east")
    image = replayed(image, [FeatureLevelRecord("tidelog.version", 0)])
    assert alter_cell(image, "east", 0)[1] == ErrorCode.UNSUPPORTED_VERSION
    assert created(image, "b")[1].error_code == ErrorCode.UNSUPPORTED_VERSION
    assert key(image, "admin")[1].error_code == ErrorCode.UNSUPPORTED_VERSION
    altered = decide_alter_tenant(image, AlterTenantRequest(tenant="a", limits=[]), POLICY)
    assert altered.reply.error_code == ErrorCode.UNSUPPORTED_VERSION


# topics --------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(CELLS)), st.integers(1, 30), st.integers(1, 3), st.integers(1, 10))
def test_a_tenants_partitions_are_on_all_brokers_of_its_cell_and_on_no_others(
    cell: str, partitions: int, factor: int, more: int
) -> None:
    image, tenant = in_cell(cell)
    name = f"{tenant.prefix}t"
    image, (result,) = with_topics(image, new_topic(name, partitions=partitions, factor=factor))
    assert result.error_code == 0
    wanted = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=partitions + more, assignments=None)
    decision = decide_create_partitions(image, CreatePartitionsRequest(topics=[wanted]), POLICY, random.Random(3))
    image = replayed(image, decision.records)
    placed = Counter(replica for replicas in replicas_of(image, name) for replica in replicas)
    assert len(replicas_of(image, name)) == partitions + more
    assert set(placed) <= set(CELLS[cell])
    if (partitions + more) * factor >= 6:
        assert set(placed) == set(CELLS[cell])
    assert usage_by_tenant(image)[tenant.id].to_move == 0


def test_a_factor_larger_than_the_cell_is_refused_although_the_cluster_has_more_brokers() -> None:
    image, tenant = in_cell("east")
    _, (result,) = with_topics(image, new_topic(f"{tenant.prefix}t", partitions=1, factor=4))
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_replicas_are_kept_in_the_cell_also_where_they_are_given() -> None:
    image, tenant = in_cell("east")
    name = f"{tenant.prefix}t"
    _, (result,) = with_topics(image, new_topic(name, assignments=[[0, 1, 3]]))
    assert result.error_code == ErrorCode.INVALID_REPLICATION_ASSIGNMENT
    image, results = with_topics(image, new_topic(name, assignments=[[0, 1]]), new_topic("plain", assignments=[[0, 3]]))
    assert [result.error_code for result in results] == [0, 0]
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    assignment = topic.CreatePartitionsAssignment(broker_ids=[0, 4])
    more = CreatePartitionsRequest(topics=[topic(name=name, count=2, assignments=[assignment])])
    (refused,) = decide_create_partitions(image, more, POLICY, random.Random(1)).reply.results
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_ASSIGNMENT
    moved = AlterPartitionReassignmentsRequest.ReassignableTopic

    def reassigned(topic_name: str, replicas: list[int]) -> int:
        rows = [moved.ReassignablePartition(partition_index=0, replicas=replicas)]
        request = AlterPartitionReassignmentsRequest(topics=[moved(name=topic_name, partitions=rows)])
        (row,) = decide_alter_partition_reassignments(image, request, POLICY).reply.responses
        return int(row.partitions[0].error_code)

    assert reassigned(name, [3, 4]) == ErrorCode.INVALID_REPLICATION_ASSIGNMENT
    assert reassigned(name, [1, 2]) == 0
    assert reassigned("plain", [1, 4]) == 0


def test_a_tenants_partitions_are_bounded_over_all_its_topics() -> None:
    image, tenant = in_cell("east", **{"partitions.max": 10})
    sizes = {"x": 6, "y": 5, "z": 4}
    image, results = with_topics(image, *(new_topic(f"{tenant.prefix}{n}", size, 1) for n, size in sizes.items()))
    assert [result.error_code for result in results] == [0, ErrorCode.POLICY_VIOLATION, 0]
    assert "10" in results[1].error_message
    more = CreatePartitionsRequest.CreatePartitionsTopic(name=f"{tenant.prefix}x", count=7, assignments=None)
    decision = decide_create_partitions(image, CreatePartitionsRequest(topics=[more]), POLICY, random.Random(3))
    assert decision.reply.results[0].error_code == ErrorCode.POLICY_VIOLATION
    _, (given_too_many,) = with_topics(image, new_topic(f"{tenant.prefix}w", assignments=[[0], [1]]))
    assert given_too_many.error_code == ErrorCode.POLICY_VIOLATION
    other, _ = created(image, "b", cell="east")
    _, (theirs,) = with_topics(other, new_topic(f"{tenant_of(other, 'b').prefix}x", partitions=9, factor=1))
    assert theirs.error_code == 0


def test_a_cell_without_room_takes_no_more_partitions() -> None:
    image, tenant = in_cell("east")
    image, _ = alter_cell(image, "east", replicas_per_broker_max=4)
    names = [f"{tenant.prefix}{name}" for name in "xyz"]
    _, results = with_topics(image, *(new_topic(name, partitions=2, factor=3) for name in names))
    assert [result.error_code for result in results] == [0, 0, ErrorCode.POLICY_VIOLATION]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("lkc-zzzzzz_t", "There is no tenant lkc-zzzzzz, and"),
        ("lkc-zzzzzz_", "the empty string is not allowed"),
        ("lkc-zzzzzz.t", "a tenant's id and a dot are reserved"),
    ],
)
def test_a_name_like_a_tenants_is_for_that_tenant_alone(name: str, told: str) -> None:
    _, (result,) = with_topics(cells_of_three(), new_topic(name, partitions=1, factor=1))
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert told in result.error_message


def test_an_operators_topic_for_a_tenant_is_that_tenants() -> None:
    image, tenant = in_cell("east")
    image, (result,) = with_topics(image, new_topic(f"{tenant.prefix}t", partitions=1, factor=1))
    assert result.error_code == ErrorCode.NONE
    assert [topic.name for topic in topics_of(image, tenant)] == [f"{tenant.prefix}t"]
    image = replayed(image, [msgspec.structs.replace(tenant.record(), state=TenantState.DELETING)])
    _, (refused,) = with_topics(image, new_topic(f"{tenant.prefix}u", partitions=1, factor=1))
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"Tenant {tenant.id} is being deleted and takes no new topics.",
    )


def test_other_names_with_the_same_beginning_are_free() -> None:
    names = ("lkc", "lkc-ZZZZZZ_t", "lkc-zzzzzzz_t")
    image, results = with_topics(cells_of_three(), *(new_topic(name, partitions=1, factor=1) for name in names))
    assert [result.error_code for result in results] == [0, 0, 0]
    assert len(image.topics) == 3


# keys ----------------------------------------------------------------------------------------------------------


def test_roles_of_a_key_are_acls_of_its_principal_on_its_tenants_names_alone() -> None:
    image, tenant = in_cell("east")
    image, reply = key(image, "read:fl", "write")
    principal = f"User:{tenant.id}_{reply.key_id}"
    assert image.keys[reply.key_id].principal == principal
    assert {(a.resource_type, a.resource_name, a.operation) for a in image.acls} == {
        (AclResource.TOPIC, f"{tenant.prefix}fl", AclOperation.READ),
        (AclResource.GROUP, f"{tenant.prefix}fl", AclOperation.READ),
        (AclResource.TOPIC, tenant.prefix, AclOperation.WRITE),
        (AclResource.TRANSACTIONAL_ID, tenant.prefix, AclOperation.WRITE),
    }
    assert {a.principal for a in image.acls} == {principal}
    assert {a.pattern_type for a in image.acls} == {AclPattern.PREFIXED}
    image, _ = key(image, "admin")
    assert all(acl.owner == tenant.id and acl.resource_name.startswith(tenant.prefix) for acl in image.acls)


@pytest.mark.parametrize(
    ("role", "told"),
    [
        ("", "there are admin, read:PREFIX and write:PREFIX"),
        ("owner", "there are admin, read:PREFIX and write:PREFIX"),
        ("admin:x", "there are admin, read:PREFIX and write:PREFIX"),
        ("read:", "the role for all names is read, without a colon"),
        ("write:", "the role for all names is write, without a colon"),
        ("read:bad name", "no topic's name can begin with 'bad name'"),
        ("write:*", "the role for all names is write, without a colon"),
        ("read:a\n", "no topic's name can begin"),
        ("read:" + "x" * 201, "at most 200 characters"),
    ],
)
def test_what_is_no_role_is_refused_with_the_reason(role: str, told: str) -> None:
    image, _ = in_cell("east")
    after, reply = key(image, "admin", role)
    assert reply.error_code == ErrorCode.INVALID_REQUEST
    assert told in reply.error_message
    assert not after.keys


@pytest.mark.parametrize("role", ["admin", "read", "write", "read:a", "write:.a-B_9", "read:" + "x" * 200])
def test_what_is_a_role_is_taken(role: str) -> None:
    after, reply = key(in_cell("east")[0], role)
    assert reply.error_code == ErrorCode.NONE
    assert after.keys


@pytest.mark.parametrize(
    "verifiers",
    [
        [],
        [verifier(1)],
        [verifier(1), verifier(1)],
        [verifier(1), verifier(2), verifier(1)],
        [verifier(1), verifier(2, iterations=4095)],
        [verifier(1), verifier(2, stored_key=b"short")],
        [verifier(1), verifier(2, server_key=b"")],
        [verifier(1, salt=b"salt"), verifier(2)],
        [verifier(1), verifier(3)],
    ],
)
def test_a_key_needs_a_sound_verifier_for_each_mechanism(verifiers: list[Any]) -> None:
    image, _ = in_cell("east")
    after, reply = key(image, "admin", verifiers=verifiers)
    assert reply.error_code in (ErrorCode.UNACCEPTABLE_CREDENTIAL, ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    assert not after.keys
    assert not after.scram


def test_a_renewed_key_has_new_verifiers_and_its_old_roles() -> None:
    image, _ = in_cell("east")
    image, reply = key(image, "read:x")
    after, again = key(image, key_id=reply.key_id, verifiers=[verifier(1, salt=b"n" * 16), verifier(2)])
    assert again.key_id == reply.key_id
    assert after.keys[reply.key_id] == image.keys[reply.key_id]
    assert after.acls is image.acls
    assert after.scram[reply.key_id] != image.scram[reply.key_id]
    assert key(image, key_id="TKABCDEFGHIJKLMN")[1].error_code == ErrorCode.RESOURCE_NOT_FOUND


def test_a_revoked_key_leaves_nothing_and_the_others_all() -> None:
    image, _ = in_cell("east")
    image, first = key(image, "admin")
    kept = image
    image, second = key(image, "admin", "read:x")
    decision = decide_delete_api_key(image, DeleteApiKeyRequest(key_id=second.key_id))
    image = replayed(image, decision.records)
    assert list(image.keys) == [first.key_id] == list(image.scram)
    assert {acl.id for acl in image.acls} == {acl.id for acl in kept.acls}
    again = decide_delete_api_key(image, DeleteApiKeyRequest(key_id=second.key_id))
    assert again.reply.error_code == ErrorCode.RESOURCE_NOT_FOUND


def test_keys_and_their_acls_are_bounded() -> None:
    image, _ = in_cell("east", **{"keys.max": 2, "acls.max": 5})
    image, reply = key(image, "admin")
    assert reply.error_code == 0
    image, reply = key(image, "admin")
    assert reply.error_code == ErrorCode.POLICY_VIOLATION
    assert len(image.keys) == len(image.scram) == 1
    image, reply = key(image)
    assert reply.error_code == 0
    assert key(image)[1].error_code == ErrorCode.POLICY_VIOLATION
