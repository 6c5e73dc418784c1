"""Tenants: logical clusters inside this one, and their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, ValuesView
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter

from common.node_settings.tenants import TenantSettings
from kraft.image.sharded_map import ShardedMap
from kraft.records import KeysPhase, TenantRecord, TenantState

TENANT_ID = re.compile(r"lkc-[a-z0-9]{6}")
SEPARATOR = "_"
_PREFIX = re.compile(r"(lkc-[a-z0-9]{6})_")

PARTITIONS_MAX = "partitions.max"
CONNECTIONS_MAX = "connections.max"
CONNECTION_RATE = "connection.rate"
KEYS_MAX = "keys.max"
ACLS_MAX = "acls.max"
INGRESS = "ingress.bytes.per.second"
EGRESS = "egress.bytes.per.second"
REQUEST_PERCENTAGE = "request.percentage"
MUTATION_RATE = "partition.mutations.per.second"
INGRESS_RESERVED = "ingress.reserved"
EGRESS_RESERVED = "egress.reserved"
TRANSACTIONAL_IDS_MAX = "transactional.ids.max"
TRANSACTIONS_MAX = "transactions.max"
TRANSACTION_PARTITIONS_MAX = "transaction.partitions.max"
LIMITS = (
    PARTITIONS_MAX,
    CONNECTIONS_MAX,
    CONNECTION_RATE,
    KEYS_MAX,
    ACLS_MAX,
    INGRESS,
    EGRESS,
    REQUEST_PERCENTAGE,
    MUTATION_RATE,
    INGRESS_RESERVED,
    EGRESS_RESERVED,
    TRANSACTIONAL_IDS_MAX,
    TRANSACTIONS_MAX,
    TRANSACTION_PARTITIONS_MAX,
)
"""Limits that a tenant may set; the default is the setting `tidelog.tenant.<limit>`."""
LONG_LIMITS = frozenset({INGRESS, EGRESS, INGRESS_RESERVED, EGRESS_RESERVED})
"""Those in bytes per second, which may be 64-bit numbers."""


def limit_of(limits: Mapping[str, int], limit: str, defaults: TenantSettings) -> int:
    """The tenant's own limit, else the setting's. `limits` are `TenantImage.limits`."""
    own = limits.get(limit)
    return _default_limits(defaults)[limit] if own is None else own


@lru_cache(maxsize=8)
def _default_limits(defaults: TenantSettings) -> Mapping[str, int]:
    return {
        PARTITIONS_MAX: defaults.tenant_partitions_max,
        CONNECTIONS_MAX: defaults.tenant_connections_max,
        CONNECTION_RATE: defaults.tenant_connection_rate,
        KEYS_MAX: defaults.tenant_keys_max,
        ACLS_MAX: defaults.tenant_acls_max,
        INGRESS: defaults.tenant_ingress,
        EGRESS: defaults.tenant_egress,
        REQUEST_PERCENTAGE: defaults.tenant_request_percentage,
        MUTATION_RATE: defaults.tenant_mutation_rate,
        INGRESS_RESERVED: defaults.tenant_ingress_reserved,
        EGRESS_RESERVED: defaults.tenant_egress_reserved,
        TRANSACTIONAL_IDS_MAX: defaults.tenant_transactional_ids_max,
        TRANSACTIONS_MAX: defaults.tenant_transactions_max,
        TRANSACTION_PARTITIONS_MAX: defaults.tenant_transaction_partitions_max,
    }


def cluster_resource(tenant_id: str) -> str:
    """The internal name of a tenant's ACL resource `kafka-cluster`."""
    return f"{tenant_id}{SEPARATOR}kafka-cluster"


def tenant_of(internal_name: str) -> str | None:
    """The tenant id in a resource's internal name, whether or not that tenant exists."""
    found = _PREFIX.match(internal_name)
    return found.group(1) if found is not None else None


def local_name(internal_name: str) -> str:
    """A resource's name as its tenant knows it; an operator's name is unchanged."""
    found = _PREFIX.match(internal_name)
    return internal_name[found.end() :] if found is not None else internal_name


@dataclass(frozen=True, slots=True)
class TenantImage:
    """Field names are TenantRecord's. `target_cell` is None unless the tenant moves."""

    id: str
    name: str
    cell: str
    created_ms: int
    limits: Mapping[str, int] = field(default_factory=dict)
    allow_networks: tuple[str, ...] = ()
    deny_networks: tuple[str, ...] = ()
    epoch: int = 0
    state: TenantState = TenantState.ACTIVE
    target_cell: str | None = None
    keys_cell: str | None = None
    keys_target: str | None = None
    keys_phase: KeysPhase = KeysPhase.SETTLED
    keys_epoch: int = 0
    ids_cell: str | None = None

    @property
    def prefix(self) -> str:
        """The prefix of the internal names of its resources."""
        return self.id + SEPARATOR

    @property
    def home(self) -> str:
        """The cell in which its new partitions are placed."""
        return self.cell if self.target_cell is None else self.target_cell

    @property
    def may_log_in(self) -> bool:
        return self.state is not TenantState.DELETING

    @classmethod
    def of(cls, record: TenantRecord) -> TenantImage:
        return cls(*_values(record))

    def record(self) -> TenantRecord:
        return TenantRecord(**dict(zip(_NAMES, _values(self), strict=True)))


_NAMES = tuple(one.name for one in fields(TenantImage))
_values = attrgetter(*_NAMES)


class TenantsImage(Mapping[str, TenantImage]):
    """By id; immutable. Names are unique too. `moving`: the tenants that move, by id."""

    __slots__ = ("_by_id", "_ids", "moving")

    def __init__(
        self,
        by_id: ShardedMap[str, TenantImage] | None = None,
        ids: ShardedMap[str, str] | None = None,
        moving: ShardedMap[str, TenantState] | None = None,
    ) -> None:
        self._by_id = ShardedMap[str, TenantImage]() if by_id is None else by_id
        self._ids = ShardedMap[str, str]() if ids is None else ids
        self.moving = ShardedMap[str, TenantState]() if moving is None else moving

    def __getitem__(self, tenant_id: str) -> TenantImage:
        return self._by_id[tenant_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def values(self) -> ValuesView[TenantImage]:
        return self._by_id.values()

    def by_name(self, name: str) -> TenantImage | None:
        tenant_id = self._ids.get(name)
        return self._by_id[tenant_id] if tenant_id is not None else None

    def owner(self, internal_name: str) -> TenantImage | None:
        """The existing tenant to which a resource of that internal name belongs."""
        tenant_id = tenant_of(internal_name)
        return self._by_id.get(tenant_id) if tenant_id is not None else None

    def changed(self, changes: Mapping[str, TenantImage | None]) -> TenantsImage:
        ids: dict[str, str | None] = {}
        moving: dict[str, TenantState | None] = {}
        for tenant_id in changes:
            old = self._by_id.get(tenant_id)
            if old is not None:
                ids[old.name] = None
                if old.state is TenantState.MOVING:
                    moving[tenant_id] = None
        for tenant_id, new in changes.items():
            if new is not None:
                ids[new.name] = tenant_id
                if new.state is TenantState.MOVING:
                    moving[tenant_id] = new.state
        others = self.moving.changed(moving) if moving else self.moving
        return TenantsImage(self._by_id.changed(changes), self._ids.changed(ids), others)
