"""Replay of who may do what: credentials, ACLs, tenants, keys and cells; a part of `MetadataDelta`.

What a record removes may be gone already: removals name what they mean by an id that is never used again, or a user
and a mechanism, so that a second removal changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from common.pacing import Work
from kraft.image.acls import AclImage, AclsImage
from kraft.image.cells import CellImage
from kraft.image.credentials import ApiKeyImage, ApiKeysImage, ScramCredential, ScramCredentials
from kraft.image.metadata import MetadataImage
from kraft.image.sharded_map import ShardedMap
from kraft.image.tenants import TenantImage, TenantsImage
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

_Key = TypeVar("_Key", str, bytes)
_Value = TypeVar("_Value")


class AccessDelta:
    """What changed, each by its key: → what was there in the base, None for what is new."""

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self.scram_changed: dict[str, ScramCredentials | None] = {}
        """By user name."""
        self.acls_changed: dict[bytes, AclImage | None] = {}
        self.tenants_changed: dict[str, TenantImage | None] = {}
        """By tenant id."""
        self.keys_changed: dict[str, ApiKeyImage | None] = {}
        self.cells_changed: dict[str, CellImage | None] = {}
        self._scram: dict[str, ScramCredentials | None] = {}
        self._acls: dict[bytes, AclImage | None] = {}
        self._tenants: dict[str, TenantImage | None] = {}
        self._keys: dict[str, ApiKeyImage | None] = {}
        self._cells: dict[str, CellImage | None] = {}

    @property
    def is_empty(self) -> bool:
        return not (
            self.scram_changed or self.acls_changed or self.tenants_changed or self.keys_changed or self.cells_changed
        )

    def scram_image(self) -> ShardedMap[str, ScramCredentials]:
        base = self._base.scram
        return base.changed(self._scram) if self._scram else base

    def acls_imaging(self) -> Work[AclsImage]:
        return (yield from self._base.acls.changing(self._acls)) if self._acls else self._base.acls

    def tenants_image(self) -> TenantsImage:
        return self._base.tenants.changed(self._tenants) if self._tenants else self._base.tenants

    def keys_image(self) -> ApiKeysImage:
        return self._base.keys.changed(self._keys) if self._keys else self._base.keys

    def cells_image(self) -> Mapping[str, CellImage]:
        if not self._cells:
            return self._base.cells
        changed = {**self._base.cells, **self._cells}
        return {name: cell for name, cell in changed.items() if cell is not None}

    # replay ------------------------------------------------------------------------------------------------

    def scram(self, record: ScramCredentialRecord) -> None:
        present = self._credentials(record.name)
        self._put_credentials(record.name, {**present, record.mechanism: ScramCredential.of(record)})

    def remove_scram(self, record: RemoveScramCredentialRecord) -> None:
        left = {m: c for m, c in self._credentials(record.name).items() if m != record.mechanism}
        self._put_credentials(record.name, left or None)

    def _credentials(self, name: str) -> ScramCredentials:
        present = self._scram[name] if name in self._scram else self._base.scram.get(name)
        return present or {}

    def _put_credentials(self, name: str, credentials: ScramCredentials | None) -> None:
        self.scram_changed.setdefault(name, self._base.scram.get(name))
        self._scram[name] = credentials

    def acl(self, record: AclRecord) -> None:
        self._put_acl(record.id, AclImage.of(record))

    def remove_acl(self, record: RemoveAclRecord) -> None:
        self._put_acl(record.id, None)

    def _put_acl(self, acl_id: bytes, acl: AclImage | None) -> None:
        self.acls_changed.setdefault(acl_id, self._base.acls.get(acl_id))
        self._acls[acl_id] = acl

    def tenant(self, record: TenantRecord) -> None:
        self._put_tenant(record.id, TenantImage.of(record))

    def remove_tenant(self, record: RemoveTenantRecord) -> None:
        self._put_tenant(record.id, None)

    def _put_tenant(self, tenant_id: str, tenant: TenantImage | None) -> None:
        self.tenants_changed.setdefault(tenant_id, self._base.tenants.get(tenant_id))
        self._tenants[tenant_id] = tenant

    def key(self, record: ApiKeyRecord) -> None:
        self._put_key(record.id, ApiKeyImage.of(record))

    def remove_key(self, record: RemoveApiKeyRecord) -> None:
        self._put_key(record.id, None)

    def _put_key(self, key_id: str, key: ApiKeyImage | None) -> None:
        self.keys_changed.setdefault(key_id, self._base.keys.get(key_id))
        self._keys[key_id] = key

    def cell(self, record: CellRecord) -> None:
        self.cells_changed.setdefault(record.name, self._base.cells.get(record.name))
        self._cells[record.name] = CellImage.of(record)


def access_difference(delta: AccessDelta, old: MetadataImage, new: MetadataImage) -> None:
    """Name in `delta` what differs between the two images."""
    _name_changed(delta.scram_changed, old.scram, new.scram)
    _name_changed(delta.acls_changed, old.acls.by_id, new.acls.by_id)
    _name_changed(delta.tenants_changed, old.tenants, new.tenants)
    _name_changed(delta.keys_changed, old.keys, new.keys)
    _name_changed(delta.cells_changed, old.cells, new.cells)


def _name_changed(changed: dict[_Key, _Value | None], old: Mapping[_Key, _Value], new: Mapping[_Key, _Value]) -> None:
    for key in old:
        if key not in new:
            changed[key] = old[key]
    for key, value in new.items():
        if old.get(key) != value:
            changed[key] = old.get(key)
