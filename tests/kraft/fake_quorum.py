"""A quorum of one under the test's hand: commits at once, late, or never."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from common.errors import OutcomeUnknown
from common.pacing import Pacer
from common.ports import Ports
from kraft.controller.driver import ControllerDriver, DriverConfig
from kraft.controller.policy import ControllerPolicy
from kraft.controller.state_machine import Applied, MetadataStateMachine
from kraft.metadata_log import MetadataLog
from kraft.quorum.state_machine import AppliedResult, NotLeader, QuorumBusy

NODE_ID = 1


class TestClock:
    """Monotonic time is the loop's, wall time stands still."""

    __test__ = False

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return 1_700_000_000_000


def clock_ports(seed: int = 3) -> Ports:
    """Ports without network and disk."""
    return Ports(None, None, TestClock(), random.Random(seed))  # type: ignore[arg-type]


class FakeQuorum:
    """`hold` keeps proposals back until `release`; `lose` lets those that are held fail as unknown."""

    def __init__(self, machine: MetadataStateMachine) -> None:
        self.machine = machine
        self.is_leader = False
        self.term = 0
        self.contact = True
        self.hold = False
        self.busy = False
        self.proposals: list[bytes] = []
        self.held: list[tuple[bytes, asyncio.Future[AppliedResult]]] = []
        self._callbacks: list[Callable[[bool, int], None]] = []
        self._index = 0

    @property
    def leader_id(self) -> int | None:
        return NODE_ID if self.is_leader else None

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        self._callbacks.append(callback)

    def has_quorum_contact(self) -> bool:
        return self.is_leader and self.contact

    def win(self, term: int | None = None) -> None:
        self.term = self.term + 1 if term is None else term
        self.is_leader = True
        self._tell()

    def lose(self) -> None:
        self.is_leader = False
        held, self.held = self.held, []
        for _data, future in held:
            future.set_exception(OutcomeUnknown("lost"))
        self._tell()

    def release(self) -> None:
        """Commit what is held, in order."""
        self.hold = False
        held, self.held = self.held, []
        for data, future in held:
            result = self._commit(data)
            if not future.done():
                future.set_result(result)

    def commit_unheard(self) -> None:
        """What is held is committed, but whoever proposed it hears that its fate is unknown."""
        held, self.held = self.held, []
        for data, future in held:
            self._commit(data)
            future.set_exception(OutcomeUnknown("timeout"))

    async def propose(self, data: bytes, timeout_s: float) -> AppliedResult:
        if not self.is_leader:
            raise NotLeader(None)
        if self.busy:
            raise QuorumBusy
        self.proposals.append(data)
        if not self.hold:
            await asyncio.sleep(0)
            return self._commit(data)
        future: asyncio.Future[AppliedResult] = asyncio.get_running_loop().create_future()
        self.held.append((data, future))
        return await future

    def _commit(self, data: bytes) -> AppliedResult:
        self._index += 1
        applied: Applied = self.machine.apply(self._index, data)
        return AppliedResult(self._index, self.term, applied)

    def _tell(self) -> None:
        for callback in self._callbacks:
            callback(self.is_leader, self.term)


class Bench:
    """A driver over a fake quorum."""

    def __init__(
        self,
        policy: ControllerPolicy | None = None,
        config: DriverConfig | None = None,
        machine: MetadataStateMachine | None = None,
        node_id: int = NODE_ID,
    ) -> None:
        self.ports = clock_ports()
        self.machine = machine or MetadataStateMachine(MetadataLog())
        self.quorum = FakeQuorum(self.machine)
        self.policy = policy or ControllerPolicy(default_replication_factor=3, min_insync_replicas=2)
        self.activity: list[bool] = []
        self.on_active: Callable[[], None] = lambda: None
        self.fatal: list[str] = []
        self.pacer = Pacer()
        self.driver = ControllerDriver(
            self.ports,
            node_id,
            self.quorum,
            self.machine,
            self.policy,
            config or DriverConfig(claim_pause_s=0.01),
            self.pacer,
            on_active=self._activity_changed,
            fatal=self.fatal.append,
        )

    def _activity_changed(self, is_active: bool) -> None:
        self.activity.append(is_active)
        if is_active:
            self.on_active()

    async def begin(self) -> None:
        await self.driver.start()
        self.quorum.win()
        await self.settle(lambda: self.machine.image.cluster_id is not None)

    async def settle(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not holds():  # noqa: ASYNC110  nobody tells of what is looked at
                await asyncio.sleep(0.001)
