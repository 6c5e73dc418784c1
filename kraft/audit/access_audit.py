"""Audit events of credentials, ACLs, tenants, keys and cells; a part of `kraft.audit.metadata_audit`. Pure.

No event holds any part of a verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kraft.image.acls import AclImage
from kraft.image.cells import CellImage
from kraft.image.credentials import ApiKeyImage
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.records import (
    AclRecord,
    ApiKeyRecord,
    CellRecord,
    MetadataRecord,
    RemoveAclRecord,
    RemoveApiKeyRecord,
    RemoveScramCredentialRecord,
    RemoveTenantRecord,
    ScramCredentialRecord,
    TenantRecord,
)
from records.audit_event import AuditKind

Fields = dict[str, Any]


class AccessAudit:
    """Knows what was before from an image, where there is one, and from the records since."""

    def __init__(self, base: MetadataImage | None) -> None:
        self._base = base
        self._acls: dict[bytes, AclImage | None] = {}
        self._tenants: dict[str, TenantImage | None] = {}
        self._keys: dict[str, ApiKeyImage | None] = {}
        self._cells: dict[str, CellImage] = {}

    def scram(self, record: ScramCredentialRecord) -> Fields:
        after = {"user": record.name, "mechanism": record.mechanism.name, "iterations": record.iterations}
        return {"event": AuditKind.CREDENTIAL_CHANGED, "after": after}

    def scram_removed(self, record: RemoveScramCredentialRecord) -> Fields:
        before = {"user": record.name, "mechanism": record.mechanism.name}
        return {"event": AuditKind.CREDENTIAL_REMOVED, "before": before}

    def acl(self, record: AclRecord) -> Fields:
        acl = self._acls[record.id] = AclImage.of(record)
        return {"event": AuditKind.ACL_CREATED, "after": acl.fields()}

    def acl_removed(self, record: RemoveAclRecord) -> Fields:
        known = self._acls.get(record.id)
        if known is None and self._base is not None and record.id not in self._acls:
            known = self._base.acls.get(record.id)
        self._acls[record.id] = None
        before = known.fields() if known is not None else {"id": record.id.hex()}
        return {"event": AuditKind.ACL_DELETED, "before": before}

    def tenant(self, record: TenantRecord) -> Fields:
        known = self._tenants.get(record.id)
        if known is None and self._base is not None and record.id not in self._tenants:
            known = self._base.tenants.get(record.id)
        tenant = self._tenants[record.id] = TenantImage.of(record)
        before, after = _changes(_tenant(known) if known is not None else {}, _tenant(tenant))
        return {"event": AuditKind.TENANT_CHANGED, "before": before, "after": {"id": record.id} | after}

    def tenant_removed(self, record: RemoveTenantRecord) -> Fields:
        self._tenants[record.id] = None
        return {"event": AuditKind.TENANT_DELETED, "before": {"id": record.id}}

    def key(self, record: ApiKeyRecord) -> Fields:
        known = self._keys.get(record.id)
        if known is None and self._base is not None and record.id not in self._keys:
            known = self._base.keys.get(record.id)
        key = self._keys[record.id] = ApiKeyImage.of(record)
        before, after = _changes(_key(known) if known is not None else {}, _key(key))
        return {"event": AuditKind.API_KEY_CHANGED, "before": before, "after": {"id": record.id} | after}

    def key_removed(self, record: RemoveApiKeyRecord) -> Fields:
        self._keys[record.id] = None
        return {"event": AuditKind.API_KEY_REVOKED, "before": {"id": record.id}}

    def cell(self, record: CellRecord) -> Fields:
        known = self._cells.get(record.name)
        if known is None and self._base is not None:
            known = self._base.cells.get(record.name)
        cell = self._cells[record.name] = CellImage.of(record)
        before, after = _changes(_cell(known) if known is not None else {}, _cell(cell))
        return {"event": AuditKind.CELL_CHANGED, "before": before, "after": {"name": record.name} | after}


def _changes(before: Fields, after: Fields) -> tuple[Fields, Fields]:
    changed = [name for name in after if name not in before or before[name] != after[name]]
    return {name: before[name] for name in changed if name in before}, {name: after[name] for name in changed}


def _tenant(tenant: TenantImage) -> Fields:
    return {
        "name": tenant.name,
        "cell": tenant.cell,
        "limits": dict(tenant.limits),
        "allow_networks": list(tenant.allow_networks),
        "deny_networks": list(tenant.deny_networks),
        "state": tenant.state.name,
        "target_cell": tenant.target_cell,
        "keys_cell": tenant.keys_cell,
        "keys_target": tenant.keys_target,
        "keys_phase": tenant.keys_phase.name,
    }


def _key(key: ApiKeyImage) -> Fields:
    return {"tenant": key.tenant, "description": key.description, "roles": list(key.roles)}


def _cell(cell: CellImage) -> Fields:
    return {"is_open": cell.is_open, "limits": dict(cell.limits)}


ACCESS_RULES: Mapping[type[MetadataRecord], Callable[[AccessAudit, Any], Fields]] = {
    ScramCredentialRecord: AccessAudit.scram,
    RemoveScramCredentialRecord: AccessAudit.scram_removed,
    AclRecord: AccessAudit.acl,
    RemoveAclRecord: AccessAudit.acl_removed,
    TenantRecord: AccessAudit.tenant,
    RemoveTenantRecord: AccessAudit.tenant_removed,
    ApiKeyRecord: AccessAudit.key,
    RemoveApiKeyRecord: AccessAudit.key_removed,
    CellRecord: AccessAudit.cell,
}
