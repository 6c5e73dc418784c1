"""A tenant's ACL filters, applied to its own ACLs in its own names. No I/O.

Rewriting cannot turn a tenant's filter into an operator's, because the tenant's wildcard is a prefix in the cluster,
which changes the pattern type. So the ACLs are first translated to the tenant's names, then filtered.
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
    """The ACL in the tenant's names; None if it has other names, which only an operator can give it."""
    scope = TenantScope(tenant, prefix_of(tenant), _NO_TOPICS, _NO_PROXIES)
    try:
        name, pattern = scope.resource_out(acl.resource_name, acl.pattern_type)
        principal = scope.principal_out(acl.principal)
    except ForeignName:
        return None
    return replace(acl, resource_name=name, pattern_type=AclPattern(pattern), principal=principal)


def find_acls(wanted: AclFilter, tenant: str, acls: AclsImage) -> list[AclImage]:
    """The cluster's ACLs that match the tenant's filter, ordered by the tenant's names. The cost is the number of the
    tenant's ACLs."""
    found = []
    for acl in acls.of_tenant(tenant):
        seen = seen_by(tenant, acl)
        if seen is not None and wanted.matches(seen):
            found.append((seen.binding, acl.id, acl))
    return [acl for _, _, acl in sorted(found, key=lambda one: one[:2])]
