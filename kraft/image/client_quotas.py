"""Quotas of clients: what users, client ids and addresses may use.

An entity is a combination of names: of a user, of a client id, of both, or of an address. A name of None stands for
every one that has no quota of its own (Apache Kafka's default). The quotas that a tenant sets for its own clients are
entities too, with the tenant's id in front; operators' entities have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import quote

from kraft.fleet_records import ClientQuotaRecord, Entity
from kraft.image.sharded_map import ShardedMap

TENANT, USER, CLIENT_ID, IP = "tenant", "user", "client-id", "ip"
TYPES = (TENANT, USER, CLIENT_ID, IP)
"""The types of names, in their order within an entity."""
PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE, MUTATION_RATE = "request_percentage", "controller_mutation_rate"
CONNECTION_RATE = "connection_creation_rate"
LONG_MAX, INT_MAX, FRACTION = (1 << 63) - 1, (1 << 31) - 1, None
QUOTAS_OF_CLIENTS: Mapping[str, int | None] = {
    PRODUCER_BYTE_RATE: LONG_MAX,
    CONSUMER_BYTE_RATE: LONG_MAX,
    REQUEST_PERCENTAGE: FRACTION,
    MUTATION_RATE: FRACTION,
}
QUOTAS_OF_ADDRESSES: Mapping[str, int | None] = {CONNECTION_RATE: INT_MAX}
"""The largest value of each quota; FRACTION where it need not be a whole number."""
OPERATORS = ""
"""Stands for the tenant of operators' entities."""

NAME_CHARACTERS_MAX = 1_000
"""Of a name in an entity."""

_FOLDERS = {TENANT: "tenants", USER: "users", CLIENT_ID: "clients", IP: "ips"}
_DEFAULT = "<default>"


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """The entity with these names by type. An address is in its shortest form, as connections have it."""
    return tuple((kind, _canonical(kind, names[kind])) for kind in TYPES if kind in names)


def key_of(entity: Entity) -> str:
    """The entity as text, such as users/alice/clients/<default>."""
    return "/".join([f"{_FOLDERS[kind]}/{_DEFAULT if name is None else quote(name, safe='')}" for kind, name in entity])


def _canonical(kind: str, name: str | None) -> str | None:
    if kind != IP or name is None:
        return name
    try:
        address = ip_address(name)
    except ValueError:
        return name  # no address: `check` of who takes it says so
    return str(getattr(address, "ipv4_mapped", None) or address)


class ClientQuota(NamedTuple):
    """The quotas of one entity: values per second by key, at least one."""

    entity: Entity
    values: Mapping[str, float]

    @property
    def tenant(self) -> str:
        return tenant_of(self.entity)

    def record(self) -> ClientQuotaRecord:
        return ClientQuotaRecord(self.entity, dict(self.values))


def tenant_of(entity: Entity) -> str:
    """The tenant that set the entity's quotas, or OPERATORS."""
    kind, name = entity[0]
    return name or OPERATORS if kind == TENANT else OPERATORS


class Level(NamedTuple):
    """A quota that applies to a client, and the names that share it."""

    bound: float
    shared_by: tuple[str | None, str | None]
    """User and client id; None for one that makes no difference."""


class ClientQuotasImage(Mapping[str, ClientQuota]):
    """By `key_of` the entity; immutable."""

    __slots__ = ("_by_key", "_by_tenant")

    def __init__(
        self,
        by_key: ShardedMap[str, ClientQuota] | None = None,
        by_tenant: ShardedMap[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._by_key = ShardedMap[str, ClientQuota]() if by_key is None else by_key
        self._by_tenant = ShardedMap[str, tuple[str, ...]]() if by_tenant is None else by_tenant

    def __getitem__(self, key: str) -> ClientQuota:
        return self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def of_tenant(self, tenant: str) -> tuple[str, ...]:
        """The keys of the quotas that a tenant set, or of operators' ones."""
        return self._by_tenant.get(tenant, ())

    def of(self, names: Mapping[str, str | None]) -> Mapping[str, float]:
        """The quotas of exactly this entity."""
        found = self._by_key.get(key_of(entity_of(names)))
        return {} if found is None else found.values

    def level(self, tenant: str, user: str, client_id: str, quota: str) -> Level | None:
        """The most specific quota named `quota` for this client among those of `tenant` (KIP-55).

        A client id may have 32 KB. One that is longer than any entity's is cut, and stays longer than any: those that
        begin alike share what has each client id apart.
        """
        if not self.of_tenant(tenant):
            return None
        client_id = client_id[: NAME_CHARACTERS_MAX + 1]
        base: dict[str, str | None] = {} if tenant == OPERATORS else {TENANT: tenant}
        for names, shared_by in (
            ({USER: user, CLIENT_ID: client_id}, (user, client_id)),
            ({USER: user, CLIENT_ID: None}, (user, client_id)),
            ({USER: user}, (user, None)),
            ({USER: None, CLIENT_ID: client_id}, (user, client_id)),
            ({USER: None, CLIENT_ID: None}, (user, client_id)),
            ({USER: None}, (user, None)),
            ({CLIENT_ID: client_id}, (None, client_id)),
            ({CLIENT_ID: None}, (None, client_id)),
        ):
            bound = self.of(base | names).get(quota)
            if bound is not None:
                return Level(bound, shared_by)
        return None

    def connection_rate(self, address: str) -> float | None:
        """New connections per second that this address may make; None if no quota says it."""
        if not self.of_tenant(OPERATORS):
            return None
        for name in (address, None):
            rate = self.of({IP: name}).get(CONNECTION_RATE)
            if rate is not None:
                return rate
        return None

    def changed(self, changes: Mapping[str, ClientQuota | None]) -> ClientQuotasImage:
        keys: dict[str, dict[str, None]] = {}
        for key, new in changes.items():
            one = self._by_key.get(key) if new is None else new
            if one is None:
                continue
            of_tenant = keys.setdefault(one.tenant, dict.fromkeys(self.of_tenant(one.tenant)))
            if new is None:
                of_tenant.pop(key, None)
            else:
                of_tenant[key] = None
        by_tenant = self._by_tenant.changed({tenant: tuple(own) or None for tenant, own in keys.items()})
        return ClientQuotasImage(self._by_key.changed(changes), by_tenant)
