"""Cells at the controller: their contents, their load, and the choice of a cell for a tenant. No I/O.

A cell's load is the largest of three: the average load of its brokers, its share of the replicas that it may have, and
its share of the bandwidth of its brokers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work, at_once
from common.settings import INT_MAX, LONG_MAX
from kraft.batches import MetadataRecord
from kraft.controller.broker_loads import BrokerLoads
from kraft.controller.features import check_access_level
from kraft.controller.policy import ControllerPolicy, cell_limit
from kraft.image.brokers import BrokerImage
from kraft.image.cells import (
    BANDWIDTH_PER_BROKER,
    CELL_LIMITS,
    CELL_NAME,
    REPLICAS_PER_BROKER_MAX,
    TENANTS_MAX,
    CellImage,
    brokers_of,
    cell_names,
)
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import LONG_LIMITS, TenantImage
from kraft.records import CellRecord
from kraft.topic_names import CLIENT_KEY_TOPICS
from wire.messages import (
    AlterCellRequest,
    AlterCellResponse,
    AlterTenantRequest,
    CreateTenantRequest,
    DescribeCellsRequest,
    DescribeCellsResponse,
)

CELLS_MAX = 1_000
TENANTS_PER_STEP, TENANTS_PER_UNIT = 200, 2
LOADS_ALIKE = 0.2
R = TypeVar("R")
_Limit = AlterCellRequest.AlteredCellLimit | AlterTenantRequest.AlteredTenantLimit | CreateTenantRequest.NewTenantLimit
_Described = DescribeCellsResponse.DescribedCell


class CellState(Struct, frozen=True):
    """One cell. `replicas`: number on its brokers; `tenants`: those that live in it or move there.

    `broker_load`: average load of its live brokers; `bandwidth_share`: bytes that they receive and send relative
    to their limit, which is `bandwidth` for each of them, 0 for none.
    """

    name: str
    is_open: bool
    brokers: list[BrokerImage]
    replicas: int
    replicas_max: int
    tenants: Sequence[TenantImage]
    tenants_max: int
    broker_load: float
    bandwidth_share: float
    bandwidth: int = 0

    @property
    def replica_share(self) -> float:
        """From 0 to 1; above 1 if a limit was lowered."""
        return self.replicas / self.replicas_max if self.replicas_max else 1.0

    @property
    def tenant_share(self) -> float:
        return len(self.tenants) / self.tenants_max if self.tenants_max else 1.0

    @property
    def load(self) -> float:
        return max(self.broker_load, self.replica_share, self.bandwidth_share)

    def full_reason(self, factor: int, replicas: int = 0) -> str | None:
        """Why no tenant with `replicas` replicas and a replication factor of `factor` fits in; None if it does."""
        live = sum(broker.is_active for broker in self.brokers)
        if not self.is_open:
            return f"Cell {self.name} is closed for more tenants."
        if live < factor:
            return f"Cell {self.name} has {live} live brokers, fewer than the replication factor {factor}."
        if len(self.tenants) >= self.tenants_max:
            return f"Cell {self.name} has {len(self.tenants)} tenants, and its limit is {self.tenants_max}."
        if self.replicas + max(replicas, 1) > self.replicas_max:
            return f"Cell {self.name} has {self.replicas} of {self.replicas_max} replicas, and no room for more."
        return None


Living = Mapping[str, Sequence[TenantImage]]
"""The tenants of each cell by name: those that live in it or move there."""


def tenants_by_cell(image: MetadataImage) -> Work[Living]:
    living: dict[str, list[TenantImage]] = {}
    for number, tenant in enumerate(image.tenants.values(), 1):
        living.setdefault(tenant.home, []).append(tenant)
        if number % TENANTS_PER_STEP == 0:
            yield TENANTS_PER_STEP // TENANTS_PER_UNIT
    return living


def knowing_tenants(
    image: MetadataImage, decide: Callable[[Living], Decision[MetadataRecord, R]]
) -> Work[Decision[MetadataRecord, R]]:
    """`decide` with the tenants of each cell, collected as work because there may be many."""
    living = yield from tenants_by_cell(image)
    return decide(living)


class Cells:
    """All cells of one image. The cost is one look at each broker."""

    def __init__(
        self,
        image: MetadataImage,
        policy: ControllerPolicy,
        loads: BrokerLoads | None = None,
        living: Living | None = None,
    ) -> None:
        """Without `loads`, all brokers have load 0. Without `living`, all tenants are counted here."""
        loads = BrokerLoads() if loads is None else loads
        on_broker = Counter({broker: len(held) for broker, held in image.topics.index.replicas.items()})
        living = at_once(tenants_by_cell(image)) if living is None else living
        self.by_name: dict[str, CellState] = {}
        self.replicas_of = on_broker
        for name in cell_names(image.cells, image.brokers):
            said = image.cells.get(name) or CellImage(name)
            brokers = brokers_of(name, image.brokers)
            self.by_name[name] = CellState(
                name,
                said.is_open,
                brokers,
                sum(on_broker[broker.broker_id] for broker in brokers),
                cell_limit(said, REPLICAS_PER_BROKER_MAX, policy) * len(brokers),
                living.get(name, ()),
                cell_limit(said, TENANTS_MAX, policy),
                *_shares(brokers, bandwidth := cell_limit(said, BANDWIDTH_PER_BROKER, policy), loads),
                bandwidth,
            )

    def room(
        self,
        wanted: str | None,
        rng: random.Random,
        *,
        leaving: str = "",
        replicas: int = 0,
        factor: int,
        without: Mapping[str, str] | None = None,
    ) -> str:
        """The cell for a tenant: the wanted one, or the less loaded of two random ones among those with room.

        `leaving`: the cell that a moving tenant comes from. `without`: cells without enough bandwidth for what the
        tenant has reserved, each with the reason. Raises POLICY_VIOLATION with the reason, or RESOURCE_NOT_FOUND for an
        unknown cell.
        """
        without = without or {}
        if wanted is not None:
            cell = self.by_name.get(wanted)
            if cell is None:
                raise ProtocolError(ErrorCode.RESOURCE_NOT_FOUND, f"There is no cell {wanted}.")
            reason = cell.full_reason(factor, replicas) or without.get(wanted)
            if reason is not None:
                raise ProtocolError(ErrorCode.POLICY_VIOLATION, reason)
            return wanted
        others = [cell for name, cell in self.by_name.items() if name != leaving]
        free = [cell for cell in others if cell.full_reason(factor, replicas) is None and cell.name not in without]
        if not free:
            reasons = [cell.full_reason(factor, replicas) or without.get(cell.name) for cell in others]
            why = " ".join(reason for reason in reasons if reason) or "There is no other cell."
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"No cell has room for the tenant. {why}")
        return _lighter(rng.sample(free, min(2, len(free)))).name


def _lighter(drawn: list[CellState]) -> CellState:
    """The less loaded cell; if loads are similar, the one with fewer tenants, because new tenants have no load yet, and
    many that are created at once would all go to the same cell."""
    lightest = min(drawn, key=lambda cell: cell.load)
    alike = [cell for cell in drawn if cell.load - lightest.load < LOADS_ALIKE]
    return min(alike, key=lambda cell: (cell.tenant_share, cell.load))


def _shares(brokers: list[BrokerImage], bandwidth: int, loads: BrokerLoads) -> tuple[float, float]:
    """Average load of live brokers, and their share of the bandwidth."""
    live = [broker.broker_id for broker in brokers if broker.is_active]
    if not live:
        return 0.0, 0.0
    busy = sum(loads.load(broker) for broker in live) / len(live)
    moved = sum(loads.bytes_per_second(broker) for broker in live)
    return busy, moved / (bandwidth * len(live)) if bandwidth else 0.0


def decide_alter_cell(
    image: MetadataImage, request: AlterCellRequest, policy: ControllerPolicy
) -> Decision[MetadataRecord, AlterCellResponse]:
    """AlterCell (10013): an operator's settings of a cell, which need not have brokers yet."""
    try:
        check_access_level(image)
        name = request.cell_name
        present = image.cells.get(name)
        if not CELL_NAME.fullmatch(name):
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, "A cell's name has 1 to 64 letters, digits, dots, dashes and underscores."
            )
        if request.must_be_new and present is not None:
            raise ProtocolError(ErrorCode.DUPLICATE_RESOURCE, f"Cell {name} exists.")
        if present is None and len(image.cells) >= CELLS_MAX:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"More than {CELLS_MAX} cells.")
        if request.open not in (-1, 0, 1):
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Open is 1, 0 or -1.")
        cell = present or CellImage(name)
        limits = changed_limits(cell.limits, request.limits, CELL_LIMITS)
        record = CellRecord(name, cell.is_open if request.open == -1 else bool(request.open), limits)
    except ProtocolError as error:
        return Decision(AlterCellResponse(error_code=int(error.code), error_message=error.message))
    records: list[MetadataRecord] = [] if present is not None and present.record() == record else [record]
    return Decision(AlterCellResponse(error_code=0, error_message=None), records)


