"""ACLs by Apache Kafka's names: who may do what. Described, created and deleted through the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from common.settings import SettingError
from kraft.image.acl_filter import ANY, MATCH
from kraft.image.acls import CLUSTER_RESOURCE
from kraft.records import AclOperation, AclPattern, AclPermission, AclResource
from tidelog.admin.admin_client import error_text
from tidelog.admin.replica_moves import Refused

if TYPE_CHECKING:  # commands begin without the messages
    from tidelog.admin.library_client import AdminClient

Kind = type[AclResource | AclPattern | AclOperation | AclPermission]
OTHER_PATTERNS = {"any": ANY, "match": MATCH}
CLUSTER = "cluster"


class Acl(NamedTuple):
    """A binding; its kinds are in the words of `words_of`. The fields' order is that of lists."""

    permission: str
    principal: str
    host: str
    operation: str
    resource: str
    name: str
    pattern: str


class AclWanted(NamedTuple):
    """ACLs that match all given fields; None matches all. A `pattern` may also be `match` or `any`."""

    permission: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    resource: str | None = None
    name: str | None = None
    pattern: str | None = None

    def fields(self, prefix: str = "") -> dict[str, Any]:
        """The fields of a request. `prefix` stands before the field's name in a SettingError."""
        pattern = OTHER_PATTERNS.get(self.pattern or "") or _number(AclPattern, self.pattern, prefix + "pattern")
        return {
            "resource_type_filter": _number(AclResource, self.resource, prefix + "resource"),
            "resource_name_filter": self.name,
            "pattern_type_filter": pattern,
            "principal_filter": self.principal,
            "host_filter": self.host,
            "operation": _number(AclOperation, self.operation, prefix + "operation"),
            "permission_type": _number(AclPermission, self.permission, prefix + "permission"),
        }


def words_of(kind: Kind) -> list[str]:
    """Kafka's names in small letters."""
    return [member.name.lower() for member in kind]


RESOURCES, PATTERNS = words_of(AclResource), words_of(AclPattern)
OPERATIONS, PERMISSIONS = words_of(AclOperation), words_of(AclPermission)


def checked(acl: Acl, prefix: str = "") -> Acl:
    """The same in the words of `words_of`, with the only name that a cluster has. Raises SettingError."""
    resource = _word(AclResource, acl.resource, prefix + "resource")
    name = acl.name or (CLUSTER_RESOURCE if resource == CLUSTER else "")
    if not name:
        raise SettingError(f"{prefix}name: it must be given for this resource")
    return acl._replace(
        permission=_word(AclPermission, acl.permission, prefix + "permission"),
        operation=_word(AclOperation, acl.operation, prefix + "operation"),
        resource=resource,
        name=name,
        pattern=_word(AclPattern, acl.pattern, prefix + "pattern"),
    )


def described(client: AdminClient, wanted: AclWanted) -> list[Acl]:
    """Raises SettingError, Refused and KafkaError."""
    from wire.messages import DescribeAclsRequest  # noqa: PLC0415

    response = client.send(DescribeAclsRequest(**wanted.fields()))
    _check(response)
    return [
        _acl(found.resource_type, found.resource_name, found.pattern_type, one)
        for found in response.resources
        for one in found.acls
    ]


def create(client: AdminClient, acl: Acl) -> None:
    """One that is there already stays. Raises SettingError, Refused and KafkaError."""
    from wire.messages import CreateAclsRequest  # noqa: PLC0415

    creation = CreateAclsRequest.AclCreation(
        resource_type=_number(AclResource, acl.resource, "resource"),
        resource_name=acl.name,
        resource_pattern_type=_number(AclPattern, acl.pattern, "pattern"),
        principal=acl.principal,
        host=acl.host,
        operation=_number(AclOperation, acl.operation, "operation"),
        permission_type=_number(AclPermission, acl.permission, "permission"),
    )
    _check(client.send(CreateAclsRequest(creations=[creation])).results[0])


def delete(client: AdminClient, wanted: Sequence[AclWanted]) -> list[Acl]:
    """What was deleted, each once. Raises SettingError, Refused and KafkaError."""
    from wire.messages import DeleteAclsRequest  # noqa: PLC0415

    filters = [DeleteAclsRequest.DeleteAclsFilter(**one.fields()) for one in wanted]
    results = client.send(DeleteAclsRequest(filters=filters)).filter_results
    for result in results:
        _check(result)
    found = [
        _acl(one.resource_type, one.resource_name, one.pattern_type, one)
        for result in results
        for one in result.matching_acls
    ]
    return list(dict.fromkeys(found))


def _word(kind: Kind, text: str, field: str) -> str:
    return _named(kind, _number(kind, text, field))


def _number(kind: Kind, text: str | None, field: str) -> int:
    """Kafka's number for a name as Kafka's tools write it; ANY if none is given. Raises SettingError."""
    if text is None:
        return ANY
    names = {member.name.replace("_", "").lower(): member for member in kind}
    found = names.get(text.replace("_", "").replace("-", "").lower())
    if found is None:
        raise SettingError(f"{field} {text!r}: it must be one of {', '.join(words_of(kind)).replace('_', '-')}")
    return int(found)


def _acl(resource: int, name: str, pattern: int, row: Any) -> Acl:
    return Acl(
        _named(AclPermission, row.permission_type),
        row.principal,
        row.host,
        _named(AclOperation, row.operation),
        _named(AclResource, resource),
        name,
        _named(AclPattern, pattern),
    )


def _named(kind: Kind, number: int) -> str:
    return kind(number).name.lower()


def _check(row: Any) -> None:
    if problem := error_text({"error_code": row.error_code, "error_message": row.error_message}):
        raise Refused(problem)
