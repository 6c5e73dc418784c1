"""Which tenants leave an overloaded cell, and which cell takes each. No I/O.

What a tenant uses is subtracted from its cell and added to another one, in the three measures of a cell's load. The set
is small: a tenant that suffices by itself is chosen, the lightest such one, otherwise the one that brings the cell
nearest to its aim. With one measure beyond the aim no smaller set suffices; with several it may be larger than needed.

No cell is brought above the aim, so that what one cell is relieved of does not overload another.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from common.pacing import Work

OVERLOADED = 0.8
"""A cell's load that is too high when it lasts."""
AIM = 0.7
"""What a relieved cell, and one that takes a tenant, have at most."""
LEAST = 0.01  # of a cell's excess; a tenant that brings less is not worth a move
TENANTS_AT_ONCE, TENANT_COST = 50, 6


class Use(NamedTuple):
    """The measures of a cell's load, or a tenant's part: loads of brokers added up, replicas, and bytes a second."""

    load: float = 0.0
    replicas: float = 0.0
    moved: float = 0.0

    def plus(self, other: Use, sign: int = 1) -> Use:
        return Use(*(mine + sign * its for mine, its in zip(self, other, strict=True)))

    def of(self, capacity: Use) -> float:
        """The largest share of the capacity; a capacity of 0 bounds nothing."""
        return max(used / most if most > 0 else 0.0 for used, most in zip(self, capacity, strict=True))


class CellSeen(Struct, frozen=True):
    """A cell and what there is room for. `use` is what it will have when the moves that run have ended.

    `live`: live brokers; `slots`: tenants that it may still take; `reservable`: bytes a second that it may still
    promise; None for any number.
    """

    name: str
    use: Use
    capacity: Use
    is_open: bool = True
    live: int = 1
    slots: int = 1
    reservable: float | None = None

    @property
    def load(self) -> float:
        return self.use.of(self.capacity)


class TenantSeen(Struct, frozen=True):
    """A tenant of the overloaded cell. `factor`: its largest replication factor; `reserved`: bytes a second."""

    tenant: str
    use: Use
    factor: int = 1
    reserved: float = 0.0


class TenantMove(Struct, frozen=True):
    """`before` and `after`: load of the cell that it leaves; `target_before`, `target_after`: of the other one."""

    tenant: str
    source: str
    target: str
    before: float
    after: float
    target_before: float
    target_after: float


class Relief(Struct, frozen=True):
    """`moves` in order. `is_exhausted`: the cell stays overloaded, because no other cell can take more of it."""

    moves: tuple[TenantMove, ...] = ()
    is_exhausted: bool = False


def relieving(
    cell: CellSeen, tenants: Sequence[TenantSeen], others: Iterable[CellSeen], rng: random.Random, moves_max: int
) -> Work[Relief]:
    """The smallest set of tenants that have to leave to bring the cell to the aim. Each goes to the less loaded of two
    cells that are drawn among those with room."""
    cells = {other.name: other for other in others if other.name != cell.name}
    left = {tenant.tenant: tenant for tenant in sorted(tenants, key=lambda one: one.tenant)}
    moves: list[TenantMove] = []
    while len(moves) < moves_max and cell.load > AIM:
        chosen = yield from _chosen(cell, left, cells)
        if chosen is None:
            break
        del left[chosen.tenant]
        free = list(_with_room(chosen, cells))
        target = min(rng.sample(free, min(2, len(free))), key=lambda one: (_taking(one, chosen).load, one.name))
        relieved, taken = _giving(cell, chosen), _taking(target, chosen)
        moves.append(
            TenantMove(chosen.tenant, cell.name, target.name, cell.load, relieved.load, target.load, taken.load)
        )
        cell, cells[target.name] = relieved, taken
    return Relief(tuple(moves), len(moves) < moves_max and cell.load > OVERLOADED)


def _chosen(cell: CellSeen, left: Mapping[str, TenantSeen], cells: Mapping[str, CellSeen]) -> Work[TenantSeen | None]:
    """The lightest tenant that suffices, or the one that brings the cell nearest to the aim, of those with a place."""
    best: tuple[bool, float] | None = None
    chosen: TenantSeen | None = None
    for number, tenant in enumerate(left.values(), 1):
        rank = _rank(cell, tenant)
        is_better = rank is not None and (best is None or rank > best)
        if is_better and any(True for _ in _with_room(tenant, cells)):
            best, chosen = rank, tenant
        if number % TENANTS_AT_ONCE == 0:
            yield TENANTS_AT_ONCE * TENANT_COST
    yield len(left) % TENANTS_AT_ONCE * TENANT_COST + len(cells)
    return chosen


def _rank(cell: CellSeen, tenant: TenantSeen) -> tuple[bool, float] | None:
    """Whether the tenant suffices, and its rank among those that do, or that do not; None for too little."""
    excess = [
        (used - AIM * most, its)
        for used, most, its in zip(cell.use, cell.capacity, tenant.use, strict=True)
        if most > 0 and used > AIM * most
    ]
    if all(its >= over for over, its in excess):
        return True, -tenant.use.of(cell.capacity)
    covered = sum(min(its / over, 1.0) for over, its in excess)
    return (False, covered) if covered >= LEAST else None


def _with_room(tenant: TenantSeen, cells: Mapping[str, CellSeen]) -> Iterator[CellSeen]:
    for cell in cells.values():
        may_take = cell.is_open and cell.slots > 0 and cell.live >= tenant.factor
        may_promise = cell.reservable is None or tenant.reserved <= cell.reservable
        if may_take and may_promise and _taking(cell, tenant).load <= AIM:
            yield cell


def _giving(cell: CellSeen, tenant: TenantSeen) -> CellSeen:
    return CellSeen(
        cell.name, cell.use.plus(tenant.use, -1), cell.capacity, cell.is_open, cell.live, cell.slots, cell.reservable
    )


def _taking(cell: CellSeen, tenant: TenantSeen) -> CellSeen:
    reservable = None if cell.reservable is None else cell.reservable - tenant.reserved
    return CellSeen(
        cell.name, cell.use.plus(tenant.use), cell.capacity, cell.is_open, cell.live, cell.slots - 1, reservable
    )
