"""Cells and tenants for half an hour: one cell is overloaded, a controller dies while a tenant leaves it, or in the end
no cell has room.

Three controllers as they are, and brokers without data, which report what their cell's tenants would take of them. All
nodes keep long intervals, so that half an hour costs little.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from common.errors import OutcomeUnknown
from common.loop_load import TURN_COST_S
from common.node_settings.balance import BalanceSettings
from common.ports import Ports
from kraft.controller.node import ControllerConfig
from kraft.fleet_records import BalanceOperationRecord, OperationKind
from kraft.image.cells import cell_of
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.observers.controller_channel import ControllerUnavailable
from kraft.records import TenantState
from tests.kraft.usage_reports import report, tenant_row
from tests.sim.dataless_broker import CALL_S, DatalessBroker
from tests.sim.dataless_world import FETCH_S, LIFECYCLE, REPORT_S, UP_S, DatalessWorld
from tests.sim.invariants import InvariantBroken
from tests.sim.loop import SimulationFailure
from wire.messages import CreateTenantRequest

CELLS = ("east", "north", "west")
TENANTS = {"a": ("east", 0.40), "b": ("east", 0.28), "c": ("east", 0.22), "d": ("north", 0.30), "e": ("west", 0.15)}
"""Where each is created, and what it takes of the loop of each broker of its cell: east has 0.9."""
PARTITIONS, REPLICAS = 2, 2
OVERLOAD_S = 600.0
MOVES_MAX = 2
MOVES_S, QUIET_S = 300.0, 150.0
JOB_NS = 1_000_000
SETTINGS = BalanceSettings(cells_overload_ms=int(OVERLOAD_S * 1000), tenant_moves_max=MOVES_MAX)
CREATE_TENANT_VERSION = 0


class NotRelieved(SimulationFailure): ...


class TenantsBroker(DatalessBroker):
    """Reports what the tenants of its cell would take of it, by name in `busy`."""

    def __init__(self, ports: Ports, broker_id: int, fatal: Callable[[str], None], busy: dict[str, float]) -> None:
        cell = CELLS[broker_id % len(CELLS)]
        super().__init__(ports, broker_id, fatal, cell, LIFECYCLE, fetch_wait_s=FETCH_S)
        self._busy, self._counted = busy, dict[str, int]()
        self._jobs = self._wait_ns = 0

    async def report_for_ever(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(REPORT_S)
            image = self.image
            broker = image.brokers.get(self._broker_id)
            if broker is None:
                continue
            number += 1
            self._count(image)
            total = sum(self._counted.values())
            request = report(
                self._broker_id,
                broker.epoch,
                number,
                int(number * REPORT_S * 1000),
                bytes_in=total // 1000,
                requests=self._jobs,
                busy_ns=total,
                loop_jobs=self._jobs,
                loop_busy_ns=total,
                loop_service_ns=total,
                loop_service_squares=self._jobs * 2e-6,
                loop_wait_ns=self._wait_ns,
                tenants=[tenant_row(tenant, ns // 1000, busy_ns=ns) for tenant, ns in self._counted.items()],
            )
            with contextlib.suppress(ControllerUnavailable, OutcomeUnknown):
                await self._channel.call(request, 0, timeout_s=CALL_S)

    def _count(self, image: MetadataImage) -> None:
        """A tenant that moves is served by both cells for a while; here it is by the one that it leaves."""
        load = 0.0
        for tenant in image.tenants.values():
            if tenant.cell == self._cell:
                part = self._busy[tenant.name]
                load += part
                self._counted[tenant.id] = self._counted.get(tenant.id, 0) + int(part * REPORT_S * 1e9)
        jobs = int(load * REPORT_S * 1e9) // JOB_NS
        self._jobs += jobs
        each_ns = JOB_NS + TURN_COST_S * 1e9  # job times vary as exponential ones
        self._wait_ns += int(jobs * each_ns * load / max(1 - load, 0.01))


class CellsRun(DatalessWorld):
    """With `deposes` the active controller dies in the midst, otherwise all cells get full in the end."""

    BROKERS = 6  # two in each cell, in turn

    def __init__(self, seed: int, *, deposes: bool, keep_trace: bool = False) -> None:
        self._deposes = deposes
        self.busy = {name: part for name, (_, part) in TENANTS.items()}
        self.relieved: list[BalanceOperationRecord] = []
        self.left: dict[str, list[tuple[float, str]]] = {}  # by tenant: when it began to move, and whence
        super().__init__(f"cells {seed}", keep_trace=keep_trace)

    def settings(self, number: int) -> ControllerConfig:
        config = super().settings(number)
        return replace(config, policy=replace(config.policy, balance=SETTINGS, default_replication_factor=REPLICAS))

    def make_broker(self, ports: Ports, broker: int, fatal: Callable[[str], None]) -> TenantsBroker:
        return TenantsBroker(ports, broker, fatal, self.busy)

    async def serve(self, broker: int, program: DatalessBroker) -> None:
        assert isinstance(program, TenantsBroker)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(program.report_for_ever())
            if broker == 0:
                tasks.create_task(_create(program, self.BROKERS))

    # -- invariants

    def advanced(self, before: MetadataImage, image: MetadataImage) -> None:
        moving = [image.tenants[tenant] for tenant in image.tenants.moving]
        if len(moving) > MOVES_MAX:
            raise InvariantBroken(self, f"{len(moving)} tenants move at once")
        for tenant in moving:
            known = before.tenants.get(tenant.id)
            if known is None or known.state is not TenantState.MOVING:
                self._began(tenant)
        for number, operation in image.balance.operations.items():
            if number not in before.balance.operations and operation.kind is OperationKind.RELIEVE:
                self.relieved.append(operation)

    def _began(self, tenant: TenantImage) -> None:
        moves = self.left.setdefault(tenant.name, [])
        if moves and self.world.now_s - moves[-1][0] < OVERLOAD_S:
            raise InvariantBroken(
                self, f"tenant {tenant.name} moves again after {self.world.now_s - moves[-1][0]:.0f} s"
            )
        if any(whence == tenant.target_cell for _, whence in moves):
            raise InvariantBroken(self, f"tenant {tenant.name} returns to {tenant.target_cell}")
        moves.append((self.world.now_s, tenant.cell))

    # -- the course

    def course(self) -> None:
        self.within(UP_S, self._not_up)
        began_s = self.world.now_s
        relieves = lambda: len(self.newest.tenants.moving) > 0  # noqa: E731
        if not self.world.run_until(relieves, OVERLOAD_S + MOVES_S):
            raise NotRelieved(f"no tenant leaves: {self.left}")
        if self.world.now_s - began_s < OVERLOAD_S - UP_S:
            raise SimulationFailure(f"a tenant leaves after {self.world.now_s - began_s:.0f} s")
        if self._deposes:
            self.world.start(self.kill_controller())
        self.within(MOVES_S, lambda: "tenants have not arrived" if self.newest.tenants.moving else "")
        self._is_relieved()
        moved = dict(self.left)
        self.world.run_for(1.2 * OVERLOAD_S if self._deposes else QUIET_S)
        if self.left != moved or len(self.relieved) != len(moved):
            raise InvariantBroken(self, f"tenants move without need: {self.left}")
        if not self._deposes:
            self._exhausts()

    def _is_relieved(self) -> None:
        """The lightest tenant that suffices has left, with its reason, and nothing is where it was."""
        image = self.newest
        if list(self.left) != ["c"] or len(self.relieved) != 1:
            raise SimulationFailure(f"not the smallest set left: {self.left}, {self.relieved}")
        (tenant,) = [one for one in image.tenants.values() if one.name == "c"]
        if tenant.cell == "east" or tenant.id not in self.relieved[0].reason:
            raise SimulationFailure(f"{tenant} for {self.relieved[0]}")
        homes = {broker.broker_id for broker in image.brokers.values() if cell_of(broker) == tenant.cell}
        topic = image.topics.by_id[image.topics.ids[f"{tenant.prefix}t"]]
        if any(not homes >= set(one.replicas) or one.is_reassigning for one in topic.partitions.values()):
            raise SimulationFailure(f"{topic.name} is not in {tenant.cell}")

    def _exhausts(self) -> None:
        """Every cell is too full for any tenant of another one."""
        self.busy.update({"a": 0.5, "b": 0.4, "c": 0.15, "d": 0.5, "e": 0.6})
        self.within(2 * OVERLOAD_S, lambda: "" if self._exhausted() else "no cell is known to be exhausted")
        self.world.run_for(QUIET_S)
        if len(self.relieved) != 1 or not self._exhausted():
            raise SimulationFailure(f"where no cell has room, tenants move: {self.left}")

    def _exhausted(self) -> bool:
        active = self.active()
        return active is not None and b"\ntidelog_cells_exhausted 1.0\n" in active.metrics.text()

    def _not_up(self) -> str:
        missing, topics = self.inactive_brokers(), len(self.newest.topics.ids)
        return f"brokers {missing} are not active, {topics} topics" if missing or topics < len(TENANTS) else ""


async def _create(program: TenantsBroker, brokers: int) -> None:
    """The tenants, and a topic of each."""
    while not await program.observer.wait_until(lambda image: len(image.brokers) == brokers, CALL_S):
        pass
    for name, (cell, _) in TENANTS.items():
        while name not in {tenant.name for tenant in program.image.tenants.values()}:
            await program.ask(CreateTenantRequest(tenant_name=name, cell=cell, limits=[]), CREATE_TENANT_VERSION)
    for tenant in list(program.image.tenants.values()):
        await program.create_topics([f"{tenant.prefix}t"], PARTITIONS, REPLICAS)
