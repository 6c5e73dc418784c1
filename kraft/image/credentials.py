"""Verifiers of users and of API keys, and the API keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from kraft.image.sharded_map import ShardedMap
from kraft.records import ApiKeyRecord, ScramCredentialRecord, ScramMechanism


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """A verifier (RFC 5802). It can check a password, but not be used to log in. Never shown."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @classmethod
    def of(cls, record: ScramCredentialRecord) -> ScramCredential:
        return cls(record.salt, record.stored_key, record.server_key, record.iterations)

    def record(self, name: str, mechanism: ScramMechanism) -> ScramCredentialRecord:
        return ScramCredentialRecord(name, mechanism, self.salt, self.stored_key, self.server_key, self.iterations)


ScramCredentials = Mapping[ScramMechanism, ScramCredential]
"""One user's verifiers, never empty."""


class ApiKeyImage(Struct, frozen=True):
    """`id` is also the name of the SCRAM user; the principal is `User:<tenant>_<id>`."""

    id: str
    tenant: str
    description: str
    roles: tuple[str, ...]
    created_ms: int

    @property
    def principal(self) -> str:
        return f"User:{self.tenant}_{self.id}"

    @classmethod
    def of(cls, record: ApiKeyRecord) -> ApiKeyImage:
        return cls(record.id, record.tenant, record.description, record.roles, record.created_ms)

    def record(self) -> ApiKeyRecord:
        return ApiKeyRecord(self.id, self.tenant, self.description, self.roles, self.created_ms)


class ApiKeysImage(Mapping[str, ApiKeyImage]):
    """All keys by id; immutable. `of_tenant` returns the ids of one tenant's keys."""

    __slots__ = ("_by_id", "_by_tenant")

    def __init__(
        self,
        by_id: ShardedMap[str, ApiKeyImage] | None = None,
        by_tenant: ShardedMap[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._by_id = ShardedMap[str, ApiKeyImage]() if by_id is None else by_id
        self._by_tenant = ShardedMap[str, tuple[str, ...]]() if by_tenant is None else by_tenant

    def __getitem__(self, key_id: str) -> ApiKeyImage:
        return self._by_id[key_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def of_tenant(self, tenant: str) -> tuple[str, ...]:
        return self._by_tenant.get(tenant, ())

    def changed(self, changes: Mapping[str, ApiKeyImage | None]) -> ApiKeysImage:
        tenants: dict[str, dict[str, None]] = {}
        for key_id, new in changes.items():
            for key, is_new in ((self._by_id.get(key_id), False), (new, True)):
                if key is None:
                    continue
                ids = tenants.setdefault(key.tenant, dict.fromkeys(self.of_tenant(key.tenant)))
                if is_new:
                    ids[key_id] = None
                else:
                    ids.pop(key_id, None)
        by_tenant = self._by_tenant.changed({tenant: tuple(ids) or None for tenant, ids in tenants.items()})
        return ApiKeysImage(self._by_id.changed(changes), by_tenant)
