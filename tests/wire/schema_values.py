"""Random values for any compiled message class, drawn from its schema."""

from __future__ import annotations

import random
import uuid
from typing import Any

_RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def message_of(message_class: Any, version: int, rng: random.Random) -> Any:
    """An instance with a value for every field of `version`, tagged ones now and then."""
    return message_class(**_fields(message_class._struct, version, rng))


def _fields(struct: Any, version: int, rng: random.Random) -> dict[str, Any]:
    values = {}
    for field in struct._fields:
        if not field.for_version_q(version) or (field.tagged_field_q(version) and rng.random() < 0.5):
            continue
        values[field.name] = _value(field, version, rng)
    return values


def _value(field: Any, version: int, rng: random.Random) -> Any:
    if field.nullable_for_version_q(version) and rng.random() < 0.2:
        return None
    if field.is_struct_array():
        inner = field.array_of
        return [field.data_class(**_fields(inner, version, rng)) for _ in range(rng.randrange(3))]
    if field.is_array():
        return [_scalar(field.array_of.type_str, rng) for _ in range(rng.randrange(4))]
    if field.is_struct():
        return field.data_class(**_fields(field, version, rng))
    return _scalar(field.type_str, rng)


def _scalar(type_name: str, rng: random.Random) -> Any:
    if type_name in _RANGES:
        bits = _RANGES[type_name]
        return rng.choice([0, 1, -1, 2**bits - 1, -(2**bits), rng.getrandbits(bits)])
    if type_name == "uint16":
        return rng.randrange(1 << 16)
    if type_name == "bool":
        return rng.random() < 0.5
    if type_name == "float64":
        return rng.random()
    if type_name == "uuid":
        return uuid.UUID(bytes=rng.randbytes(16))
    if type_name == "bitfield":
        return {rng.randrange(31) for _ in range(3)}
    if type_name == "string":
        return "".join(rng.choice("abcé漢.-") for _ in range(rng.choice([0, 1, 5, 130])))
    return rng.randbytes(rng.choice([0, 1, 20, 300]))
