"""Requests made from the schemas of whatever API and version, with one field of interest in each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from broker.apis import FIELD_CLASSES
from broker.tenancy.compiler import classify
from broker.tenancy.field_classes import ENTITIES, NAMES, FieldClass
from records.builder import build_batch
from records.record import Record
from wire.apis import APIS, Api
from wire.listeners import ListenerKind

FREE = ("SaslHandshake", "SaslAuthenticate")  # before there is a tenant
_RECORDS = bytes(build_batch([Record(0, 1_700_000_000_000, b"key", b"value")]))
_GIVEN: dict[str, Any] = {
    "replica_id": -1, "replica_epoch": -1, "session_epoch": -1, "acks": -1, "timeout_ms": 1_000, "max_wait_ms": 0,
    "min_bytes": 0, "max_bytes": 1 << 20, "partition_max_bytes": 1 << 20, "num_partitions": 1,
    "replication_factor": 1, "current_leader_epoch": -1, "last_fetched_epoch": -1, "timestamp": -1,
    "resource_type": 2, "resource_type_filter": 2, "resource_pattern_type": 3, "pattern_type_filter": 3,
    "operation": 3, "permission_type": 3, "session_timeout_ms": 20, "rebalance_timeout_ms": 20,
    "generation_id": -1, "generation_id_or_member_epoch": -1, "protocol_type": "consumer", "protocol_name": "range",
    "response_partition_limit": 100, "validate_only": True, "allow_auto_topic_creation": False, "count": 5,
    "offset": 0, "records": _RECORDS, "transactional_id": None, "group_instance_id": None, "member_id": "",
    "host": "*", "principal": "User:anybody", "host_filter": None, "principal_filter": None, "endpoint_type": 1,
    "transaction_timeout_ms": 1_000, "producer_id": -1, "producer_epoch": -1, "retention_time_ms": -1, "key_type": 0,
    "assignments": [], "configs": [], "states_filter": [], "types_filter": [], "configuration_keys": None,
    "client_software_name": "lab", "client_software_version": "1", "cursor": None, "cluster_id": None,
    "metadata": b"\0\0\0\0\0\0\xff\xff\xff\xff", "committed_metadata": "", "operations": [],
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A field of an API's requests that could hold a name or an id."""

    path: str
    field_class: FieldClass
    versions: tuple[int, ...]


def tenant_apis() -> list[Api]:
    return [api for api in APIS.values() if ListenerKind.TENANT in api.kinds and api.name not in FREE]


def places(api: Api) -> list[Place]:
    found: list[Place] = []

    def walk(struct: Any, path: tuple[str, ...], versions: tuple[int, ...]) -> None:
        for name, field in struct.fields.items():
            present = tuple(version for version in versions if field.for_version_q(version))
            if not present:
                continue
            below = (*path, name)
            if field.is_struct() or field.is_struct_array():
                walk(field, below, present)
                continue
            field_class = classify(api.request.__name__, ".".join(below), field, FIELD_CLASSES, ENTITIES, NAMES)
            if field_class is not None:
                found.append(Place(".".join(below), field_class, present))

    walk(api.request._struct, (), tuple(range(api.min_version, api.max_version + 1)))
    return found


def request(api: Api, version: int, values: dict[str, Any]) -> Any:
    """One element in every array of structs, but where `values`, by path, say otherwise."""

    def build(make: Any, struct: Any, path: str) -> Any:
        given = {}
        for name, field in struct.fields.items():
            if not field.for_version_q(version):
                continue
            below = f"{path}.{name}" if path else name
            given[name] = value_of(make, name, field, below)
        return make(**given)

    def value_of(make: Any, name: str, field: Any, path: str) -> Any:
        if path in values:
            return values[path]
        inside = any(key.startswith(f"{path}.") for key in values)
        if name in _GIVEN and not inside:
            given = _GIVEN[name]
            return (
                "x"
                if given is None and field.type_str == "string" and not field.nullable_for_version_q(version)
                else given
            )
        if field.is_struct_array():
            return [build(getattr(make, field.type_str.removeprefix("[]")), field, path)]
        if field.is_struct():
            return build(getattr(make, field.type_str), field, path)
        if field.is_array():
            return [0] if "int" in field.type_str else []
        return _default(field)

    return build(api.request, api.request._struct, "")


def _default(field: Any) -> Any:
    kind = field.type_str
    if kind == "string":
        return "x"
    if kind == "uuid":
        return uuid.UUID(int=5)
    if kind in ("bytes", "records"):
        return b""
    if kind == "bool":
        return True
    return 0


def lists_of_all(api: Api) -> Iterator[tuple[int, str, Any]]:
    """(version, path, value) of top-level arrays that are empty or null: many APIs take that for everything."""
    for version in range(api.min_version, api.max_version + 1):
        for name, field in api.request._struct.fields.items():
            if field.for_version_q(version) and field.is_array():
                yield version, name, []
                if field.nullable_for_version_q(version):
                    yield version, name, None
