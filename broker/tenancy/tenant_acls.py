"""Filters over ACLs as a tenant means them: over the ACLs that are its own, in the names that it knows. Pure.

An operator's filter cannot be had from a tenant's by rewriting: the tenant's wildcard is a prefix of the cluster's, so
one pattern type becomes another one. So what the tenant sees is filtered, and what it stands for is returned.
"""

from __future__ import annotations

from dataclasses import replace

from broker.tenancy.scope import ForeignName, ProxyAddress, TenantScope, prefix_of
from kraft.image.acl_filter import AclFilter
from kraft.image.acls import AclImage, AclsImage
from kraft.image.topics import TopicsImage
from kraft.records import AclPattern

_NO_TOPICS = TopicsImage()
_NO_PROXIES = ProxyAddress()


def seen_by(tenant: str, acl: AclImage) -> AclImage | None:
    """The ACL in the tenant's names; None for one that an operator made of others' names, which no tenant sees."""
    scope = TenantScope(tenant, prefix_of(tenant), _NO_TOPICS, _NO_PROXIES)
    try:
        name, pattern = scope.resource_out(acl.resource_name, acl.pattern_type)
        principal = scope.principal_out(acl.principal)
    except ForeignName:
        return None
    return replace(acl, resource_name=name, pattern_type=AclPattern(pattern), principal=principal)


def find_acls(wanted: AclFilter, tenant: str, acls: AclsImage) -> list[AclImage]:
    """The cluster's ACLs that the tenant's filter means, in an order that is the tenant's. Cost: the tenant's ACLs."""
    found = []
    for acl in acls.of_tenant(tenant):
        seen = seen_by(tenant, acl)
        if seen is not None and wanted.matches(seen):
            found.append((seen.binding, acl.id, acl))
    return [acl for _, _, acl in sorted(found, key=lambda one: one[:2])]
