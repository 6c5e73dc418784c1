"""Tenants: created in a cell with room, changed, moved, deleted. No I/O.

Moves and deletions begin here and continue in steps (`kraft.controller.tenant_moves`, `tenant_deletion`).
"""

from __future__ import annotations

import ipaddress
import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.api_keys import acls_by_principal, revocation
from kraft.controller.broker_loads import BrokerLoads
from kraft.controller.cells import Cells, Living, changed_limits, tenants_by_cell
from kraft.controller.features import check_access_level
from kraft.controller.key_moves import keys_are_home
from kraft.controller.key_ranges import new_keys_cells
from kraft.controller.policy import ControllerPolicy
from kraft.controller.reservations import cells_without, check_reserved_within_quota, reserved
from kraft.image.metadata import MetadataImage
from kraft.image.tenant_usage import home_ids, is_outside, topics_of
from kraft.image.tenants import LIMITS, TenantImage
from kraft.records import KeysPhase, TenantRecord, TenantState
from wire.messages import (
    AlterTenantRequest,
    AlterTenantResponse,
    CreateTenantRequest,
    CreateTenantResponse,
    DeleteTenantRequest,
    DeleteTenantResponse,
    MoveTenantRequest,
    MoveTenantResponse,
)

TENANT_NAME = re.compile(r"[a-z0-9-]{1,40}")
NETWORKS_MAX = 100
ID_CHARACTERS = string.ascii_lowercase + string.digits
ID_LENGTH = 6
PARTITIONS_PER_STEP = 200  # that are looked at

R = TypeVar("R")
_Records = list[MetadataRecord]


def decide_create_tenant(
    image: MetadataImage,
    request: CreateTenantRequest,
    policy: ControllerPolicy,
    rng: random.Random,
    now_ms: int,
    loads: BrokerLoads | None = None,
    living: Living | None = None,
    without: Mapping[str, str] | None = None,
) -> Decision[MetadataRecord, CreateTenantResponse]:
    """CreateTenant (10004): in the wanted cell, or the less loaded of two random ones.

    `without`: cells without enough bandwidth for what the tenant has reserved, each with the reason.
    """
    try:
        check_access_level(image)
        name = request.tenant_name
        if not TENANT_NAME.fullmatch(name):
            raise _invalid("A tenant's name has 1 to 40 lower-case letters, digits and dashes.")
        if image.tenants.by_name(name) is not None:
            raise ProtocolError(ErrorCode.DUPLICATE_RESOURCE, f"Tenant {name} exists.")
        if len(image.tenants) >= policy.access.tenants_max:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"More than {policy.access.tenants_max} tenants.")
        limits = changed_limits({}, request.limits, LIMITS)
        check_reserved_within_quota(limits, policy)
        allow, deny = _networks(request.allow_networks), _networks(request.deny_networks)
        room = Cells(image, policy, loads, living).room
        cell = room(request.cell, rng, factor=policy.default_replication_factor, without=without)
    except ProtocolError as error:
        return Decision(CreateTenantResponse(error_code=int(error.code), error_message=error.message))
    tenant_id = _new_id(image, rng)
    cells = new_keys_cells(image, cell)
    record = TenantRecord(tenant_id, name, cell, now_ms, limits, allow, deny, **cells._asdict())
    return Decision(CreateTenantResponse(error_code=0, error_message=None, tenant_id=tenant_id, cell=cell), [record])


def create_tenant(
    image: MetadataImage,
    request: CreateTenantRequest,
    policy: ControllerPolicy,
    rng: random.Random,
    now_ms: int,
    loads: BrokerLoads | None = None,
) -> Work[Decision[MetadataRecord, CreateTenantResponse]]:
    """`decide_create_tenant`, knowing what lives in the cells and is reserved there."""
    living = yield from tenants_by_cell(image)
    without = yield from cells_without(image, policy, _reserved_by(request, {}, policy))
    return decide_create_tenant(image, request, policy, rng, now_ms, loads, living, without)


