"""Partitions are created and deleted no faster than quotas allow, as in Apache Kafka (KIP-599)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ErrorCode, ProtocolError
from common.pacing import at_once
from common.settings import INT_MAX
from kraft.controller.mutation_quotas import UNBOUNDED, MutationQuota, MutationQuotas
from kraft.controller.policy import ControllerPolicy
from kraft.controller.topics import create_partitions, create_topics, delete_topics
from kraft.fleet_records import ClientQuotaRecord
from kraft.image.client_quotas import CLIENT_ID, TENANT, USER, entity_of
from kraft.image.delta import replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import Endpoint, RegisterBrokerRecord, TenantRecord
from wire.apis import ApiKey
from wire.messages import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest

CREATE, DELETE, GROW = int(ApiKey.CREATE_TOPICS), int(ApiKey.DELETE_TOPICS), int(ApiKey.CREATE_PARTITIONS)
POLICY = ControllerPolicy()
TENANT_A = "lkc-aaaaaa"
EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
BROKER = RegisterBrokerRecord(0, bytes(16), (Endpoint("INTERNAL", "h", 1),), None, fenced=False)


def with_quota(rate: float, names: dict[str, str | None] | None = None, image: MetadataImage | None = None) -> Any:
    entity = entity_of({USER: "alice"} if names is None else names)
    base = replayed(EMPTY_IMAGE, [BROKER]) if image is None else image
    return replayed(base, [ClientQuotaRecord(entity, {"controller_mutation_rate": rate})])


def quota_of(
    quotas: MutationQuotas, image: MetadataImage, now: float, *, user: str = "alice", key: int = CREATE,
    version: int = 7, client_id: str = "c",
) -> MutationQuota:  # fmt: skip
    return quotas.of(image, f"User:{user}", client_id, key, version, now)


def takes(quota: MutationQuota, topic: str, partitions: int) -> bool:
    try:
        quota.take(topic, partitions)
    except ProtocolError as error:
        return error.code != EXCEEDED
    return True


def test_a_bucket_may_go_into_debt_and_refuses_until_it_is_paid() -> None:
    quotas, image = MutationQuotas(POLICY), with_quota(2.0)
    first = quota_of(quotas, image, 0.0)
    assert takes(first, "a", 21) and first.throttle_ms == 0
    assert takes(first, "b", 11), "one token is left, which is enough for any number"
    assert not takes(first, "c", 1) and first.throttle_ms == 5_000
    early, late = quota_of(quotas, image, 4.9), quota_of(quotas, image, 5.0)
    assert not takes(early, "c", 1) and early.throttle_ms == 100
    assert takes(late, "c", 1) and late.throttle_ms == 0


def test_an_old_client_is_served_and_told_to_wait() -> None:
    quotas, image = MutationQuotas(POLICY), with_quota(2.0)
    for version, key in ((5, CREATE), (4, DELETE), (2, GROW)):
        before = quota_of(quotas, image, 0.0, version=version, key=key)
        assert takes(before, "a", 20)
    assert before.throttle_ms == 19_000
    assert not takes(quota_of(quotas, image, 0.0, version=6), "b", 1)
    for version, key in ((6, CREATE), (5, DELETE), (3, GROW)):
        assert not takes(quota_of(quotas, image, 0.0, version=version, key=key), "b", 1)


@pytest.mark.parametrize("rate", [1e-7, 1e-300, 5e-324])
@pytest.mark.parametrize("version", [5, 7])
def test_the_wait_of_the_smallest_quota_fits_into_an_answer(rate: float, version: int) -> None:
    quotas, image = MutationQuotas(POLICY), with_quota(rate)
    assert takes(quota_of(quotas, image, 0.0, version=version), "a", 6)
    later = quota_of(quotas, image, 1.0, version=version)
    assert takes(later, "b", 6) == (version == 5)
    assert later.throttle_ms == INT_MAX


def test_a_request_that_is_decided_again_counts_once() -> None:
    quotas, image = MutationQuotas(POLICY), with_quota(1.0)
    quota = quota_of(quotas, image, 0.0)
    assert [takes(quota, "a", 12), takes(quota, "b", 1)] == [True, False]
    assert [takes(quota, "a", 12), takes(quota, "b", 1)] == [True, False]
    assert takes(quota_of(quotas, image, 1.0), "b", 1), "the debt is of 12 partitions, not of 24"


def test_other_users_and_requests_are_free_and_a_tenant_has_its_own_and_the_operators() -> None:
    tenant = TenantRecord(TENANT_A, "a", "east", 1, {"partition.mutations.per.second": 3})
    image = replayed(with_quota(1.0), [tenant])
    quotas = MutationQuotas(POLICY)
    assert quota_of(quotas, image, 0.0, user="bob") is UNBOUNDED
    assert quotas.of(image, "User:alice", "c", int(ApiKey.ALTER_CONFIGS), 2, 0.0) is UNBOUNDED
    key = f"{TENANT_A}_key"
    assert takes(quota_of(quotas, image, 0.0, user=key), "a", 33)
    assert takes(quota_of(quotas, image, 0.0, user=f"{TENANT_A}_other"), "b", 3), "the limit is the tenant's"
    refused = quota_of(quotas, image, 0.0, user=key)
    assert not takes(refused, "c", 1) and refused.throttle_ms == 1_000
    image = with_quota(1.0, {TENANT: TENANT_A, USER: None, CLIENT_ID: "slow"}, image)
    later = quota_of(quotas, image, 60.0, user=key, client_id="slow")
    assert takes(later, "d", 12) and not takes(later, "e", 1)
    assert takes(quota_of(quotas, image, 60.0, user=key), "e", 1)


def test_a_changed_rate_holds_and_the_number_of_buckets_is_bounded() -> None:
    quotas = MutationQuotas(POLICY, buckets_max=3)
    assert takes(quota_of(quotas, with_quota(1.0), 0.0), "a", 21)
    faster = quota_of(quotas, with_quota(10.0), 0.0)
    assert not takes(faster, "b", 1) and faster.throttle_ms == 1_000
    everyone = with_quota(1.0, {USER: None})
    for number in range(10):
        quota_of(quotas, everyone, 0.0, user=f"u{number}")
    assert len(quotas) == 3


@given(st.floats(0.1, 100), st.lists(st.tuples(st.floats(0, 30), st.integers(1, 500)), max_size=60))
def test_no_more_is_accepted_than_the_rate_its_stock_and_one_topic(rate: float, asked: list[tuple[float, int]]) -> None:
    quotas, image, now, accepted, largest = MutationQuotas(POLICY), with_quota(rate), 0.0, 0, 0
    for gap_s, partitions in asked:
        now += gap_s
        quota = quota_of(quotas, image, now)
        if takes(quota, "t", partitions):
            accepted, largest = accepted + partitions, max(largest, partitions)
        else:
            assert takes(quota_of(quotas, image, now + quota.throttle_ms / 1000 + 0.001), "t", 1)
            accepted += 1
            now += quota.throttle_ms / 1000 + 0.001
    assert accepted <= rate * (now + 11) + largest + len(asked)


# decisions -----------------------------------------------------------------------------------------------------


def created(image: MetadataImage, quota: MutationQuota, **topics: int) -> tuple[MetadataImage, dict[str, int]]:
    wanted = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[wanted(name=name, num_partitions=count, replication_factor=1) for name, count in topics.items()],
        timeout_ms=1, validate_only=False,
    )  # fmt: skip
    decision = at_once(create_topics(image, request, POLICY, random.Random(1), quota))
    return replayed(image, decision.records), {row.name: row.error_code for row in decision.reply.topics}


def test_each_topic_is_created_grown_and_deleted_by_its_partitions_or_refused() -> None:
    quotas, image = MutationQuotas(POLICY), with_quota(1.0)
    image, rows = created(image, quota_of(quotas, image, 0.0), a=6, b=6, c=1)
    assert rows == {"a": 0, "b": 0, "c": EXCEEDED}
    assert image.topics.get("c") is None
    grow = CreatePartitionsRequest.CreatePartitionsTopic
    more = CreatePartitionsRequest(
        topics=[grow(name="a", count=13, assignments=None), grow(name="b", count=7, assignments=None)],
        timeout_ms=1, validate_only=False,
    )  # fmt: skip
    quota = quota_of(quotas, image, 1.0, key=GROW, version=3)
    grown: Any = at_once(create_partitions(image, more, POLICY, random.Random(1), quota)).reply
    assert {row.name: row.error_code for row in grown.results} == {"a": 0, "b": EXCEEDED}
    assert quota.throttle_ms == 7_000
    state = DeleteTopicsRequest.DeleteTopicState
    request = DeleteTopicsRequest(topics=[state(name=name, topic_id=None) for name in ("b", "a")], timeout_ms=1)
    quota = quota_of(quotas, image, 8.0, key=DELETE, version=6)
    decision = at_once(delete_topics(image, request, POLICY, quota))
    assert {row.name: row.error_code for row in decision.reply.responses} == {"b": 0, "a": EXCEEDED}
    assert len(decision.records) == 1


def test_what_is_wrong_anyway_costs_nothing() -> None:
    quotas, image = MutationQuotas(POLICY), with_quota(1.0)
    _, rows = created(image, quota_of(quotas, image, 0.0), **{"a/b": 100})
    assert rows == {"a/b": ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert takes(quota_of(quotas, image, 0.0), "t", 12)


@pytest.mark.parametrize(("key", "version"), [(CREATE, 2), (DELETE, 1), (GROW, 0)])
def test_without_a_quota_nothing_is_kept(key: int, version: int) -> None:
    quotas = MutationQuotas(POLICY)
    assert quota_of(quotas, EMPTY_IMAGE, 0.0, key=key, version=version) is UNBOUNDED and len(quotas) == 0
