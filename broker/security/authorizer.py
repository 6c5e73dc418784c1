"""The rights of principals according to the image's ACLs. No I/O.

Behaviour is that of Apache Kafka 4.1's StandardAuthorizer and of `Authorizer.authorizeByResourceType` (KIP-679): an ACL
matches a resource literally, by the name `*`, or by a prefix of its name; DENY overrides ALLOW; ALLOW for READ, WRITE,
DELETE or ALTER includes DESCRIBE, ALTER_CONFIGS includes DESCRIBE_CONFIGS; a resource without ACLs is denied, unless
`allow.everyone.if.no.acl.found`. Super users may do everything.

Tenants: there are no super users, ACLs are always enforced, and a tenant's `User:*` is its own wildcard. An operator's
`User:*` matches operators only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from common.node_settings.security import SecuritySettings
from common.settings import same
from kraft.image.acls import CLUSTER_RESOURCE, WILDCARD, WILDCARD_PRINCIPAL, AclImage, AclsImage
from kraft.image.tenants import cluster_resource
from kraft.records import AclOperation, AclPattern, AclPermission, AclResource

KNOWN_NAMES_MAX = 10_000
"""Names whose decisions are cached per principal, operation and resource type."""

KNOWN_NAME_LENGTH_MAX = 300
"""Longer names are decided each time: no topic has one, and 10,000 of 32 KB would take 320 MB."""

TOPIC_OPERATIONS = (3, 4, 5, 6, 7, 8, 10, 11)
CLUSTER_OPERATIONS = (5, 7, 8, 9, 10, 11, 12)
GROUP_OPERATIONS = (3, 6, 8, 10, 11)
"""The possible operations for each resource type, by the numbers of Kafka's AclOperation."""

RIGHT_COST = 4  # units of `common.pacing` for a name whose decision is not cached

