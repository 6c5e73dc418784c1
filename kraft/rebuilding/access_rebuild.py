"""Tenants, keys, ACLs, cells and client quotas of a cluster that is rebuilt from its object store. No I/O.

All are kept except passwords: no verifier leaves the cluster, so users and keys need new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kraft.batches import MetadataRecord
from kraft.fleet_records import ClientQuotaRecord
from kraft.image.client_quotas import entity_of
from kraft.records import (
    AclOperation,
    AclPattern,
    AclPermission,
    AclRecord,
    AclResource,
    ApiKeyRecord,
    CellRecord,
    TenantRecord,
    TenantState,
)
from records.events import Event

NAMES_SHOWN_MAX = 20


class RebuiltAccess:
    """Collects events in any order; `records` are those of the new cluster."""

    def __init__(self) -> None:
        self.records: list[MetadataRecord] = []
        self._users: dict[str, None] = {}
        self._keys: dict[str, str] = {}  # id → tenant

    def notes(self) -> list[str]:
        """Messages for the operator."""
        users = [name for name in self._users if name not in self._keys]
        keys = [f"{key} (tenant {tenant})" for key, tenant in self._keys.items()]
        notes = []
        if users:
            notes.append(f"{len(users)} users need a new password (`tidelog users set`): {_some(users)}")
        if keys:
            notes.append(f"{len(keys)} API keys need a new secret (`tidelog keys renew`): {_some(keys)}")
        return notes

    def scram(self, event: Event) -> None:
        self._users[str(event["name"])] = None

    def api_key(self, event: Event) -> None:
        key = ApiKeyRecord(
            str(event["id"]),
            str(event["tenant"]),
            str(event["description"]),
            tuple(str(role) for role in event["roles"]),
            int(event["created_ms"]),
        )
        self._keys[key.id] = key.tenant
        self.records.append(key)

    def acl(self, event: Event) -> None:
        self.records.append(
            AclRecord(
                bytes.fromhex(event["id"]),
                AclResource[event["resource_type"]],
                str(event["resource_name"]),
                AclPattern[event["pattern_type"]],
                str(event["principal"]),
                str(event["host"]),
                AclOperation[event["operation"]],
                AclPermission[event["permission"]],
            )
        )

    def tenant(self, event: Event) -> None:
        """Its groups and transactional ids are nowhere yet, so they will be in its own cell."""
        target, cell = event["target_cell"], str(event["cell"])
        home = cell if target is None else str(target)
        self.records.append(
            TenantRecord(
                str(event["id"]),
                str(event["name"]),
                cell,
                int(event["created_ms"]),
                {str(name): int(limit) for name, limit in event["limits"].items()},
                tuple(str(network) for network in event["allow_networks"]),
                tuple(str(network) for network in event["deny_networks"]),
                int(event["epoch"]),
                TenantState[event["state"]],
                None if target is None else str(target),
                keys_cell=home,
                ids_cell=home,
            )
        )

    def cell(self, event: Event) -> None:
        limits = {str(name): int(limit) for name, limit in event["limits"].items()}
        self.records.append(CellRecord(str(event["name"]), bool(event["is_open"]), limits))

    def key_range(self, event: Event) -> None:
        """Ignored: internal topics are created again, and ranges with them."""

    def client_quota(self, event: Event) -> None:
        names = {str(kind): None if name is None else str(name) for kind, name in event["entity"].items()}
        values = {str(key): float(value) for key, value in event["values"].items()}
        self.records.append(ClientQuotaRecord(entity_of(names), values))

    def balance(self, event: Event) -> None:
        """Ignored: the new cluster's brokers hold nothing yet that could be uneven. The audit keeps the old moves."""


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    return shown if len(names) <= NAMES_SHOWN_MAX else f"{shown} and {len(names) - NAMES_SHOWN_MAX} more"


ACCESS_REBUILD_RULES: Mapping[str, Callable[[RebuiltAccess, Event], None]] = {
    "scram": RebuiltAccess.scram,
    "acl": RebuiltAccess.acl,
    "tenant": RebuiltAccess.tenant,
    "api_key": RebuiltAccess.api_key,
    "cell": RebuiltAccess.cell,
    "key_range": RebuiltAccess.key_range,
    "client_quota": RebuiltAccess.client_quota,
    "balance_operation": RebuiltAccess.balance,
    "balance_move": RebuiltAccess.balance,
}