def alter_tenant(
    image: MetadataImage, request: AlterTenantRequest, policy: ControllerPolicy
) -> Work[Decision[MetadataRecord, AlterTenantResponse]]:
    """`decide_alter_tenant`, knowing what is reserved in the cells."""
    tenant = image.tenants.get(request.tenant) or image.tenants.by_name(request.tenant)
    without: Mapping[str, str] = {}
    if tenant is not None:
        wanted = _reserved_by(request, tenant.limits, policy)
        if wanted > reserved(tenant.limits, policy):
            without = yield from cells_without(image, policy, wanted, tenant.id)
    return decide_alter_tenant(image, request, policy, without)


def _reserved_by(
    request: CreateTenantRequest | AlterTenantRequest, limits: Mapping[str, int], policy: ControllerPolicy
) -> int:
    """What the tenant would have reserved; 0 if the request is invalid, which is then rejected for that."""
    try:
        return reserved(changed_limits(limits, request.limits, LIMITS), policy)
    except ProtocolError:
        return 0


def decide_alter_tenant(
    image: MetadataImage,
    request: AlterTenantRequest,
    policy: ControllerPolicy,
    without: Mapping[str, str] | None = None,
) -> Decision[MetadataRecord, AlterTenantResponse]:
    """AlterTenant (10006). `without`: as in `decide_create_tenant`, if the tenant would have more reserved."""

    def change(tenant: TenantImage) -> _Records:
        old = tenant.record()
        limits = changed_limits(tenant.limits, request.limits, LIMITS)
        check_reserved_within_quota(limits, policy)
        lacking = (without or {}).get(tenant.home)
        if lacking is not None:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, lacking)
        new = msgspec.structs.replace(
            old,
            limits=limits,
            allow_networks=old.allow_networks if request.allow_networks is None else _networks(request.allow_networks),
            deny_networks=old.deny_networks if request.deny_networks is None else _networks(request.deny_networks),
        )
        return [] if new == old else [msgspec.structs.replace(new, epoch=old.epoch + 1)]

    return _decide(image, request, AlterTenantResponse, change)


def decide_delete_tenant(
    image: MetadataImage, request: DeleteTenantRequest, policy: ControllerPolicy
) -> Decision[MetadataRecord, DeleteTenantResponse]:
    """DeleteTenant (10007): its keys are removed at once, the rest in steps. A repeated request changes nothing."""

    def delete(tenant: TenantImage) -> _Records:
        if tenant.state is TenantState.DELETING:
            return []
        if not policy.delete_topic_enable and next(topics_of(image, tenant), None) is not None:
            raise ProtocolError(
                ErrorCode.TOPIC_DELETION_DISABLED, f"Tenant {tenant.name} has topics, and delete.topic.enable is false."
            )
        records: _Records = [
            msgspec.structs.replace(
                tenant.record(),
                state=TenantState.DELETING,
                target_cell=None,
                keys_target=None,
                keys_phase=KeysPhase.SETTLED,
                epoch=tenant.epoch + 1,
            )
        ]
        by_principal = acls_by_principal(image, tenant.id)
        for key in map(image.keys.__getitem__, image.keys.of_tenant(tenant.id)):
            records += revocation(image, key, by_principal.get(key.principal, ()))
        return records

    return _decide(image, request, DeleteTenantResponse, delete)


