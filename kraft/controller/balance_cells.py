"""Cells that are overloaded: how long each has been, and which tenants leave it. No I/O.

What a tenant uses follows from brokers' reports, what a cell has room for from the image. A look is soft state; what
begins is committed, as the tenant's move together with an operation that says why.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from common.decision import Decision
from common.pacing import Work
from kraft.balancer.cell_relief import OVERLOADED, CellSeen, TenantMove, TenantSeen, Use, relieving
from kraft.batches import MetadataRecord
from kraft.controller.balance_levelling import Inputs
from kraft.controller.balance_status import CellOverload, CellsLook
from kraft.controller.broker_loads import BrokerLoads
from kraft.controller.cells import Cells, CellState, tenants_by_cell
from kraft.controller.policy import cell_limit
from kraft.controller.reservations import RESERVED_PER_MILLE_MAX, reserved
from kraft.controller.tenants import move_tenant
from kraft.fleet_records import BalanceOperationRecord, OperationKind, OperationState
from kraft.image.cells import BANDWIDTH_PER_BROKER, CellImage
from kraft.image.metadata import MetadataImage
from kraft.image.tenant_usage import topics_of
from kraft.image.tenants import TenantImage
from kraft.records import TenantState
from wire.messages import MoveTenantRequest, MoveTenantResponse

TENANTS_AT_ONCE, TENANT_COST = 50, 8
PARTITIONS_AT_ONCE = 200
SHOWN_MAX = 20  # tenants of one cell that a look names


class CellsBegin(Struct, frozen=True):
    """The moves that a look begins, each with its operation, and why one could not."""

    records: list[MetadataRecord] = field(default_factory=list)
    operations: tuple[BalanceOperationRecord, ...] = ()
    problem: str = ""


def looking_at_cells(
    image: MetadataImage, inputs: Inputs, loads: BrokerLoads, before: CellsLook, rng: random.Random
) -> Work[CellsLook]:
    """`before`: the last look of this leadership. A cell with a broker whose load is unknown is not judged."""
    living = yield from tenants_by_cell(image)
    cells = Cells(image, inputs.policy, loads, living)
    since = {one.cell: one.since_s for one in before.overloads}
    hot = [cell for cell in cells.by_name.values() if cell.load > OVERLOADED and _is_known(cell, inputs)]
    if not hot or len(cells.by_name) < 2:
        return CellsLook(now_s=inputs.now_s)
    seen = yield from _seen(image, inputs, cells, living)
    found = []
    for cell in hot:
        moving = [one for one in _moving(image) if cell.name in (one.cell, one.target_cell)]
        began = inputs.now_s if moving else since.get(cell.name, inputs.now_s)  # its load is about to change
        tenants = yield from _tenants(image, inputs, cell)
        others = [one for name, one in seen.items() if name != cell.name]
        relief = yield from relieving(seen[cell.name], tenants, others, rng, SHOWN_MAX)
        is_due = not moving and inputs.now_s - began >= inputs.policy.balance.cells_overload_ms / 1000
        waits = "tenants move to it or from it" if moving else ""
        found.append(CellOverload(cell.name, cell.load, began, is_due, relief, waits))
    return CellsLook(tuple(found), inputs.now_s)


def beginning_moves(
    image: MetadataImage, inputs: Inputs, loads: BrokerLoads, look: CellsLook, rng: random.Random
) -> Work[CellsBegin]:
    """The moves that begin after a look: of cells that are due, and few at a time in all of the cluster."""
    room = inputs.policy.balance.tenant_moves_max - len(image.tenants.moving)
    records: list[MetadataRecord] = []
    operations: list[BalanceOperationRecord] = []
    problem = ""
    for overload in look.overloads:
        for move in overload.relief.moves if overload.is_due else ():
            if len(operations) >= room:
                break
            request = MoveTenantRequest(tenant=move.tenant, cell=move.target)
            decision: Decision[MetadataRecord, MoveTenantResponse] = yield from move_tenant(
                image, request, inputs.policy, rng, loads
            )
            if decision.reply.error_code or not decision.records:
                problem = decision.reply.error_message or f"tenant {move.tenant} cannot move to cell {move.target}"
                continue
            operation = BalanceOperationRecord(
                image.balance.next_operation + len(operations),
                OperationKind.RELIEVE,
                (),
                OperationState.DONE,
                f"{_load_of(overload, look.now_s)}: {_move_of(move, image)}",
                inputs.now_ms,
                inputs.now_ms,
            )
            operations.append(operation)
            records += [*decision.records, operation]
    return CellsBegin(records, tuple(operations), problem)


def sentences(image: MetadataImage, look: CellsLook) -> list[str]:
    """Each overloaded cell and what is done about it, for operators."""
    return [_sentence(one, look.now_s, image) for one in look.overloads]


def _sentence(overload: CellOverload, now_s: float, image: MetadataImage) -> str:
    parts = [_move_of(move, image) for move in overload.relief.moves]
    if overload.relief.is_exhausted:
        parts.append("no other cell can take more")
    if overload.waits:
        parts.append(f"waits: {overload.waits}")
    return f"{_load_of(overload, now_s)}: {'; '.join(parts)}" if parts else _load_of(overload, now_s)


def _load_of(overload: CellOverload, now_s: float) -> str:
    return f"cell {overload.cell} has load {overload.load:.2f} for {now_s - overload.since_s:.0f} s"


def _move_of(move: TenantMove, image: MetadataImage) -> str:
    tenant = image.tenants.get(move.tenant)
    name = move.tenant if tenant is None else f"{tenant.name} ({tenant.id})"
    return (
        f"tenant {name} moves to cell {move.target} ({move.target_before:.2f} -> {move.target_after:.2f}), "
        f"which leaves {move.after:.2f}"
    )


# what cells and tenants use --------------------------------------------------------------------------------


def _moving(image: MetadataImage) -> list[TenantImage]:
    return [image.tenants[tenant] for tenant in image.tenants.moving]


def _is_known(cell: CellState, inputs: Inputs) -> bool:
    live = [broker.broker_id for broker in cell.brokers if broker.is_active]
    return bool(live) and all(inputs.usage.load_of(broker, inputs.now_s) is not None for broker in live)


def _seen(
    image: MetadataImage, inputs: Inputs, cells: Cells, living: Mapping[str, Sequence[TenantImage]]
) -> Work[dict[str, CellSeen]]:
    """Every cell, as it will be when the tenants that move have arrived."""
    arriving: dict[str, Use] = {}
    for tenant in _moving(image):
        use = yield from _use_of(image, inputs, tenant, cells.by_name.get(tenant.cell))
        arriving[tenant.home] = arriving.get(tenant.home, Use()).plus(use)
    seen = {}
    for name, cell in cells.by_name.items():
        live = sum(broker.is_active for broker in cell.brokers)
        bandwidth = float(cell_limit(image.cells.get(name) or CellImage(name), BANDWIDTH_PER_BROKER, inputs.policy))
        use = Use(cell.broker_load * live, cell.replicas, cell.bandwidth_share * bandwidth * live)
        promised = 0
        for number, tenant in enumerate(living.get(name, ()), 1):
            promised += reserved(tenant.limits, inputs.policy)
            if number % TENANTS_AT_ONCE == 0:
                yield TENANTS_AT_ONCE
        promisable = bandwidth * len(cell.brokers) * RESERVED_PER_MILLE_MAX / 1000
        seen[name] = CellSeen(
            name,
            use.plus(arriving.get(name, Use())),
            Use(live, cell.replicas_max, bandwidth * live),
            cell.is_open and _is_known(cell, inputs),
            live,
            cell.tenants_max - len(cell.tenants),
            promisable - promised if bandwidth else None,
        )
        yield TENANT_COST
    return seen


def _tenants(image: MetadataImage, inputs: Inputs, cell: CellState) -> Work[list[TenantSeen]]:
    """Those that may leave."""
    found = []
    for tenant in cell.tenants:
        if tenant.state is TenantState.ACTIVE:
            use = yield from _use_of(image, inputs, tenant, cell)
            factor = yield from _factor_of(image, tenant, inputs.policy.default_replication_factor)
            found.append(TenantSeen(tenant.id, use, factor, reserved(tenant.limits, inputs.policy)))
    return found


def _use_of(image: MetadataImage, inputs: Inputs, tenant: TenantImage, cell: CellState | None) -> Work[Use]:
    """A tenant's part of what its cell's brokers do: that of its requests in those of all clients."""
    load = moved = 0.0
    for broker in () if cell is None else cell.brokers:
        use = inputs.usage.of_broker(broker.broker_id, inputs.now_s)
        one = None if use is None else use.tenants.get(tenant.id)
        if use is None or one is None or use.head is None or use.head.rates is None:
            continue
        rates, everything = use.rates_of(one), use.head.rates
        if rates is None:
            continue
        busy = inputs.usage.load_of(broker.broker_id, inputs.now_s) or 0.0
        load += busy * _part(rates.busy, everything.busy)
        of_all = everything.bytes_in + everything.bytes_out
        moved += (use.head.moved_rate or of_all) * _part(rates.bytes_in + rates.bytes_out, of_all)
    yield TENANT_COST * (1 + (0 if cell is None else len(cell.brokers)))
    replicas = 0
    for topic in topics_of(image, tenant):
        for number, partition in enumerate(topic.partitions.values(), 1):
            replicas += partition.settled_replica_count
            if number % PARTITIONS_AT_ONCE == 0:
                yield PARTITIONS_AT_ONCE
        yield 1 + len(topic.partitions) % PARTITIONS_AT_ONCE
    return Use(load, replicas, moved)


def _part(some: float, everything: float) -> float:
    return min(max(some / everything, 0.0), 1.0) if everything > 0 else 0.0


def _factor_of(image: MetadataImage, tenant: TenantImage, default: int) -> Work[int]:
    factor = 0
    for topic in topics_of(image, tenant):
        first = next(iter(topic.partitions.values()), None)
        factor = max(factor, 0 if first is None else first.settled_replica_count)
        yield 1
    return factor or default
