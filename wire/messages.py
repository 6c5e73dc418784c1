"""Every request and response class: the codec library's, and Tidelog's own for those that it lacks.

All are compiled from Apache Kafka's message schemas (Tidelog's are in `wire/schemas`). Fields are snake_case, nested
structs are attributes of the class above them (`MetadataResponse.MetadataResponseTopic`). A field that a decoded
version lacks has the schema's default; such a list is shared, so never change it in place.
"""

from __future__ import annotations

import importlib.resources
import uuid
from copy import copy
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.data_container import DataContainer

from common.identifiers import ZERO_UUID

_OWN_SCHEMAS = "wire.schemas"

# messages.pyi has the names and fields of the classes created here; mypy reads nothing else of this module.
Message = Request = Response = ApiMessage
Struct = DataContainer


def schema_uuid(raw: bytes) -> uuid.UUID:
    """A 16-byte id in the form of messages."""
    return uuid.UUID(bytes=raw)


def raw_uuid(value: uuid.UUID | None) -> bytes:
    """The 16 bytes of an id in a decoded message; None is the zero uuid."""
    return ZERO_UUID if value is None else value.bytes


def changed(message: Any, **fields: Any) -> Any:
    """A copy of a message or of a struct in one, with other values in these fields. Lists are shared with it."""
    copied = copy(message)
    for name, value in fields.items():
        setattr(copied, name, value)
    return copied


def _library_classes() -> dict[str, type[Message]]:
    found = {}
    for package in (admin, consumer, metadata, producer, sasl):
        for name in package.__all__:
            if name.endswith(("Request", "Response")) and issubclass(getattr(package, name), Message):
                found[name] = getattr(package, name)
    return found


def _own_classes() -> dict[str, type[Message]]:
    compiler = type(Message)
    files = (file.name for file in importlib.resources.files(_OWN_SCHEMAS).iterdir())
    names = (name.removesuffix(".json") for name in files if name.endswith(".json"))
    return {name: compiler(name, (Message,), {"__module__": __name__}, load_json=_OWN_SCHEMAS) for name in names}


_CLASSES = _library_classes() | _own_classes()
globals().update(_CLASSES)

__all__ = [*sorted(_CLASSES), "Message", "Request", "Response", "Struct", "changed", "raw_uuid", "schema_uuid"]  # noqa: PLE0604
