"""What the questions name, and how their messages are made."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wire import messages

THERE, DOOMED, HIDDEN, ABSENT = "t-there", "t-doomed", "hidden", "t-absent"
GROUP, NO_GROUP, HIDDEN_GROUP = "g-there", "g-absent", "hidden-group"
TRANSACTION, NO_TRANSACTION, HIDDEN_TRANSACTION = "x-there", "x-absent", "hidden"
OWNER = "o-owner"  # a user for whom tokens are asked
STRANGER = 1 << 40  # a producer id that neither system has given
NO_ID = uuid.UUID(int=0x1234567890ABCDEF << 32)
NAMED = (THERE, ABSENT, HIDDEN)
COMMITTED = 5


@dataclass
class Ids:
    """What a question has to know of the world. `serial` makes an absent topic's name anew."""

    topics: dict[str, uuid.UUID]
    serial: int = 0

    def of(self, name: str) -> uuid.UUID:
        return self.topics.get(name, NO_ID)


def message(name: str, **fields: Any) -> Any:
    """A request whose lists of mappings become the schema's structs."""
    made = getattr(messages, f"{name}Request")
    return made(**{field: _value(made, made._struct.fields[field], value) for field, value in fields.items()})


def _value(owner: Any, field: Any, value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        made = getattr(owner, field.type_str.removeprefix("[]"))
        return [made(**{name: _value(made, field.fields[name], one) for name, one in row.items()}) for row in value]
    return value


def by_name_or_id(ids: Ids, by_id: bool, field: str, name: str) -> dict[str, Any]:
    return {"topic_id": ids.of(name)} if by_id else {field: name}
