"""Filters over ACLs, as DescribeAcls and DeleteAcls give them. Pure.

Source of the meaning: Apache Kafka's ResourcePatternFilter and AccessControlEntryFilter. ANY matches all; the pattern
type MATCH finds whatever speaks of the named resource, be it literal, the wildcard or a prefix of the name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from common.errors import ErrorCode, ProtocolError
from kraft.image.acls import WILDCARD, AclImage, AclsImage
from kraft.records import AclOperation, AclPattern, AclPermission, AclResource

ANY = 1
MATCH = 2


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Numbers are Kafka's; None matches every name, principal or host."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def check(self) -> None:
        """Raises INVALID_REQUEST for numbers that mean nothing here."""
        if not (
            _known(self.resource_type, AclResource)
            and (self.pattern_type == MATCH or _known(self.pattern_type, AclPattern))
        ):
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "The filter's resource type or pattern type is not known.")
        if not (_known(self.operation, AclOperation) and _known(self.permission, AclPermission)):
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "The filter's operation or permission is not known.")

    def matches(self, acl: AclImage) -> bool:
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self.pattern_type in (ANY, MATCH, acl.pattern_type)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, acl.permission)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and self._names(acl)
        )

    def _names(self, acl: AclImage) -> bool:
        name = self.resource_name
        if name is None:
            return True
        if self.pattern_type != MATCH:
            return name == acl.resource_name
        if acl.pattern_type == AclPattern.LITERAL:
            return acl.resource_name in (name, WILDCARD)
        return name.startswith(acl.resource_name)

    def find(self, acls: AclsImage) -> list[AclImage]:
        """In an order that does not depend on how the image came to be."""
        found = [acl for acl in self._candidates(acls) if self.matches(acl)]
        return sorted(found, key=lambda acl: (acl.binding, acl.id))

    def _candidates(self, acls: AclsImage) -> Iterable[AclImage]:
        name = self.resource_name
        if name is None:
            return acls
        types = list(AclResource) if self.resource_type == ANY else [AclResource(self.resource_type)]
        found: dict[bytes, AclImage] = {}
        for resource_type in types:
            resource = acls.of_type(resource_type)
            exact = (*resource.literal.get(name, ()), *resource.prefixed.get(name, ()))
            for acl in (*exact, *resource.matching(name)) if self.pattern_type == MATCH else exact:
                found[acl.id] = acl
        return found.values()


def _known(number: int, kind: type[AclResource | AclPattern | AclOperation | AclPermission]) -> bool:
    return number == ANY or any(number == member for member in kind)
