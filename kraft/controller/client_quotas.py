"""AlterClientQuotas: quotas of users, client ids and addresses. No I/O.

Checks, errors and messages are Apache Kafka's (ClientQuotaControlManager), with these differences: an address must be
an address and not a host's name, a value must be finite, and the number of entities is bounded. A tenant's request has
the tenant as one more name of each entity, which its broker added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from ipaddress import ip_address

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.features import check_fleet_level
from kraft.fleet_records import ClientQuotaRecord, Entity, RemoveClientQuotaRecord
from kraft.image.client_quotas import (
    CLIENT_ID,
    IP,
    LONG_MAX,
    NAME_CHARACTERS_MAX,
    OPERATORS,
    QUOTAS_OF_ADDRESSES,
    QUOTAS_OF_CLIENTS,
    TENANT,
    TYPES,
    USER,
    entity_of,
    key_of,
    tenant_of,
)
from kraft.image.metadata import MetadataImage
from wire.messages import AlterClientQuotasRequest, AlterClientQuotasResponse

ENTITIES_MAX, TENANT_ENTITIES_MAX = 10_000, 1_000
"""Entities with quotas: operators', and those of each tenant."""
ENTRY_COST, NAME_COST, OP_COST = 20, 4, 1  # units of `common.pacing`

_Asked = AlterClientQuotasRequest.EntryData
_Answered = AlterClientQuotasResponse.EntryData


def alter_client_quotas(
    image: MetadataImage, request: AlterClientQuotasRequest
) -> Work[Decision[MetadataRecord, AlterClientQuotasResponse]]:
    """AlterClientQuotas (49): each entity succeeds or fails on its own."""
    changes: dict[str, MetadataRecord] = {}
    taken: dict[str, None] = {}
    counts: dict[str, int] = {}
    rows: list[_Answered] = []
    for entry in request.entries:
        yield ENTRY_COST
        code, message = ErrorCode.NONE, None
        try:
            check_fleet_level(image)
            yield from _alter(image, entry, changes, taken, counts)
        except ProtocolError as error:
            code, message = error.code, error.message or None
        named: list[_Answered.EntityData] = []
        for one in entry.entity:
            named.append(_Answered.EntityData(entity_type=one.entity_type, entity_name=one.entity_name))
            yield NAME_COST
        rows.append(_Answered(error_code=int(code), error_message=message, entity=named))
    return Decision(AlterClientQuotasResponse(entries=rows), [] if request.validate_only else list(changes.values()))


def _alter(
    image: MetadataImage,
    entry: _Asked,
    changes: dict[str, MetadataRecord],
    taken: dict[str, None],
    counts: dict[str, int],
) -> Work[None]:
    """Add the record of one entity to `changes`. `counts`: entities that the request adds, by tenant."""
    names: dict[str, str | None] = {}
    for one in entry.entity:
        names[one.entity_type] = one.entity_name
        yield OP_COST
    if len(names) > len(TYPES):
        _checked(names)  # before any message has them all
    wanted: dict[str, float | None] = {}
    for op in entry.ops:
        yield OP_COST
        if op.key in wanted:
            raise _invalid(f"Duplicate quota key {op.key} not updating quota for this entity {_text(names)}")
        wanted[op.key] = None if op.remove else op.value
    limits = _checked(names)
    entity = entity_of(names)
    key, tenant = key_of(entity), tenant_of(entity)
    if key in taken:
        raise _invalid(f"Ignoring duplicate entity {_text(names)}")
    taken[key] = None
    known = image.client_quotas.get(key)
    before = dict(known.values) if known is not None else {}
    after = dict(before)
    for quota, value in wanted.items():
        yield OP_COST
        if value is None:
            after.pop(quota, None)
        else:
            _check_value(limits, quota, value)
            after[quota] = float(value)
    if after == before:
        return
    if not after:
        changes[key] = RemoveClientQuotaRecord(entity)
        counts[tenant] = counts.get(tenant, 0) - 1
        return
    if known is None:
        _check_count(image, tenant, counts)
    changes[key] = ClientQuotaRecord(entity, after)


def _checked(names: Mapping[str, str | None]) -> Mapping[str, int | None]:
    """The quotas that this entity may have. Raises INVALID_REQUEST."""
    clients = {kind: name for kind, name in names.items() if kind != TENANT}
    if not clients:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in names.items():
        if kind not in TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
        if name is not None and len(name) > NAME_CHARACTERS_MAX:
            raise _invalid(f"The name of a {kind} may have {NAME_CHARACTERS_MAX} characters.")
    if names.get(TENANT, OPERATORS) is None:
        raise _invalid("A tenant has no default.")
    if IP not in names:
        return QUOTAS_OF_CLIENTS
    if TENANT in names:
        raise _invalid("Quotas of addresses are set by the operators.")
    if USER in names or CLIENT_ID in names:
        # two words run together, as Apache Kafka has it
        raise _invalid("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    if not _is_address(names[IP]):
        raise _invalid(f"{names[IP]} is not a valid IP or resolvable host.")
    return QUOTAS_OF_ADDRESSES


def _check_value(limits: Mapping[str, int | None], quota: str, value: float) -> None:
    """Raises INVALID_REQUEST."""
    if quota not in limits:
        raise _invalid(f"Invalid configuration key {quota}")
    if not value > 0:
        raise _invalid(f"Quota {quota} must be greater than 0")
    if math.isinf(value):
        raise _invalid(f"Quota {quota} must be finite")
    most = limits[quota]
    if most is None:
        return
    if value > float(most):  # as in Java, where the largest long is rounded up
        kind = "a LONG" if most == LONG_MAX else "an INT"
        raise _invalid(f"Proposed value for {quota} is too large for {kind}.")
    if abs(value % 1.0) > 1e-6:
        raise _invalid(f"{quota} cannot be a fractional value.")


def _check_count(image: MetadataImage, tenant: str, counts: dict[str, int]) -> None:
    """Count one more entity. Raises POLICY_VIOLATION."""
    most = ENTITIES_MAX if tenant == OPERATORS else TENANT_ENTITIES_MAX
    counts[tenant] = counts.get(tenant, 0) + 1
    if len(image.client_quotas.of_tenant(tenant)) + counts[tenant] > most:
        counts[tenant] -= 1
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"More than {most} entities with quotas.")


def _is_address(name: str | None) -> bool:
    try:
        return name is None or bool(ip_address(name))
    except ValueError:
        return False


def _text(names: Mapping[str, str | None]) -> str:
    """As Apache Kafka writes an entity."""
    shown = ", ".join(
        f"{kind}={'null' if name is None else name}" for kind, name in sorted(names.items()) if kind != TENANT
    )
    return f"ClientQuotaEntity(entries={{{shown}}})"


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)


def quotas_to_remove(image: MetadataImage, tenant: str, most: int) -> list[Entity]:
    """Some of the entities for which a tenant has set quotas, for its deletion."""
    return [image.client_quotas[key].entity for key in image.client_quotas.of_tenant(tenant)[:most]]
