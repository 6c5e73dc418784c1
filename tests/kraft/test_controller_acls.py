"""CreateAcls and DeleteAcls: Kafka's error codes, its filters, and the limits."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ErrorCode, ProtocolError
from common.node_settings.tenants import TenantSettings
from kraft.controller.policy import ControllerPolicy
from kraft.image.acl_filter import ANY, MATCH, AclFilter
from kraft.image.delta import replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import AclPattern, AclRecord, FeatureLevelRecord, TenantRecord
from tests.kraft.decisions import decide_create_acls, decide_delete_acls
from tests.kraft.images import POLICY, new_cluster
from tests.kraft.test_image_access import NAMES, acl_records
from wire.messages import CreateAclsRequest, DeleteAclsRequest

TENANT = TenantRecord("lkc-aaaaaa", "a", "default", 1)


def creation(**changed: Any) -> Any:
    fields: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return CreateAclsRequest.AclCreation(**{**fields, **changed})


def create(image: MetadataImage, *creations: Any, policy: ControllerPolicy = POLICY) -> tuple[MetadataImage, list[int]]:
    request = CreateAclsRequest(creations=list(creations))
    decision = decide_create_acls(image, request, policy, random.Random(1))
    return replayed(image, decision.records), [result.error_code for result in decision.reply.results]


@pytest.mark.parametrize(
    "changed",
    [
        {"resource_type": 0}, {"resource_type": 1}, {"resource_type": 8},
        {"resource_pattern_type": 0}, {"resource_pattern_type": 1}, {"resource_pattern_type": 2},
        {"operation": 0}, {"operation": 1}, {"operation": 99},
        {"permission_type": 0}, {"permission_type": 1}, {"permission_type": 4},
        {"resource_name": ""}, {"resource_name": "x" * 1_001}, {"host": ""},
        {"principal": "alice"}, {"principal": ""},
        {"resource_type": 4, "resource_name": "mine"},
        {"resource_type": 4, "resource_name": "lkc-bbbbbb_kafka-cluster"},
        {"resource_name": "lkc-bbbbbb_t"}, {"principal": "User:lkc-bbbbbb_TKA"},
    ],
)  # fmt: skip
def test_what_is_no_binding_is_refused_alone(changed: dict[str, Any]) -> None:
    image = replayed(new_cluster(), [TENANT])
    after, codes = create(image, creation(), creation(**changed), creation(resource_name="u"))
    assert codes == [0, ErrorCode.INVALID_REQUEST, 0]
    assert len(after.acls) == 2


def test_a_binding_that_exists_succeeds_and_is_kept_once() -> None:
    image, codes = create(new_cluster(), creation(), creation())
    again, codes_again = create(image, creation())
    assert codes + codes_again == [0, 0, 0]
    assert len(again.acls) == 1
    assert next(iter(again.acls)) is next(iter(image.acls))


def test_the_cluster_is_a_resource_of_its_own_for_operators_and_each_tenant() -> None:
    image = replayed(new_cluster(), [TENANT])
    names = ("kafka-cluster", "lkc-aaaaaa_kafka-cluster")
    _, codes = create(image, *(creation(resource_type=4, resource_name=name) for name in names))
    assert codes == [0, 0]


def test_limits_hold_for_the_cluster_and_for_a_tenant() -> None:
    image = replayed(new_cluster(), [TENANT, TenantRecord("lkc-cccccc", "c", "default", 1, {"acls.max": 1})])
    policy = replace(POLICY, access=TenantSettings(acls_max=4))
    image, codes = create(
        image,
        *(creation(resource_name=f"lkc-cccccc_{n}") for n in range(2)),
        *(creation(resource_name=f"t{n}") for n in range(4)),
        creation(resource_name="t0"),
        policy=policy,
    )
    assert codes == [0, ErrorCode.POLICY_VIOLATION, 0, 0, 0, ErrorCode.POLICY_VIOLATION, 0]
    assert len(image.acls) == 4


def test_nothing_is_made_before_all_nodes_know_the_records() -> None:
    image = replayed(new_cluster(), [FeatureLevelRecord("tidelog.version", 0)])
    after, codes = create(image, creation())
    assert codes == [ErrorCode.UNSUPPORTED_VERSION]
    assert not len(after.acls)


# filters -------------------------------------------------------------------------------------------------------


def kafka_matches(wanted: AclFilter, acl: AclRecord) -> bool:
    """ResourcePatternFilter.matches and AccessControlEntryFilter.matches, as Apache Kafka documents them."""
    if wanted.resource_type not in (ANY, acl.resource_type):
        return False
    if wanted.pattern_type not in (ANY, MATCH, acl.pattern_type):
        return False
    if wanted.resource_name is not None:
        if wanted.pattern_type in (ANY, acl.pattern_type):
            if wanted.resource_name != acl.resource_name:
                return False
        elif acl.pattern_type == AclPattern.LITERAL:
            if acl.resource_name not in (wanted.resource_name, "*"):
                return False
        elif not wanted.resource_name.startswith(acl.resource_name):
            return False
    return (
        wanted.principal in (None, acl.principal)
        and wanted.host in (None, acl.host)
        and wanted.operation in (ANY, acl.operation)
        and wanted.permission in (ANY, acl.permission)
    )


filters = st.builds(
    AclFilter,
    st.sampled_from([ANY, 2, 3, 4, 5, 6, 7]),
    st.sampled_from([None, "", *NAMES, "abcd"]),
    st.sampled_from([ANY, MATCH, 3, 4]),
    st.sampled_from([None, "User:a", "User:nobody"]),
    st.sampled_from([None, "*", "10.0.0.1"]),
    st.sampled_from([ANY, 2, 3, 4]),
    st.sampled_from([ANY, 2, 3]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(acl_records(), max_size=15), filters)
def test_a_filter_finds_what_it_would_find_in_kafka(acls: list[AclRecord], wanted: AclFilter) -> None:
    image = replayed(EMPTY_IMAGE, acls)
    present = [acl.record() for acl in image.acls]
    assert {a.id for a in wanted.find(image.acls)} == {a.id for a in present if kafka_matches(wanted, a)}


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("number", [0, 99, -1])
def test_a_filter_of_unknown_numbers_is_refused(at: int, number: int) -> None:
    numbers = [ANY] * 4
    numbers[at] = number
    with pytest.raises(ProtocolError) as caught:
        AclFilter(numbers[0], None, numbers[1], None, None, numbers[2], numbers[3]).check()
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_each_filter_names_what_it_matched_and_an_acl_goes_once() -> None:
    image, _ = create(new_cluster(), creation(), creation(resource_name="u"), creation(operation=4))
    wanted = DeleteAclsRequest.DeleteAclsFilter

    def of(**given_fields: Any) -> Any:
        fields = {
            "resource_type_filter": ANY,
            "resource_name_filter": None,
            "pattern_type_filter": ANY,
            "principal_filter": None,
            "host_filter": None,
            "operation": ANY,
            "permission_type": ANY,
        }
        return wanted(**{**fields, **given_fields})

    request = DeleteAclsRequest(
        filters=[of(resource_name_filter="t"), of(operation=0), of(operation=3), of(resource_name_filter="none")]
    )
    decision = decide_delete_acls(image, request)
    results = decision.reply.filter_results
    assert [result.error_code for result in results] == [0, ErrorCode.INVALID_REQUEST, 0, 0]
    assert [[(a.resource_name, a.operation) for a in r.matching_acls] for r in results] == [
        [("t", 3), ("t", 4)],
        [],
        [("t", 3), ("u", 3)],
        [],
    ]
    assert len(decision.records) == 3
    assert not len(replayed(image, decision.records).acls)
