"""Tenants that move to another cell, and such that are deleted: step by step, from any point."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ErrorCode
from common.node_settings.tenants import TenantSettings
from common.pacing import at_once
from kraft.batches import MetadataRecord
from kraft.controller.key_moves import KeyReports
from kraft.controller.move_throttles import FOLLOWER_RATE, LEADER_RATE, REPLICAS
from kraft.controller.policy import ControllerPolicy
from kraft.controller.tenant_deletion import deletion_step
from kraft.controller.tenant_moves import moving
from kraft.controller.tenants import decide_delete_tenant
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.records import ConfigRecord, RegisterBrokerRecord, ResourceType, TenantState
from tests.kraft.decisions import decide_alter_partition, decide_move_tenant, usage_by_tenant
from tests.kraft.images import POLICY, alter_partition, new_topic
from tests.kraft.tenants import (
    CELLS,
    alter_cell,
    created,
    in_cell,
    key,
    replicas_of,
    tenant_of,
    with_topics,
)
from wire.messages import (
    DeleteTenantRequest,
    MoveTenantRequest,
)

# moves ---------------------------------------------------------------------------------------------------------


def move(image: MetadataImage, cell: str | None, policy: ControllerPolicy = POLICY) -> tuple[MetadataImage, Any]:
    decision = decide_move_tenant(image, MoveTenantRequest(tenant="a", cell=cell), policy, random.Random(1))
    return replayed(image, decision.records), decision.reply


def caught_up(image: MetadataImage, partition: Any) -> MetadataImage:
    """The leader finds all replicas in sync."""
    request = alter_partition(image, partition, list(partition.replicas))
    decision = decide_alter_partition(image, request, 3, POLICY)
    assert decision.reply.error_code == 0
    return replayed(image, decision.records)


def moving_tenant(partitions: int = 7) -> tuple[MetadataImage, TenantImage]:
    image, tenant = in_cell("east")
    image, _ = with_topics(image, new_topic(f"{tenant.prefix}t", partitions=partitions, factor=3))
    image, _ = with_topics(image, new_topic(f"{tenant.prefix}u", partitions=2, factor=2))
    image, reply = move(image, "west")
    assert (reply.error_code, reply.cell) == (0, "west")
    return image, image.tenants[tenant.id]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(0, 1 << 30), st.booleans())
def test_a_move_ends_in_the_other_cell_with_few_partitions_moving_at_a_time(
    most: int, seed: int, restarts: bool
) -> None:
    """Whoever the controller is, and in whatever order replicas catch up, no partition loses its ISR on the way."""
    policy = replace(POLICY, access=TenantSettings(move_partitions_max=most, move_bytes_per_second=1_000))
    image, tenant = moving_tenant()
    rng = random.Random(seed)
    for _ in range(500):
        tenant = image.tenants[tenant.id]
        if tenant.state is TenantState.ACTIVE:
            break
        if restarts:
            rng = random.Random(rng.random())
        step = at_once(moving(image, policy, tenant, rng, KeyReports(), 0.0))
        image = replayed(image, step.records)
        running = [p for p in image.topics.partitions() if p.is_reassigning]
        assert len(running) <= most
        assert all(len(p.isr) >= 2 for p in image.topics.partitions())
        if running:
            assert image.configs.cluster()[LEADER_RATE] == "1000"
            assert all(image.configs.topic(t.name)[REPLICAS[0]] == "*" for t in image.topics if _is_moving(t))
            image = caught_up(image, rng.choice(running))
    assert (tenant.state, tenant.cell, tenant.target_cell) == (TenantState.ACTIVE, "west", None)
    for topic in image.topics:
        assert all(set(p.replicas) <= set(CELLS["west"]) for p in topic.partitions.values())
        assert [len(p.replicas) for p in topic.partitions.values()] == [3 if topic.name.endswith("t") else 2] * len(
            topic.partitions
        )
        assert not image.configs.topic(topic.name)
    assert not image.configs.cluster()


def _is_moving(topic: Any) -> bool:
    return any(partition.is_reassigning for partition in topic.partitions.values())


def test_topics_that_are_made_while_their_tenant_moves_are_made_where_it_goes() -> None:
    image, tenant = moving_tenant()
    image, (result,) = with_topics(image, new_topic(f"{tenant.prefix}new", partitions=3, factor=3))
    assert result.error_code == 0
    assert all(set(replicas) == set(CELLS["west"]) for replicas in replicas_of(image, f"{tenant.prefix}new"))


def test_an_operators_throttle_outlives_a_move() -> None:
    image, tenant = moving_tenant()
    image = replayed(image, [ConfigRecord(ResourceType.BROKER, "", FOLLOWER_RATE, "77")])
    for _ in range(100):
        if image.tenants[tenant.id].state is TenantState.ACTIVE:
            break
        image = replayed(
            image, at_once(moving(image, POLICY, image.tenants[tenant.id], random.Random(1), KeyReports(), 0.0)).records
        )
        for partition in [p for p in image.topics.partitions() if p.is_reassigning]:
            image = caught_up(image, partition)
    assert dict(image.configs.cluster()) == {FOLLOWER_RATE: "77"}


def test_a_move_can_be_taken_back_also_when_the_old_cell_is_full() -> None:
    image, tenant = moving_tenant()
    image = replayed(image, at_once(moving(image, POLICY, tenant, random.Random(1), KeyReports(), 0.0)).records)
    image, _ = alter_cell(image, "east", 0)
    image, reply = move(image, "east")
    assert (reply.error_code, reply.cell) == (0, "east")
    for _ in range(100):
        tenant = image.tenants[tenant.id]
        if tenant.state is TenantState.ACTIVE:
            break
        image = replayed(image, at_once(moving(image, POLICY, tenant, random.Random(1), KeyReports(), 0.0)).records)
        for partition in [p for p in image.topics.partitions() if p.is_reassigning]:
            image = caught_up(image, partition)
    assert tenant.cell == "east"
    assert all(set(p.replicas) <= set(CELLS["east"]) for p in image.topics.partitions())


def test_a_move_is_refused_where_there_is_no_room_for_all() -> None:
    image, tenant = in_cell("east")
    image, _ = with_topics(image, new_topic(f"{tenant.prefix}t", partitions=10, factor=3))
    image, _ = alter_cell(image, "west", replicas_per_broker_max=9)
    after, reply = move(image, "west")
    assert reply.error_code == ErrorCode.POLICY_VIOLATION
    assert after.tenants[tenant.id] == tenant
    image, _ = alter_cell(image, "west", replicas_per_broker_max=10)
    assert move(image, "west")[1].error_code == 0
    assert move(image, None)[1].cell == "west"
    assert move(image, "north")[1].error_code == ErrorCode.RESOURCE_NOT_FOUND
    stays, reply = move(image, "east")
    assert reply.error_code == 0
    assert stays.tenants[tenant.id] == tenant


def test_what_lies_outside_a_tenants_cell_is_gathered_there() -> None:
    image, tenant = in_cell("east")
    image, _ = with_topics(image, new_topic(f"{tenant.prefix}t", partitions=4, factor=3))
    record = image.brokers[5]
    for broker, cell in ((2, "west"), (5, "east")):  # two brokers change places
        new = RegisterBrokerRecord(broker, bytes([40 + broker]) * 16, (), record.rack, fenced=False, cell=cell)
        image = replayed(image, [new])
    assert usage_by_tenant(image)[tenant.id].to_move == 4
    image, reply = move(image, "east")
    assert reply.cell == "east"
    for _ in range(100):
        tenant = image.tenants[tenant.id]
        if tenant.state is TenantState.ACTIVE:
            break
        image = replayed(image, at_once(moving(image, POLICY, tenant, random.Random(1), KeyReports(), 0.0)).records)
        for partition in [p for p in image.topics.partitions() if p.is_reassigning]:
            image = caught_up(image, partition)
    assert (tenant.cell, tenant.state) == ("east", TenantState.ACTIVE)
    assert all(set(p.replicas) == {0, 1, 5} for p in image.topics.partitions())


# deletion ------------------------------------------------------------------------------------------------------


def test_a_deleted_tenant_goes_in_steps_from_any_point_and_leaves_nothing_but_others() -> None:
    image, tenant = in_cell("east", **{"acls.max": 3_000})
    image, _ = created(image, "b", cell="east")
    other = tenant_of(image, "b")
    image, _ = with_topics(image, new_topic(f"{other.prefix}t", partitions=1, factor=3), new_topic("plain", 1, 1))
    image, _ = with_topics(image, *(new_topic(f"{tenant.prefix}{n}", 1, 1) for n in range(150)))
    for _ in range(3):
        image, _ = key(image, "admin")
    decision = decide_delete_tenant(image, DeleteTenantRequest(tenant=tenant.id), POLICY)
    image = replayed(image, decision.records)
    assert not image.keys, "nobody of the tenant logs in from the first commit on"
    assert not image.scram
    assert not image.tenants[tenant.id].may_log_in
    assert not decide_delete_tenant(image, DeleteTenantRequest(tenant="a"), POLICY).records
    _, (refused,) = with_topics(image, new_topic(f"{tenant.prefix}late", 1, 1))
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert key(image, "admin")[1].error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert move(image, "west")[1].error_code == ErrorCode.INVALID_REQUEST
    steps = 0
    while records := deletion_step(image, image.tenants[tenant.id], groups_are_gone=False):
        assert len(records) <= 1_100
        image = replayed(image, records)
        steps += 1
    assert steps > 1
    assert tenant.id in image.tenants, "its groups are still there"
    image = replayed(image, deletion_step(image, image.tenants[tenant.id], groups_are_gone=True))
    assert list(image.tenants) == [other.id]
    assert sorted(topic.name for topic in image.topics) == [f"{other.prefix}t", "plain"]
    assert not len(image.acls)


def test_a_tenant_with_topics_stays_where_topics_cannot_be_deleted() -> None:
    image, tenant = in_cell("east")
    policy = replace(POLICY, delete_topic_enable=False)
    records: list[MetadataRecord] = decide_delete_tenant(image, DeleteTenantRequest(tenant="a"), policy).records
    assert records
    image, _ = with_topics(image, new_topic(f"{tenant.prefix}t", 1, 1))
    refused = decide_delete_tenant(image, DeleteTenantRequest(tenant="a"), policy)
    assert refused.reply.error_code == ErrorCode.TOPIC_DELETION_DISABLED
    assert not refused.records