def move_tenant(
    image: MetadataImage,
    request: MoveTenantRequest,
    policy: ControllerPolicy,
    rng: random.Random,
    loads: BrokerLoads | None = None,
) -> Work[Decision[MetadataRecord, MoveTenantResponse]]:
    """MoveTenant (10008).

    To the cell that it comes from: cancel the move. To the cell where it lives: move partitions that are elsewhere
    (after a rebuild, or when a broker changed cells) into it.
    """
    cell = ""
    living = yield from tenants_by_cell(image)
    holding = yield from _holding(image, request.tenant)
    known = image.tenants.get(request.tenant) or image.tenants.by_name(request.tenant)
    wanted = 0 if known is None else reserved(known.limits, policy)
    without = yield from cells_without(image, policy, wanted, "" if known is None else known.id)

    def move(tenant: TenantImage) -> _Records:
        nonlocal cell
        if tenant.state is TenantState.DELETING:
            raise _invalid(f"Tenant {tenant.name} is being deleted.")
        cell = request.cell or ""
        gathers = request.cell == tenant.home
        if gathers and (tenant.state is TenantState.MOVING or (holding.is_home and keys_are_home(image, tenant))):
            return []
        takes_back = tenant.state is TenantState.MOVING and request.cell == tenant.cell
        if not takes_back and not gathers:
            factor = holding.factor or policy.default_replication_factor
            room = Cells(image, policy, loads, living).room
            cell = room(
                request.cell, rng, leaving=tenant.home, replicas=holding.replicas, factor=factor, without=without
            )
        new = msgspec.structs.replace(
            tenant.record(), state=TenantState.MOVING, target_cell=cell, epoch=tenant.epoch + 1
        )
        return [new]

    def answer(error_code: int, error_message: str | None) -> MoveTenantResponse:
        where = "" if error_code else cell
        return MoveTenantResponse(error_code=error_code, error_message=error_message, cell=where)

    return _decide(image, request, answer, move)


class _Holding(NamedTuple):
    """A tenant's replicas, its largest replication factor (0 without partitions), and whether all partitions are in its
    cell."""

    replicas: int = 0
    factor: int = 0
    is_home: bool = True


def _holding(image: MetadataImage, id_or_name: str) -> Work[_Holding]:
    tenant = image.tenants.get(id_or_name) or image.tenants.by_name(id_or_name)
    replicas, factor, is_home = 0, 0, True
    if tenant is None:
        return _Holding()
    home = home_ids(image, tenant)
    for topic in topics_of(image, tenant):
        for number, partition in enumerate(topic.partitions.values(), 1):
            replicas += partition.settled_replica_count
            factor = max(factor, partition.settled_replica_count)
            is_home = is_home and not is_outside(partition, home)
            if number % PARTITIONS_PER_STEP == 0:
                yield PARTITIONS_PER_STEP
        yield 1 + len(topic.partitions) % PARTITIONS_PER_STEP
    return _Holding(replicas, factor, is_home)


def find_tenant(image: MetadataImage, id_or_name: str) -> TenantImage:
    """Raises RESOURCE_NOT_FOUND."""
    tenant = image.tenants.get(id_or_name) or image.tenants.by_name(id_or_name)
    if tenant is None:
        raise ProtocolError(ErrorCode.RESOURCE_NOT_FOUND, f"There is no tenant {id_or_name}.")
    return tenant


def _decide(
    image: MetadataImage,
    request: AlterTenantRequest | DeleteTenantRequest | MoveTenantRequest,
    response: Callable[..., R],
    change: Callable[[TenantImage], _Records],
) -> Decision[MetadataRecord, R]:
    try:
        check_access_level(image)
        records = change(find_tenant(image, request.tenant))
    except ProtocolError as error:
        return Decision(response(error_code=int(error.code), error_message=error.message))
    return Decision(response(error_code=0, error_message=None), records)


def _networks(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Networks in normal form; a single address is a network of one. Raises INVALID_REQUEST."""
    if len(texts or ()) > NETWORKS_MAX:
        raise _invalid(f"More than {NETWORKS_MAX} networks.")
    networks: dict[str, None] = {}
    for text in texts or ():
        try:
            networks[str(ipaddress.ip_network(text.strip(), strict=False))] = None
        except ValueError:
            raise _invalid(f"{text!r} is no network; it must be like 10.0.0.0/8 or 2001:db8::/32.") from None
    return tuple(networks)


def _new_id(image: MetadataImage, rng: random.Random) -> str:
    """An unused id that no leftover topic has."""
    while True:
        tenant_id = "lkc-" + "".join(rng.choice(ID_CHARACTERS) for _ in range(ID_LENGTH))
        taken = image.acls.by_tenant.get(tenant_id) or image.topics.names_by_tenant.get(tenant_id)
        if not taken and tenant_id not in image.tenants:
            return tenant_id


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)
