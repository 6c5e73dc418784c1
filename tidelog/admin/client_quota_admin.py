"""Quotas of clients over an admin client: names of an entity in, plain rows out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.admin.admin_client import error_text
from tidelog.admin.replica_moves import Refused

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

EXACT, DEFAULT = 0, 1
"""How a filter matches a name: as it is given, or as the default's."""

Names = Mapping[str, str | None]
"""Of an entity, by type; None is the default's."""


class EntityQuotas(NamedTuple):
    """The quotas of one entity, by name."""

    names: Names
    values: Mapping[str, float]

    def row(self) -> dict[str, Any]:
        return {"entity": dict(self.names), "quotas": {name: plain(value) for name, value in self.values.items()}}


def plain(value: float) -> float:
    """Without a point where it is a whole number."""
    return int(value) if value.is_integer() else value


def entity_text(names: Names) -> str:
    return " ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in names.items())


def described_quotas(client: AdminClient, names: Names, *, exactly: bool) -> list[EntityQuotas]:
    """The quotas of all entities with these names, or of the entity that has no others. Raises Refused with what the
    cluster said, and KafkaError."""
    from wire.messages import DescribeClientQuotasRequest as Request  # noqa: PLC0415

    components = [
        Request.ComponentData(entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name)
        for kind, name in names.items()
    ]
    response = client.send(Request(components=components, strict=exactly))
    _check(response)
    found = [
        EntityQuotas(
            {one.entity_type: one.entity_name for one in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in response.entries or ()
    ]
    return sorted(found, key=lambda one: entity_text(one.names))


def alter_quotas(client: AdminClient, names: Names, values: Mapping[str, float | None], *, validate_only: bool) -> None:
    """Set the quotas of one entity, and remove those whose value is None. Raises Refused and KafkaError."""
    from wire.messages import AlterClientQuotasRequest as Request  # noqa: PLC0415

    entry = Request.EntryData(
        entity=[Request.EntryData.EntityData(entity_type=kind, entity_name=name) for kind, name in names.items()],
        ops=[
            Request.EntryData.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in values.items()
        ],
    )
    (row,) = client.send(Request(entries=[entry], validate_only=validate_only)).entries
    _check(row)


def _check(row: Any) -> None:
    if row.error_code:
        raise Refused(error_text({"error_code": row.error_code, "error_message": row.error_message}) or "refused")
