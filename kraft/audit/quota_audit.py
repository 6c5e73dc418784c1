"""Audit events of client quotas; part of `kraft.audit.metadata_audit`. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kraft.batches import MetadataRecord
from kraft.fleet_records import ClientQuotaRecord, Entity, RemoveClientQuotaRecord
from kraft.image.client_quotas import key_of
from kraft.image.metadata import MetadataImage
from records.audit_event import AuditKind

Fields = dict[str, Any]


class QuotaAudit:
    """Takes the earlier values from an image, if there is one, and from the records since."""

    def __init__(self, base: MetadataImage | None) -> None:
        self._base = base
        self._seen: dict[str, Mapping[str, float]] = {}

    def changed(self, record: ClientQuotaRecord) -> Fields:
        before, after = self._before(record.entity), record.values
        self._seen[key_of(record.entity)] = after
        return {
            "event": AuditKind.CLIENT_QUOTA_CHANGED,
            "before": {key: value for key, value in before.items() if after.get(key) != value},
            "after": _named(record.entity)
            | {key: after.get(key) for key in (*after, *before) if after.get(key) != before.get(key)},
        }

    def removed(self, record: RemoveClientQuotaRecord) -> Fields:
        before = self._before(record.entity)
        self._seen[key_of(record.entity)] = {}
        return {"event": AuditKind.CLIENT_QUOTA_REMOVED, "before": _named(record.entity) | dict(before)}

    def _before(self, entity: Entity) -> Mapping[str, float]:
        key = key_of(entity)
        if key in self._seen:
            return self._seen[key]
        known = self._base.client_quotas.get(key) if self._base is not None else None
        return {} if known is None else known.values


def _named(entity: Entity) -> Fields:
    return {"entity": key_of(entity)}


QUOTA_RULES: Mapping[type[MetadataRecord], Callable[[QuotaAudit, Any], Fields]] = {
    ClientQuotaRecord: QuotaAudit.changed,
    RemoveClientQuotaRecord: QuotaAudit.removed,
}