_NONE = AclsImage()
_ALL = int(AclOperation.ALL)
_ALLOW = int(AclPermission.ALLOW)
_IMPLYING = {
    int(AclOperation.DESCRIBE): frozenset(
        {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    int(AclOperation.DESCRIBE_CONFIGS): frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}
_RESOURCE_TYPES = 8  # more than exist; part of a key


@dataclass(frozen=True, slots=True)
class AuthorizerConfig:
    """Kafka's settings super.users and allow.everyone.if.no.acl.found."""

    super_users: frozenset[str] = frozenset()
    allow_everyone_if_no_acl_found: bool = same(SecuritySettings, "allow_everyone_if_no_acl_found")


class Authorizer:
    """The rights of all principals. `acls` is the newest image; an `Access` follows changes, so it can be kept."""

    def __init__(self, config: AuthorizerConfig) -> None:
        self.config = config
        self.acls = _NONE
        self._accesses: WeakValueDictionary[tuple[str, str, str | None], Access] = WeakValueDictionary()

    def follow(self, acls: AclsImage) -> None:
        """Decide by these ACLs from now on."""
        self.acls = acls

    def access(self, principal: str, host: str, tenant: str | None = None) -> Access:
        """Rights of `principal` from `host`; equal callers share one object."""
        key = (principal, host, tenant)
        access = self._accesses.get(key)
        if access is None:
            access = self._accesses[key] = Access(self, principal, host, tenant)
        return access


class Access:
    """The rights of one principal from one host. Decisions about names that are not too long are cached until the ACLs
    change."""

    __slots__ = (
        "__weakref__",
        "_acls",
        "_authorizer",
        "_known",
        "_known_any",
        "_principals",
        "cluster",
        "host",
        "is_super",
        "principal",
        "tenant",
    )

    def __init__(self, authorizer: Authorizer, principal: str, host: str, tenant: str | None) -> None:
        self._authorizer = authorizer
        self._acls = authorizer.acls
        self._known: dict[int, dict[str, bool]] = {}
        self._known_any: dict[tuple[int, int], bool] = {}
        self.principal = principal
        self.host = host
        self.tenant = tenant
        self.is_super = tenant is None and principal in authorizer.config.super_users
        wildcard = WILDCARD_PRINCIPAL if tenant is None else f"User:{tenant}_{WILDCARD}"
        self._principals = (principal, wildcard)
        self.cluster = CLUSTER_RESOURCE if tenant is None else cluster_resource(tenant)
        """The resource name of the cluster."""

    def may(self, operation: int, resource_type: int, name: str) -> bool:
        """`operation` and `resource_type`: numbers of Kafka's AclOperation and ResourceType."""
        if self._acls is not self._authorizer.acls:
            self._acls = self._authorizer.acls
            self._known = {}
            self._known_any = {}
        key = operation * _RESOURCE_TYPES + resource_type
        names = self._known.get(key)
        if names is None:
            names = self._known[key] = {}
        allowed = names.get(name)
        if allowed is None:
            allowed = self._decide(operation, resource_type, name)
            if len(name) <= KNOWN_NAME_LENGTH_MAX:
                if len(names) >= KNOWN_NAMES_MAX:
                    names.clear()
                names[name] = allowed
        return allowed

    def may_cluster(self, operation: int) -> bool:
        return self.may(operation, AclResource.CLUSTER, self.cluster)

    def operations(self, all_of_them: Iterable[int], resource_type: int, name: str) -> tuple[int, ...]:
        """The allowed ones of `all_of_them`."""
        return tuple(operation for operation in all_of_them if self.may(operation, resource_type, name))

    def _decide(self, operation: int, resource_type: int, name: str) -> bool:
        if self.is_super:
            return True
        allowed = found = False
        for acl in self._acls.matching(AclResource(resource_type), name):
            found = True
            if self._concerns(acl) and _speaks_of(acl, operation):
                if acl.permission != _ALLOW:
                    return False
                allowed = True
        if found or self.tenant is not None:
            return allowed
        return self._authorizer.config.allow_everyone_if_no_acl_found

    def _concerns(self, acl: AclImage) -> bool:
        return acl.principal in self._principals and acl.host in (WILDCARD, self.host)

    # any resource of a type --------------------------------------------------------------------------------

    def may_any(self, operation: int, resource_type: int) -> bool:
        """Whether `operation` is allowed for at least one possible resource of the type.

        The first call looks at all ACLs of the type.
        """
        if self._acls is self._authorizer.acls and (operation, resource_type) in self._known_any:
            return self._known_any[operation, resource_type]
        found = self._find_any(operation, resource_type)
        self._known_any[operation, resource_type] = found
        return found

    def _find_any(self, operation: int, resource_type: int) -> bool:
        if self.may(operation, resource_type, "hardcode" if self.tenant is None else f"{self.tenant}_hardcode"):
            return True
        allowed: tuple[dict[str, None], dict[str, None]] = ({}, {})
        denied: tuple[dict[str, None], dict[str, None]] = ({}, {})
        for acl in self._of_type(AclResource(resource_type)):
            if not self._concerns(acl) or acl.operation not in (operation, _ALL):
                continue
            prefixed = int(acl.pattern_type == AclPattern.PREFIXED)
            is_allowed = acl.permission == _ALLOW
            if not is_allowed and not prefixed and acl.resource_name == WILDCARD:
                return False
            (allowed if is_allowed else denied)[prefixed][acl.resource_name] = None
        if WILDCARD in allowed[0]:
            return True
        return any(
            not (not prefixed and name in denied[0]) and not any(name[:end] in denied[1] for end in _ends(name))
            for prefixed in (0, 1)
            for name in allowed[prefixed]
        )

    def _of_type(self, resource_type: AclResource) -> Iterable[AclImage]:
        acls = self._acls
        if self.tenant is not None:
            return (acl for acl in acls.of_tenant(self.tenant) if acl.resource_type == resource_type)
        resource = acls.of_type(resource_type)
        return (acl for table in (resource.literal, resource.prefixed) for row in table.values() for acl in row)


def as_bits(operations: tuple[int, ...]) -> int:
    """Operations as a bit field, for the schemas that have one."""
    return sum(1 << operation for operation in operations)


def _speaks_of(acl: AclImage, operation: int) -> bool:
    if acl.operation in (_ALL, operation):
        return True
    return acl.permission == _ALLOW and acl.operation in _IMPLYING.get(operation, ())


def _ends(name: str) -> range:
    return range(1, len(name) + 1)
