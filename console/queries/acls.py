"""Rights and users: a page of the ACLs at a time, and what creating or deleting some would change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from common.errors import ErrorCode
from console.formats.paging import PER_PAGE, Paged, found, paged
from tidelog.admin.acl_admin import Acl, AclWanted, delete, described
from tidelog.admin.admin_client import error_text
from tidelog.admin.library_client import AdminClient
from tidelog.admin.replica_moves import Refused
from tidelog.credentials import MECHANISM_NAMES
from wire.messages import DescribeUserScramCredentialsRequest

AT_ONCE_MAX = 1_000
MECHANISMS = {number: name for name, number in MECHANISM_NAMES.items()}

Place = tuple[str, str, str]
"""What an ACL is for: kind of resource, name, pattern."""


class User(NamedTuple):
    """Who logs in with SCRAM; never any part of a password."""

    name: str
    mechanisms: Sequence[str]


class Effect(NamedTuple):
    """`acls`: those that are there of the ones that were asked about. `left`: of each place that they are for, how many
    other ACLs it has."""

    acls: Sequence[Acl]
    left: Sequence[tuple[Place, int]]


def acls(client: AdminClient, wanted: AclWanted, at: int) -> Paged[Acl] | None:
    """A page of them; None for a cluster without an authorizer. Raises SettingError, Refused and KafkaError."""
    listed = _described(client, wanted)
    return None if listed is None else paged(listed, at)


def matching(client: AdminClient, wanted: AclWanted) -> list[Acl]:
    """All of them. Raises SettingError, Refused, also if there are too many for one deletion, and KafkaError."""
    listed = described(client, wanted)
    if len(listed) > AT_ONCE_MAX:
        raise Refused(f"{len(listed):,} ACLs match, and at most {AT_ONCE_MAX:,} are deleted at once: search for fewer")
    return listed


def effect_of(client: AdminClient, asked: Sequence[Acl]) -> Effect:
    """What is left where these ACLs are. Raises Refused and KafkaError."""
    listed = described(client, AclWanted())
    there = set(listed) & set(asked)
    total = Counter(place_of(one) for one in listed)
    own = Counter(place_of(one) for one in there)
    places = dict.fromkeys(place_of(one) for one in asked)
    return Effect([one for one in asked if one in there], [(one, total[one] - own[one]) for one in places])


def delete_exactly(client: AdminClient, asked: Sequence[Acl]) -> list[Acl]:
    """These ACLs and no other. Raises SettingError, Refused and KafkaError."""
    return delete(client, [AclWanted(**one._asdict()) for one in asked])


def place_of(acl: Acl) -> Place:
    return acl.resource, acl.name, acl.pattern


def _described(client: AdminClient, wanted: AclWanted) -> list[Acl] | None:
    try:
        return sorted(described(client, wanted), key=lambda one: (one.resource, one.name, one))
    except Refused as error:
        if str(error).startswith(ErrorCode.SECURITY_DISABLED.name):
            return None
        raise


def users(client: AdminClient, words: str, at: int) -> Paged[User]:
    """A page of those whose names have the words. Raises Refused and KafkaError."""
    answer = client.send(DescribeUserScramCredentialsRequest(users=None))
    if problem := error_text({"error_code": answer.error_code, "error_message": answer.error_message}):
        raise Refused(problem)
    listed = sorted(
        User(row.user, sorted(MECHANISMS.get(one.mechanism, "unknown") for one in row.credential_infos))
        for row in answer.results
        if not row.error_code
    )
    return paged(found(listed, words, lambda one: one.name), at, PER_PAGE)
