"""Replay of credentials, ACLs, tenants, keys and cells; a part of `MetadataDelta`.

A removal may concern something that is already gone: it refers to an id that is never reused, or to a user and
mechanism, so that a second removal changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from common.pacing import Work
from kraft.image.acls import AclsImage
from kraft.image.cells import CellImage
from kraft.image.credentials import ApiKeysImage, ScramCredential, ScramCredentials
from kraft.image.metadata import MetadataImage
from kraft.image.sharded_map import ShardedMap
from kraft.image.tenants import TenantsImage
from kraft.records import ScramMechanism

COMPARED_AT_ONCE, COMPARED_COST = 100, 3  # entries, and units of `common.pacing` for each

K = TypeVar("K")
V = TypeVar("V")


class Changes(Generic[K, V]):
    """Changes of one mapping of the image. A value of None stands for an absent key."""

    __slots__ = ("_base", "changed", "now")

    def __init__(self, base: Mapping[K, V]) -> None:
        self._base = base
        self.changed: dict[K, V | None] = {}
        """Each key that changed → its value in the base."""
        self.now: dict[K, V | None] = {}
        """The same keys → their present values."""

    def get(self, key: K) -> V | None:
        return self.now[key] if key in self.now else self._base.get(key)

    def put(self, key: K, value: V | None) -> None:
        self.changed.setdefault(key, self._base.get(key))
        self.now[key] = value

    def finding(self, new: Mapping[K, V]) -> Work[None]:
        """Name in `changed` what differs from `new`."""
        for number, (key, value) in enumerate(self._base.items(), 1):
            if key not in new:
                self.changed[key] = value
            if number % COMPARED_AT_ONCE == 0:
                yield COMPARED_AT_ONCE * COMPARED_COST
        for number, (key, value) in enumerate(new.items(), 1):
            before = self._base.get(key)
            if before != value:
                self.changed[key] = before
            if number % COMPARED_AT_ONCE == 0:
                yield COMPARED_AT_ONCE * COMPARED_COST


class AccessDelta:
    """Changes by user name, ACL id, tenant id, key id and cell name."""

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self.scram = Changes(base.scram)
        self.acls = Changes(base.acls.by_id)
        self.tenants = Changes(base.tenants)
        self.keys = Changes(base.keys)
        self.cells = Changes(base.cells)

    @property
    def is_empty(self) -> bool:
        kinds = (self.scram, self.acls, self.tenants, self.keys, self.cells)
        return not any(kind.changed for kind in kinds)

    def scram_image(self) -> ShardedMap[str, ScramCredentials]:
        base = self._base.scram
        return base.changed(self.scram.now) if self.scram.now else base

    def acls_imaging(self) -> Work[AclsImage]:
        return (yield from self._base.acls.changing(self.acls.now)) if self.acls.now else self._base.acls

    def tenants_image(self) -> TenantsImage:
        return self._base.tenants.changed(self.tenants.now) if self.tenants.now else self._base.tenants

    def keys_image(self) -> ApiKeysImage:
        return self._base.keys.changed(self.keys.now) if self.keys.now else self._base.keys

    def cells_image(self) -> Mapping[str, CellImage]:
        if not self.cells.now:
            return self._base.cells
        changed = {**self._base.cells, **self.cells.now}
        return {name: cell for name, cell in changed.items() if cell is not None}

    def put_scram(self, name: str, mechanism: ScramMechanism, credential: ScramCredential | None) -> None:
        """The user's other verifiers stay."""
        credentials = dict(self.scram.get(name) or {})
        if credential is None:
            credentials.pop(mechanism, None)
        else:
            credentials[mechanism] = credential
        self.scram.put(name, credentials or None)


def access_difference(delta: AccessDelta, new: MetadataImage) -> Work[None]:
    """Record in `delta` what differs between its base and `new`."""
    yield from delta.scram.finding(new.scram)
    yield from delta.acls.finding(new.acls.by_id)
    yield from delta.tenants.finding(new.tenants)
    yield from delta.keys.finding(new.keys)
    yield from delta.cells.finding(new.cells)
