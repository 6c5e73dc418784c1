"""Named listeners: where a node accepts connections and who may come in there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from common.ports import Address


class ListenerKind(StrEnum):
    """OPERATOR sees physical names and is Kafka pure and simple; TENANT is one tenant's view; INTERNAL is for nodes."""

    OPERATOR = "operator"
    TENANT = "tenant"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """`address` is bound (port 0: any free one); `advertised` is what Metadata tells, None for the bound address."""

    name: str
    address: Address
    advertised: Address | None
    kind: ListenerKind