def changed_limits(present: Mapping[str, int], wanted: Iterable[_Limit], known: tuple[str, ...]) -> dict[str, int]:
    """Limits after the request; -1 resets to the default. Raises INVALID_REQUEST."""
    limits = dict(present)
    for limit in wanted:
        if limit.name not in known:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, f"There is no limit {limit.name}; there are {', '.join(known)}."
            )
        if limit.value == -1:
            limits.pop(limit.name, None)
        elif 0 <= limit.value <= (most := LONG_MAX if limit.name in LONG_LIMITS else INT_MAX):
            limits[limit.name] = limit.value
        else:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{limit.name} must be from 0 to {most}.")
    return limits


def decide_describe_cells(
    image: MetadataImage,
    request: DescribeCellsRequest,
    policy: ControllerPolicy,
    loads: BrokerLoads | None = None,
    living: Living | None = None,
) -> Decision[MetadataRecord, DescribeCellsResponse]:
    """DescribeCells (10012), answered by the controller, which has the limits and the brokers' loads."""
    cells = Cells(image, policy, loads, living)
    names = list(cells.by_name) if request.cells is None else list(dict.fromkeys(request.cells))
    unknown = [name for name in names if name not in cells.by_name]
    if unknown:
        message = f"There is no cell {unknown[0]}."
        return Decision(
            DescribeCellsResponse(error_code=int(ErrorCode.RESOURCE_NOT_FOUND), error_message=message, cells=[])
        )
    described = [_described(image, cells, cells.by_name[name], policy) for name in names]
    return Decision(DescribeCellsResponse(error_code=0, error_message=None, cells=described))


def _described(image: MetadataImage, cells: Cells, cell: CellState, policy: ControllerPolicy) -> _Described:
    return _Described(
        name=cell.name,
        is_open=cell.is_open,
        full_reason=cell.full_reason(policy.default_replication_factor),
        load=cell.load,
        broker_load=cell.broker_load,
        replica_share=cell.replica_share,
        bandwidth_share=cell.bandwidth_share,
        bandwidth_per_broker=cell.bandwidth,
        replicas=cell.replicas,
        replicas_max=cell.replicas_max,
        tenant_count=len(cell.tenants),
        tenants_max=cell.tenants_max,
        brokers=[
            _Described.DescribedCellBroker(
                broker_id=broker.broker_id,
                rack=broker.rack,
                is_active=broker.is_active,
                replicas=cells.replicas_of[broker.broker_id],
            )
            for broker in cell.brokers
        ],
        tenants=sorted(tenant.name for tenant in cell.tenants),
        ranges=[
            _Described.CellKeyRange(topic=name, first=held.first, count=held.count)
            for name in CLIENT_KEY_TOPICS
            if (topic := image.topics.get(name)) is not None and (held := topic.range_of(cell.name)) is not None
        ],
    )
