"""The pages of ACLs and users, on a cluster that keeps ACLs by Apache Kafka's rules."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ErrorCode
from console.access.trouble import Trouble
from console.pages.acls import acls_of, text_of, words_of
from console.queries.acls import AT_ONCE_MAX
from kraft.image.acl_filter import AclFilter
from kraft.image.acls import AclImage
from kraft.records import AclOperation, AclPattern, AclPermission, AclResource
from tests.console.fake_cluster import FakeClient, log_in, token_of, visitor
from tidelog.admin.acl_admin import OPERATIONS, PATTERNS, PERMISSIONS, RESOURCES, Acl
from wire.messages import (
    CreateAclsResponse,
    DeleteAclsResponse,
    DescribeAclsResponse,
    DescribeUserScramCredentialsResponse,
)

ANN = Acl("allow", "User:ann", "*", "read", "topic", "orders", "literal")
BEN = ANN._replace(principal="User:ben", operation="write")
DENIED = Acl("deny", "User:*", "10.0.0.1", "all", "transactional_id", "pay-", "prefixed")
PART = {"hx-request": "true"}


class FakeAcls:
    """`code`: what the cluster refuses all with."""

    def __init__(self, *acls: Acl, code: ErrorCode = ErrorCode.NONE) -> None:
        self.acls = [image_of(one) for one in acls]
        self.code = int(code)
        self.client = FakeClient({"DescribeAclsRequest": self._describe, "CreateAclsRequest": self._create,
                                  "DeleteAclsRequest": self._delete})  # fmt: skip

    @property
    def left(self) -> set[tuple[int, str, int, str, str, int, int]]:
        return {one.binding for one in self.acls}

    def _found(self, row: Any) -> list[AclImage]:
        wanted = AclFilter(row.resource_type_filter, row.resource_name_filter, row.pattern_type_filter,
                           row.principal_filter, row.host_filter, row.operation, row.permission_type)  # fmt: skip
        wanted.check()
        return [one for one in self.acls if wanted.matches(one)]

    def _describe(self, request: Any) -> Any:
        resource = DescribeAclsResponse.DescribeAclsResource
        rows = [
            resource(
                resource_type=one.resource_type, resource_name=one.resource_name, pattern_type=one.pattern_type,
                acls=[resource.AclDescription(principal=one.principal, host=one.host, operation=one.operation,
                                              permission_type=one.permission)],
            )
            for one in self._found(request)
        ]  # fmt: skip
        return DescribeAclsResponse(error_code=self.code, error_message=None, resources=[] if self.code else rows)

    def _create(self, request: Any) -> Any:
        for one in request.creations:
            self.acls.append(AclImage(b"", AclResource(one.resource_type), one.resource_name,
                AclPattern(one.resource_pattern_type), one.principal, one.host, AclOperation(one.operation),
                AclPermission(one.permission_type)))  # fmt: skip
        row = CreateAclsResponse.AclCreationResult(error_code=self.code, error_message=None)
        return CreateAclsResponse(results=[row] * len(request.creations))

    def _delete(self, request: Any) -> Any:
        row = DeleteAclsResponse.DeleteAclsFilterResult
        results = []
        for wanted in request.filters:
            found = self._found(wanted)
            self.acls = [one for one in self.acls if one not in found]
            matching = [
                row.DeleteAclsMatchingAcl(
                    error_code=0, error_message=None, resource_type=one.resource_type, resource_name=one.resource_name,
                    pattern_type=one.pattern_type, principal=one.principal, host=one.host, operation=one.operation,
                    permission_type=one.permission,
                )
                for one in found
            ]  # fmt: skip
            results.append(row(error_code=self.code, error_message=None, matching_acls=matching))
        return DeleteAclsResponse(filter_results=results)


def image_of(acl: Acl) -> AclImage:
    return AclImage(b"", AclResource[acl.resource.upper()], acl.name, AclPattern[acl.pattern.upper()], acl.principal,
                    acl.host, AclOperation[acl.operation.upper()], AclPermission[acl.permission.upper()])  # fmt: skip


def bindings(*acls: Acl) -> set[tuple[int, str, int, str, str, int, int]]:
    return {image_of(one).binding for one in acls}


def hidden(text: str) -> str:
    """The list in the form of a preview."""
    found = re.search(r'name="acls" value="([^"]*)"', text)
    assert found is not None
    return html.unescape(found[1])


def test_acls_are_listed_by_filters_and_pages() -> None:
    many = [ANN._replace(name=f"t{number:03}") for number in range(120)]
    with visitor(FakeAcls(*many, BEN, DENIED).client) as browser:
        log_in(browser)
        text = browser.get("/acls").text
        assert "122 ACLs" in text
        assert text.count("<tr>") == 51
        assert "page 1 of 3" in text
        found = html.unescape(browser.get("/acls?principal=User:ben&operation=write").text)
        assert "1 ACLs" in found
        assert "orders" in found
        assert "1 ACLs" in browser.get("/acls?name=t007&pattern=match&resource=topic").text
        assert "it must be one of" in browser.get("/acls?operation=eat").text


def test_a_cluster_without_an_authorizer_says_so() -> None:
    with visitor(FakeAcls(code=ErrorCode.SECURITY_DISABLED).client) as browser:
        log_in(browser)
        text = browser.get("/acls").text
    assert "has no authorizer" in text
    assert 'class="trouble"' not in text


def test_a_right_that_is_missing_is_said_in_its_place() -> None:
    with visitor(FakeAcls(code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED).client) as browser:
        log_in(browser)
        assert "CLUSTER_AUTHORIZATION_FAILED" in browser.get("/acls").text


def test_an_acl_is_created_after_a_look_at_what_changes() -> None:
    cluster = FakeAcls(BEN)
    with visitor(cluster.client) as browser:
        log_in(browser)
        given = ANN._asdict() | {"csrf": token_of(browser), "name": "other"}
        seen = browser.post("/acls/create-preview", data=given, headers=PART).text
        assert "User:ann: allow read on topic other" in seen
        assert "the first ACL on exactly this name" in seen
        assert cluster.left == bindings(BEN)
        given = {"csrf": given["csrf"], "acls": hidden(seen)}
        assert browser.post("/acls/create", data=given, headers=PART).headers["hx-redirect"] == "/acls"
        assert cluster.left == bindings(BEN, ANN._replace(name="other"))
        assert "the ACL was created: User:ann" in browser.get("/acls").text
        again = ANN._asdict() | {"csrf": given["csrf"], "name": "other"}
        assert "is there already" in browser.post("/acls/create-preview", data=again, headers=PART).text


@pytest.mark.parametrize("wrong", [{"principal": "ann"}, {"principal": "User:"}, {"operation": "eat"}, {"name": ""},
                                   {"pattern": "match"}, {"permission": ""}])  # fmt: skip
def test_what_is_no_acl_is_refused_before_it_is_asked(wrong: dict[str, str]) -> None:
    cluster = FakeAcls()
    with visitor(cluster.client) as browser:
        log_in(browser)
        given = ANN._asdict() | {"csrf": token_of(browser)} | wrong
        cluster.client.sent.clear()
        assert "trouble" in browser.post("/acls/create-preview", data=given, headers=PART).text
        assert not cluster.client.sent


def test_chosen_acls_go_and_no_others() -> None:
    cluster = FakeAcls(ANN, BEN, DENIED)
    with visitor(cluster.client) as browser:
        log_in(browser)
        csrf = token_of(browser)
        given = {"csrf": csrf, "acls": [text_of([ANN]), text_of([DENIED])]}
        seen = html.unescape(browser.post("/acls/delete-preview", data=given, headers=PART).text)
        assert "2 ACLs go" in seen
        assert "No other ACL is left on exactly transactional id pay- (a prefix)" in seen
        assert cluster.left == bindings(ANN, BEN, DENIED)
        cluster.acls.append(image_of(ANN._replace(operation="write")))
        answer = browser.post("/acls/delete", data={"csrf": csrf, "acls": text_of([ANN, DENIED])}, headers=PART)
        assert answer.headers["hx-redirect"] == "/acls"
        assert cluster.left == bindings(BEN, ANN._replace(operation="write"))
        assert "they are gone already" in browser.post("/acls/delete-preview", data=given, headers=PART).text


def test_all_that_match_go_but_not_too_many_at_once() -> None:
    many = [ANN._replace(name=f"t{number}") for number in range(AT_ONCE_MAX + 1)]
    cluster = FakeAcls(*many, BEN)
    with visitor(cluster.client) as browser:
        log_in(browser)
        given = {"csrf": token_of(browser), "all": "yes", "principal": "User:ben"}
        seen = browser.post("/acls/delete-preview", data=given, headers=PART).text
        assert hidden(seen) == text_of([BEN])
        assert "search for fewer" in browser.post("/acls/delete-preview", data=given | {"principal": ""}).text
        assert "choose the ACLs" in browser.post("/acls/delete", data={"csrf": given["csrf"]}, headers=PART).text
    assert len(cluster.acls) == AT_ONCE_MAX + 2


def test_users_are_listed_without_any_part_of_their_passwords() -> None:
    row = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    rows = [
        row(user=name, error_code=0, error_message=None,
            credential_infos=[row.CredentialInfo(mechanism=one, iterations=4096) for one in (1, 2)])
        for name in ("ann", "<b>ben</b>")
    ]  # fmt: skip
    answer = DescribeUserScramCredentialsResponse(error_code=0, error_message=None, results=rows)
    with visitor(FakeClient({"DescribeUserScramCredentialsRequest": lambda _: answer})) as browser:
        log_in(browser)
        text = browser.get("/acls/users").text
    assert "SCRAM-SHA-256, SCRAM-SHA-512" in text
    assert "/acls?principal=User:ann" in text
    assert "<b>" not in text


NAMES = st.text(min_size=1, max_size=20)
ACLS = st.builds(
    Acl, st.sampled_from(PERMISSIONS), NAMES, NAMES, st.sampled_from(OPERATIONS), st.sampled_from(RESOURCES), NAMES,
    st.sampled_from(PATTERNS),
)  # fmt: skip


@given(st.lists(ACLS, max_size=5))
def test_forms_carry_acls_as_they_are(acls: list[Acl]) -> None:
    assert acls_of([text_of(acls)], 5) == list(dict.fromkeys(acls))
    assert all(one.name in words_of(one) for one in acls)


@given(st.text(max_size=80))
def test_no_text_becomes_an_acl_by_chance(text: str) -> None:
    try:
        assert acls_of([text], 5) == []
    except Trouble:
        return


def test_a_list_of_acls_is_bounded() -> None:
    with pytest.raises(Trouble, match="at most 1 "):
        acls_of([text_of([ANN, BEN])], 1)
