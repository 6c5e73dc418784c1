"""What an authorizer remembers of the names that clients send."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.security.authorizer import KNOWN_NAMES_MAX, Authorizer, AuthorizerConfig
from kraft.image.acls import WILDCARD, AclImage, AclsImage
from kraft.records import AclOperation, AclPattern, AclPermission, AclResource
from tests.common.kept_memory import kept_bytes

WRITE, ID = int(AclOperation.WRITE), int(AclResource.TRANSACTIONAL_ID)
LONGEST = 0x7FFF
ALICE, HOST, PREFIX = "User:alice", "10.0.0.1", "mine-"


def authorizer() -> Authorizer:
    """Alice may write whatever begins with `PREFIX`, except one."""
    made = Authorizer(AuthorizerConfig())
    rows = [
        (PREFIX, AclPattern.PREFIXED, AclPermission.ALLOW),
        (f"{PREFIX}{'x' * 400}", AclPattern.LITERAL, AclPermission.DENY),
    ]
    acls: dict[bytes, AclImage | None] = {}
    for number, (name, pattern, permission) in enumerate(rows):
        acl_id = number.to_bytes(16, "big")
        acls[acl_id] = AclImage(
            acl_id, AclResource.TRANSACTIONAL_ID, name, pattern, ALICE, WILDCARD, AclOperation.WRITE, permission
        )
    made.follow(AclsImage().changed(acls))
    return made


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([PREFIX, "theirs-"]), st.integers(0, 600)), max_size=30))
def test_a_decision_is_the_same_whether_or_not_it_is_remembered(asked: list[tuple[str, int]]) -> None:
    access = authorizer().access(ALICE, HOST)
    for prefix, length in asked * 2:
        may = access.may(WRITE, ID, prefix + "x" * length)
        assert may is (prefix == PREFIX and length != 400), length


@pytest.mark.parametrize("prefix", [PREFIX, "theirs-"])
@pytest.mark.parametrize(("length", "names"), [(1 << 20, 40), (LONGEST, 1_000), (1_000, 10_000)])
def test_long_names_take_no_memory(prefix: str, length: int, names: int) -> None:
    access = authorizer().access(ALICE, HOST)

    def ask() -> None:
        for number in range(names):
            access.may(WRITE, ID, f"{prefix}{number:0{length}}")

    assert kept_bytes(ask)[1] < 100_000


def test_short_names_take_bounded_memory() -> None:
    access = authorizer().access(ALICE, HOST)

    def ask() -> None:
        for number in range(3 * KNOWN_NAMES_MAX):
            access.may(WRITE, ID, f"{PREFIX}{number:0200}")

    assert kept_bytes(ask)[1] < KNOWN_NAMES_MAX * 500
