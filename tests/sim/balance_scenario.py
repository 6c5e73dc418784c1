"""A cluster whose controllers level it while an operator moves replicas, fills, empties, pauses and cancels, and nodes
die: what the balancer's records must be whatever happens."""

from __future__ import annotations

import random
from dataclasses import replace

from common.node_settings.balance import BalanceSettings
from common.ports import Ports
from kraft.controller.balance_requests import BalanceAct
from kraft.controller.node import ControllerConfig
from kraft.fleet_records import BalanceMoveRecord, MoveOutcome, OperationKind, OperationState
from kraft.image.metadata import MetadataImage
from tests.sim.client_links import ClusterLinks
from tests.sim.cluster import Cluster
from tests.sim.invariants import InvariantBroken
from tests.sim.loop import SimLoop
from tests.sim.operator import REPLICAS_LEAST, REPLICAS_MOST, Operator
from tests.sim.plan import Plan
from wire.messages import AlterBalanceRequest, ListBalanceMovesRequest

MOVES_MAX = 2
SETTINGS = BalanceSettings(
    interval_ms=600, moves_max=MOVES_MAX, bytes_per_second=200_000, leader_moves_max=600, rest_ms=400
)
ACTS = (BalanceAct.RUN, BalanceAct.ADD, BalanceAct.DRAIN, BalanceAct.DRAIN, BalanceAct.PAUSE, BalanceAct.RESUME,
        BalanceAct.RESUME, BalanceAct.CANCEL)  # fmt: skip
ASKS_S = 0.2


class BalancingOperator(Operator):
    """Asks the balancer for this and that, and in the end for nothing more."""

    async def run(self) -> None:
        rng = self._links.ports.random
        while not self._history.all_healed:
            await self._links.pause(ASKS_S)
            if rng.random() < 0.2:
                await self._reassign(
                    rng.choice(self._partitions), self._drawn(rng.randint(REPLICAS_LEAST, REPLICAS_MOST))
                )
            else:
                await self._alter(rng.choice(ACTS), rng)
        while not await self._alter(BalanceAct.CANCEL, rng) or not await self._has_ended():
            await self._links.pause()
        while not await self._alter(BalanceAct.PAUSE, rng):
            await self._links.pause()
        await self._say_last_word()

    async def _alter(self, act: BalanceAct, rng: random.Random) -> bool:
        brokers = [rng.choice(self._brokers)] if act in (BalanceAct.ADD, BalanceAct.DRAIN) else []
        response = await self._call(AlterBalanceRequest(act=act, brokers=brokers, timeout_ms=1_000), 0)
        if response is not None and not response.error_code:
            self._history.counts[f"balance: {act.name}"] += 1
        return response is not None and not response.error_code

    async def _has_ended(self) -> bool:
        response = await self._call(ListBalanceMovesRequest(limit=0), 0)
        if response is None or response.error_code:
            return False
        return all(one.state in ("done", "cancelled") for one in response.operations)


class BalancedCluster(Cluster):
    """Of a plan with `moves`."""

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        super().__init__(plan, keep_trace=keep_trace, controller_change=_balancing)
        self.moves_seen = BalanceWatch()
        self.world.watch(self._ran)

    def _ran(self, loop: SimLoop) -> None:
        if loop.name in self.controllers and not self.world.scheduler.failure:
            self.moves_seen.saw(self.watch.newest, self.history.counts)

    async def _operator(self, ports: Ports) -> None:
        links = ClusterLinks(ports, self.bootstrap, self.history, "operator")
        while not self.history.commits:
            await links.pause()
        await BalancingOperator(links, self.plan.moved_partitions, list(self.brokers.values())).run()


def _balancing(config: ControllerConfig) -> ControllerConfig:
    return replace(config, policy=replace(config.policy, balance=SETTINGS))


class BalanceWatch:
    """Every change of the committed operations and moves, from one image to the next."""

    def __init__(self) -> None:
        self._seen = MetadataImage()

    def saw(self, image: MetadataImage, counts: dict[str, int]) -> None:
        if image is self._seen:
            return
        before, self._seen = self._seen, image
        if image.balance is before.balance:
            return
        if len(image.balance.running) > MOVES_MAX:
            raise InvariantBroken(self, f"{len(image.balance.running)} moves run at once")
        for number, move in image.balance.moves.items():
            known = before.balance.moves.get(number)
            if known is None:
                counts[f"balance moves of {image.balance.operations[move.operation].kind.name}"] += 1
                self._began(before, image, move)
            elif known != move:
                counts[f"balance moves {move.outcome.name}"] += 1
                self._went_on(known, move)

    def _began(self, before: MetadataImage, image: MetadataImage, move: BalanceMoveRecord) -> None:
        states = [
            found.operations[move.operation].state
            for found in (before.balance, image.balance)
            if move.operation in found.operations
        ]
        if OperationState.RUNNING not in states:
            raise InvariantBroken(self, f"{move} began in an operation that does not run")
        if image.balance.operations[move.operation].kind is OperationKind.DRAIN:
            return
        for earlier in image.balance.moves.values():
            if (
                earlier.number < move.number
                and earlier.operation == move.operation
                and (earlier.topic_id, earlier.partition) == (move.topic_id, move.partition)
                and earlier.outcome is MoveOutcome.DONE
                and earlier.before == move.after
            ):
                raise InvariantBroken(self, f"{move} undoes {earlier}")

    def _went_on(self, known: BalanceMoveRecord, move: BalanceMoveRecord) -> None:
        """Only its outcome changes, once."""
        same = (known.operation, known.topic_id, known.partition, known.before, known.after, known.begun_ms)
        now = (move.operation, move.topic_id, move.partition, move.before, move.after, move.begun_ms)
        if same != now or known.outcome is not MoveOutcome.RUNNING or move.outcome is MoveOutcome.RUNNING:
            raise InvariantBroken(self, f"{known} became {move}")
