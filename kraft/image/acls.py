"""All ACLs, by id and by resource."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec import Struct, field

from common.pacing import Work, at_once
from kraft.image.sharded_map import ShardedMap
from kraft.image.tenants import tenant_of
from kraft.records import AclOperation, AclPattern, AclPermission, AclRecord, AclResource

CHANGES_PER_STEP, CHANGE_COST = 100, 4
WILDCARD = "*"
"""As a literal resource name: every resource of its type. As a host: every host."""
WILDCARD_PRINCIPAL = "User:*"
CLUSTER_RESOURCE = "kafka-cluster"
"""The only name of a CLUSTER resource."""


@dataclass(frozen=True, slots=True)
class AclImage:
    """One binding. `principal` is `Type:name` or `User:*`, `host` an address or `*`. Field names are AclRecord's."""

    id: bytes
    resource_type: AclResource
    resource_name: str
    pattern_type: AclPattern
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    @classmethod
    def of(cls, record: AclRecord) -> AclImage:
        return cls(
            record.id,
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission,
        )

    def record(self) -> AclRecord:
        return AclRecord(
            self.id,
            self.resource_type,
            self.resource_name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )

    @property
    def binding(self) -> tuple[int, str, int, str, str, int, int]:
        """All fields except the id: unique."""
        return (
            self.resource_type,
            self.resource_name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )

    @property
    def owner(self) -> str | None:
        """The id of the tenant that owns the resource, or else the principal; None for an operator's ACL."""
        return tenant_of(self.resource_name) or tenant_of(self.principal.partition(":")[2])


Bindings = tuple[AclImage, ...]


class ResourceAcls(Struct, frozen=True):
    """ACLs of one resource type. `lengths`: number of prefixes by length."""

    literal: ShardedMap[str, Bindings] = field(default_factory=ShardedMap)
    prefixed: ShardedMap[str, Bindings] = field(default_factory=ShardedMap)
    lengths: Mapping[int, int] = field(default_factory=dict)

    def matching(self, name: str) -> Iterator[AclImage]:
        yield from self.literal.get(name, ())
        if name != WILDCARD:
            yield from self.literal.get(WILDCARD, ())
        for length in self.lengths:
            if length <= len(name):
                yield from self.prefixed.get(name[:length], ())


_NO_ACLS = ResourceAcls()


class AclsImage(Struct, frozen=True):
    """Immutable; a changed image shares unchanged parts. Caches compare images by identity."""

    by_id: ShardedMap[bytes, AclImage] = field(default_factory=ShardedMap)
    by_resource: Mapping[AclResource, ResourceAcls] = field(default_factory=dict)
    by_tenant: ShardedMap[str, tuple[bytes, ...]] = field(default_factory=ShardedMap)

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[AclImage]:
        return iter(self.by_id.values())

    def get(self, acl_id: bytes) -> AclImage | None:
        return self.by_id.get(acl_id)

    def of_type(self, resource_type: AclResource) -> ResourceAcls:
        return self.by_resource.get(resource_type, _NO_ACLS)

    def matching(self, resource_type: AclResource, name: str) -> Iterator[AclImage]:
        """Every ACL that applies to the resource: literal, wildcard, and each prefix of its name."""
        return self.of_type(resource_type).matching(name)

    def of_tenant(self, tenant: str) -> list[AclImage]:
        return [self.by_id[acl_id] for acl_id in self.by_tenant.get(tenant, ())]

    def find(self, acl: AclImage) -> AclImage | None:
        """The ACL with the same binding, whatever its id."""
        return next((a for a in self.like(acl) if a.binding == acl.binding), None)

    def like(self, acl: AclImage) -> Bindings:
        """ACLs with the same resource pattern."""
        resource = self.of_type(acl.resource_type)
        table = resource.literal if acl.pattern_type == AclPattern.LITERAL else resource.prefixed
        return table.get(acl.resource_name, ())

    def changed(self, changes: Mapping[bytes, AclImage | None]) -> AclsImage:
        """With each id of `changes` set, or removed if the value is None."""
        return at_once(self.changing(changes))

    def changing(self, changes: Mapping[bytes, AclImage | None]) -> Work[AclsImage]:
        """As `changed`, as work."""
        tables: _Tables = {}
        owned: dict[str, dict[bytes, None]] = {}
        for number, (acl_id, new) in enumerate(changes.items(), 1):
            for acl, is_new in ((self.by_id.get(acl_id), False), (new, True)):
                if acl is not None:
                    self._reindex(tables, acl, is_new=is_new)
                    self._reown(owned, acl, is_new=is_new)
            if number % CHANGES_PER_STEP == 0:
                yield CHANGES_PER_STEP * CHANGE_COST
        by_resource = dict(self.by_resource)
        for resource_type, (literal, prefixed) in tables.items():
            by_resource[resource_type] = _with(self.of_type(resource_type), _bindings(literal), _bindings(prefixed))
            yield len(literal) + len(prefixed)
        by_tenant = self.by_tenant.changed({tenant: tuple(ids) or None for tenant, ids in owned.items()})
        yield len(owned)
        return AclsImage(self.by_id.changed(changes), by_resource, by_tenant)

    def _reown(self, owned: dict[str, dict[bytes, None]], acl: AclImage, *, is_new: bool) -> None:
        owner = acl.owner
        if owner is None:
            return
        ids = owned.setdefault(owner, dict.fromkeys(self.by_tenant.get(owner, ())))
        if is_new:
            ids[acl.id] = None
        else:
            ids.pop(acl.id, None)

    def _reindex(self, tables: _Tables, acl: AclImage, *, is_new: bool) -> None:
        resource = self.of_type(acl.resource_type)
        at = 0 if acl.pattern_type == AclPattern.LITERAL else 1
        names = tables.setdefault(acl.resource_type, ({}, {}))[at]
        bindings = names.get(acl.resource_name)
        if bindings is None:
            present = (resource.literal, resource.prefixed)[at].get(acl.resource_name, ())
            bindings = names[acl.resource_name] = {other.id: other for other in present}
        if is_new:
            bindings[acl.id] = acl
        else:
            bindings.pop(acl.id, None)


_Tables = dict[AclResource, tuple[dict[str, dict[bytes, AclImage]], dict[str, dict[bytes, AclImage]]]]
"""Of each type the literal and the prefixed resources that change, by name: their ACLs by id."""


def _bindings(names: dict[str, dict[bytes, AclImage]]) -> dict[str, Bindings]:
    return {name: tuple(bindings.values()) for name, bindings in names.items()}


def _with(base: ResourceAcls, literal: dict[str, Bindings], prefixed: dict[str, Bindings]) -> ResourceAcls:
    lengths = dict(base.lengths)
    for name, bindings in prefixed.items():
        step = bool(bindings) - (name in base.prefixed)
        if step:
            lengths[len(name)] = lengths.get(len(name), 0) + step
            if not lengths[len(name)]:
                del lengths[len(name)]
    return ResourceAcls(
        base.literal.changed({name: bindings or None for name, bindings in literal.items()}),
        base.prefixed.changed({name: bindings or None for name, bindings in prefixed.items()}),
        lengths,
    )
