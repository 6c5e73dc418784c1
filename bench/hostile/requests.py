"""For each served API and version, the legal requests that cost the most: found from the schemas.

A request is made up to five times over: with a long list of one name, with a long list of different names of the
greatest length, with one element that has a long list in it, with a long list at the third level, and with all lists
null, which means everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from records.builder import build_batch
from records.record import Record
from wire.apis import APIS, Api, ApiKey
from wire.listeners import ListenerKind

LONGEST_NAME = 249
NODES_ALONE = (ListenerKind.INTERNAL,)
BY_NAME: dict[int, tuple[int, ...]] = {
    ApiKey.PRODUCE: (12,),
    ApiKey.FETCH: (12,),
}  # versions that name topics: newer ones of Produce and Fetch have ids
_BATCH = bytes(build_batch([Record(0, 0, None, b"x")]))
UNHARMED = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)  # for a connection that has not logged in
_NUMBERS = {
    "partition_index": 0,
    "resource_type": 2,
    "resource_type_filter": 1,
    "resource_pattern_type": 3,
    "pattern_type_filter": 1,
    "operation": 2,
    "permission_type": 3,
    "timestamp": -1,
    "replica_id": -1,
    "acks": 1,
    "partition_max_bytes": 1,
    "offset": 0,
    "committed_offset": 1,
    "generation_id_or_member_epoch": -1,
    "num_partitions": 1,
    "replication_factor": 1,
    "timeout_ms": 10,
    "response_partition_limit": 2_000,
    "endpoint_type": 1,
    "session_timeout_ms": 6_000,
    "rebalance_timeout_ms": 6_000,
    "config_operation": 0,
    "mechanism": 1,
    "iterations": 4_096,
    "count": 4,
}
_WIDE_AT = {"deep": 1, "deepest": 2}  # the level of the long list; others have it at the first
_SAFE = ("cell", "tenant", "tenant_name", "target_cell", "key")


@dataclass(frozen=True, slots=True)
class Names:
    """What exists: a topic and a group."""

    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class Hostile:
    """One request; `shape` says how it was made expensive."""

    api: Api
    version: int
    shape: str
    message: Any

    @property
    def label(self) -> str:
        return f"{self.api.name} v{self.version} {self.shape}"


def hostile_requests(names: Names, elements: int, *, every_version: bool) -> Iterator[Hostile]:
    """All of them, of lists of `elements`; newest versions alone unless `every_version`."""
    for api in APIS.values():
        if api.key in UNHARMED or tuple(api.kinds) == NODES_ALONE:
            continue
        versions = (
            range(api.min_version, api.max_version + 1)
            if every_version
            else (*BY_NAME.get(api.key, ()), api.max_version)
        )
        for version in versions:
            yield from _of(api, version, names, elements)


def _of(api: Api, version: int, names: Names, elements: int) -> Iterator[Hostile]:
    seen: list[Any] = []
    for shape in ("same", "distinct", "deep", "deepest", "all"):
        if shape == "deepest" and not _has_third_level(api.request._struct, version):
            continue
        fields = _fields(api.request._struct, version, shape, names, elements, 0, 0)
        if fields not in seen:
            seen.append(fields)
            yield Hostile(api, version, shape, _built(api.request, fields))


def _has_third_level(struct: Any, version: int, level: int = 1) -> bool:
    below = [field for field in struct._fields if field.is_array() and field.for_version_q(version)]
    if level == len(_WIDE_AT) + 1:
        return bool(below)
    return any(_has_third_level(field.array_of, version, level + 1) for field in below if field.is_struct_array())


def _fields(
    struct: Any, version: int, shape: str, names: Names, elements: int, depth: int, number: int
) -> dict[str, Any]:  # fmt: skip
    values: dict[str, Any] = {}
    for field in struct._fields:
        if field.for_version_q(version) and not field.tagged_field_q(version):
            values[field.name] = _value(field, version, shape, names, elements, depth, number)
    return values


def _value(
    field: Any, version: int, shape: str, names: Names, elements: int, depth: int, number: int
) -> Any:  # fmt: skip
    if not field.is_array() and not field.is_struct():
        return _scalar(field, field.type_str, version, shape, names, number)
    if field.nullable_for_version_q(version) and (shape == "all" or field.is_struct()):
        return None
    if field.is_struct():
        return (field.data_class, _fields(field, version, shape, names, elements, depth + 1, number))
    wide = depth == _WIDE_AT.get(shape, 0)
    count = 0 if shape == "all" else elements if wide else 1
    if field.is_struct_array():
        return [
            (field.data_class, _fields(field.array_of, version, shape, names, elements, depth + 1, n))
            for n in range(count)
        ]
    return [_scalar(field, field.array_of.type_str, version, shape, names, n) for n in range(count)]


def _scalar(field: Any, kind: str, version: int, shape: str, names: Names, number: int) -> Any:
    if kind == "bool":
        return True
    if kind == "string":
        return _text(field, version, shape, names, number)
    if kind == "uuid":
        return None
    if kind in ("bytes", "records"):
        return b"x" if kind == "bytes" else _BATCH
    if kind == "float64":
        return 0.0
    if field.is_array():
        number = 0 if shape == "same" else number
        return number % 128 if kind == "int8" else number
    if field.name in ("partition_index", "partition"):
        return number if shape in _WIDE_AT else 0
    return _NUMBERS.get(field.name, 0)


def _text(field: Any, version: int, shape: str, names: Names, number: int) -> Any:
    entity = field._entity_type
    name = field.name
    if name in ("host", "host_filter", "principal_filter", "resource_name_filter"):
        return "*" if name == "host" else None
    if name == "principal":
        return "User:nobody"
    if name in _SAFE:
        return "none"
    if name == "transactional_id" and field.nullable_for_version_q(version):
        return None
    if shape != "same":
        return f"{number}-".ljust(LONGEST_NAME, "x")
    if entity == "groupId" or "group" in name or name == "coordinator_keys":
        return names.group
    return names.topic if entity == "topicName" or name in ("resource_name", "name", "topics") else "x"


def _built(message_class: Any, fields: dict[str, Any]) -> Any:
    return message_class(**{name: _made(value) for name, value in fields.items()})


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return [_made(one) for one in value]
    return _built(*value) if isinstance(value, tuple) else value
