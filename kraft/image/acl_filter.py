"""ACL filters of DescribeAcls and DeleteAcls. No I/O.

The meaning is that of Apache Kafka's ResourcePatternFilter and AccessControlEntryFilter. ANY matches all; the pattern
type MATCH finds every ACL that applies to the named resource: literal, wildcard, or a prefix of the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge

from msgspec import Struct

from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.acls import WILDCARD, AclImage, AclsImage
from kraft.records import AclOperation, AclPattern, AclPermission, AclResource

ANY = 1
MATCH = 2
CHECKED_PER_STEP, SORTED_PER_STEP, MERGED_COST = 200, 100, 5  # elements, and units of `common.pacing`


def _order(acl: AclImage) -> tuple[object, bytes]:
    return acl.binding, acl.id


class AclFilter(Struct, frozen=True):
    """Numbers are Kafka's; None matches every name, principal or host."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def check(self) -> None:
        """Raises INVALID_REQUEST for unknown numbers."""
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
        """Matches in an order that does not depend on the image's history."""
        found = [acl for acl in self._candidates(acls) if self.matches(acl)]
        return sorted(found, key=_order)

    def find_work(self, acls: AclsImage) -> Work[list[AclImage]]:
        """`find` in steps: matching, sorting in runs, merging them."""
        runs: list[list[AclImage]] = [[]]
        for number, acl in enumerate(self._candidates(acls)):
            if number % CHECKED_PER_STEP == 0:
                yield CHECKED_PER_STEP
            if self.matches(acl):
                runs[-1].append(acl)
                if len(runs[-1]) == SORTED_PER_STEP:
                    runs[-1].sort(key=_order)
                    yield 4 * SORTED_PER_STEP
                    runs.append([])
        runs[-1].sort(key=_order)
        found: list[AclImage] = []
        for acl in merge(*runs, key=_order):
            found.append(acl)
            yield MERGED_COST
        return found

    def _candidates(self, acls: AclsImage) -> Iterable[AclImage]:
        name = self.resource_name
        if name is None:
            return acls
        types = list(AclResource) if self.resource_type == ANY else [AclResource(self.resource_type)]
        return self._named(acls, types, name)

    def _named(self, acls: AclsImage, types: list[AclResource], name: str) -> Iterator[AclImage]:
        """Each candidate once."""
        for resource_type in types:
            resource = acls.of_type(resource_type)
            if self.pattern_type == MATCH:  # the literal name and each of its prefixes
                yield from resource.matching(name)
            else:
                yield from resource.literal.get(name, ())
                yield from resource.prefixed.get(name, ())


def _known(number: int, kind: type[AclResource | AclPattern | AclOperation | AclPermission]) -> bool:
    return number == ANY or any(number == member for member in kind)
