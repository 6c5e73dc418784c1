"""Audit events of credentials, ACLs, tenants, keys and cells; part of `kraft.audit.metadata_audit`. No I/O.

No event has any part of a verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kraft.audit.metadata_export import fields_of
from kraft.batches import MetadataRecord
from kraft.image.metadata import MetadataImage
from kraft.records import (
    AclRecord,
    ApiKeyRecord,
    CellRecord,
    RemoveAclRecord,
    RemoveApiKeyRecord,
    RemoveScramCredentialRecord,
    RemoveTenantRecord,
    ScramCredentialRecord,
    TenantRecord,
)
from records.audit_event import AuditKind

Fields = dict[str, Any]


class _Kind(NamedTuple):
    """Things that whole records replace: `key` is the field that names one, `held` is where an image has them.
    Their events leave out the fields `left_out`."""

    key: str
    held: Callable[[MetadataImage], Mapping[Any, Any]]
    changed: AuditKind
    removed: AuditKind | None = None
    left_out: tuple[str, ...] = ()


_ACL = _Kind("id", lambda image: image.acls.by_id, AuditKind.ACL_CREATED, AuditKind.ACL_DELETED)
_TENANT = _Kind(
    "id",
    lambda image: image.tenants,
    AuditKind.TENANT_CHANGED,
    AuditKind.TENANT_DELETED,
    left_out=("id", "created_ms", "epoch", "keys_epoch"),
)
_KEY = _Kind(
    "id", lambda image: image.keys, AuditKind.API_KEY_CHANGED, AuditKind.API_KEY_REVOKED, left_out=("id", "created_ms")
)
_CELL = _Kind("name", lambda image: image.cells, AuditKind.CELL_CHANGED, left_out=("name",))


class AccessAudit:
    """Takes the earlier state from an image, if there is one, and from the records since."""

    def __init__(self, base: MetadataImage | None) -> None:
        self._base = base
        self._seen: dict[tuple[AuditKind, str | bytes], MetadataRecord | None] = {}
        """By kind and key: the newest record, None once the thing is removed."""

    def scram(self, record: ScramCredentialRecord) -> Fields:
        after = {"user": record.name, "mechanism": record.mechanism.name, "iterations": record.iterations}
        return {"event": AuditKind.CREDENTIAL_CHANGED, "after": after}

    def scram_removed(self, record: RemoveScramCredentialRecord) -> Fields:
        before = {"user": record.name, "mechanism": record.mechanism.name}
        return {"event": AuditKind.CREDENTIAL_REMOVED, "before": before}

    def acl(self, record: AclRecord) -> Fields:
        self._seen[_ACL.changed, record.id] = record
        return {"event": _ACL.changed, "after": fields_of(record)}

    def acl_removed(self, record: RemoveAclRecord) -> Fields:
        known = self._known(_ACL, record.id)
        before = fields_of(known) if known is not None else {"id": record.id.hex()}
        return self.removed(_ACL, record) | {"before": before}

    def changed(self, kind: _Kind, record: MetadataRecord) -> Fields:
        key = getattr(record, kind.key)
        known = self._known(kind, key)
        self._seen[kind.changed, key] = record
        old = fields_of(known, *kind.left_out) if known is not None else {}
        new = fields_of(record, *kind.left_out)
        changed = [name for name in new if name not in old or old[name] != new[name]]
        before = {name: old[name] for name in changed if name in old}
        return {"event": kind.changed, "before": before, "after": {kind.key: key} | {n: new[n] for n in changed}}

    def removed(self, kind: _Kind, record: RemoveAclRecord | RemoveTenantRecord | RemoveApiKeyRecord) -> Fields:
        self._seen[kind.changed, record.id] = None
        return {"event": kind.removed, "before": {"id": record.id}}

    def _known(self, kind: _Kind, key: str | bytes) -> MetadataRecord | None:
        if (kind.changed, key) in self._seen or self._base is None:
            return self._seen.get((kind.changed, key))
        held = kind.held(self._base).get(key)
        record: MetadataRecord | None = held.record() if held is not None else None
        return record


ACCESS_RULES: Mapping[type[MetadataRecord], Callable[[AccessAudit, Any], Fields]] = {
    ScramCredentialRecord: AccessAudit.scram,
    RemoveScramCredentialRecord: AccessAudit.scram_removed,
    AclRecord: AccessAudit.acl,
    RemoveAclRecord: AccessAudit.acl_removed,
    TenantRecord: lambda audit, record: audit.changed(_TENANT, record),
    RemoveTenantRecord: lambda audit, record: audit.removed(_TENANT, record),
    ApiKeyRecord: lambda audit, record: audit.changed(_KEY, record),
    RemoveApiKeyRecord: lambda audit, record: audit.removed(_KEY, record),
    CellRecord: lambda audit, record: audit.changed(_CELL, record),
}
