"""The quorum of controllers alone: three voters, proposals from whoever leads, every kind of fault, power included."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from common.errors import OutcomeUnknown, StorageFailure
from common.pacing import Pacer, Work
from common.ports import Ports
from kraft.quorum.application import STEP_COST
from kraft.quorum.quorum import QuorumConfig, RaftQuorum
from kraft.quorum.state_machine import AppliedResult, NotLeader, QuorumBusy
from tests.kraft.works import at_hand
from tests.sim import nemesis
from tests.sim.cluster_settings import quorum_times
from tests.sim.loop import SimLoop, SimulationFailure
from tests.sim.nemesis import Fault, Nemesis, Targets
from tests.sim.world import World, handled_cancellation, no_collection

VOTERS = {number: (f"voter-{number}", 9094) for number in (1, 2, 3)}
NAMES = [address[0] for address in VOTERS.values()]
SECRET = b"the secret of a simulated quorum"
FAULTS_MS = (1_000, 6_000)
SERVES_AGAIN_S = 6.0
LARGE_ENTRY_EACH = 7  # every so many entries one takes several steps to apply
TERMS_PER_FAULT_MAX = 2
LEADER_PAUSE_MS_MAX = 180  # with a heartbeat's interval on top, less than any election time-out here
AT_A_FOLLOWER = ("cut", "one_way", "isolate", "slow_link", "stall", "reset", "kill", "power", "pause", "slow_disk")


class QuorumBroken(SimulationFailure): ...


@dataclass(slots=True)
class Agreement:
    """What is applied anywhere, by index, and what was acknowledged."""

    applied: dict[int, bytes] = field(default_factory=dict)
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    leaders: dict[int, str] = field(default_factory=dict)
    restores: int = 0

    def apply(self, node: str, index: int, data: bytes) -> None:
        if self.applied.setdefault(index, data) != data:
            raise QuorumBroken(f"{node} applies {data!r} at {index}, where {self.applied[index]!r} was applied")

    def acknowledge(self, node: str, result: AppliedResult, data: bytes) -> None:
        if self.applied.get(result.index) != data:
            raise QuorumBroken(f"{node} acknowledges {data!r} at {result.index}, which is not applied there")
        if result.result != data:
            raise QuorumBroken(f"{node} gives {result.result!r} for {data!r}")
        self.acknowledged[result.index] = data

    def lead(self, node: str, term: int) -> None:
        if self.leaders.setdefault(term, node) != node:
            raise QuorumBroken(f"term {term} is led by {self.leaders[term]} and by {node}")


class Register:
    """The state machine: all commands so far, with their indexes."""

    def __init__(self, node: str, agreement: Agreement) -> None:
        self._node, self._agreement = node, agreement
        self.commands: list[tuple[int, bytes]] = []

    def applying(self, index: int, data: bytes | memoryview) -> Work[object]:
        for _ in range(3 if index % LARGE_ENTRY_EACH == 0 else 0):
            yield STEP_COST
        return self._apply(index, bytes(data))

    def _apply(self, index: int, data: bytes) -> object:
        if self.commands and index <= self.commands[-1][0]:
            raise QuorumBroken(f"{self._node} applies {index} after {self.commands[-1][0]}")
        self.commands.append((index, data))
        self._agreement.apply(self._node, index, data)
        return data

    def snapshot(self) -> Work[bytes]:
        return at_hand(b"\n".join(b"%d %s" % command for command in self.commands))

    def restoring(self, data: bytes) -> Work[Callable[[], None]]:
        return at_hand(partial(self.restore, data))

    def restore(self, data: bytes) -> None:
        self._agreement.restores += 1
        self.commands = []
        for line in data.split(b"\n") if data else []:
            index, _, command = line.partition(b" ")
            self._apply(int(index), command)


class QuorumStopped(Exception):
    pass


class QuorumRun:
    def __init__(self, seed: int, faults: tuple[Fault, ...] | None = None, *, keep_trace: bool = False) -> None:
        self.world, self.agreement = World(f"quorum {seed}", keep_trace=keep_trace), Agreement()
        targets = Targets(crashable=NAMES, linked=NAMES)
        drawn = nemesis.draw(self.world.stream("plan"), targets, *FAULTS_MS)
        self.faults = tuple(drawn) if faults is None else faults
        self.term = 0  # the highest that any voter was seen in
        for number, name in enumerate(NAMES, 1):
            self.world.add_node(name, lambda ports, n=number: self._main(ports, n))  # type: ignore[misc]
        self.world.watch(self._ran)
        self.world.tolerates = self._tolerates

    def _tolerates(self, name: str, error: BaseException) -> bool:
        disk_failed = any(fault.target == name and fault.kind in nemesis.DISKS for fault in self.faults)
        return disk_failed and isinstance(error, (QuorumStopped, StorageFailure, OSError))

    async def _main(self, ports: Ports, number: int) -> None:
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        name, config = NAMES[number - 1], QuorumConfig(node=quorum_times())
        config.node.compaction_entries_min = 40

        def fail(reason: str) -> None:
            if not ended.done():
                ended.set_result(reason)

        register = Register(name, self.agreement)
        quorum = RaftQuorum(ports, number, VOTERS, "quorum", SECRET, register, config, pacer=Pacer(), fatal=fail)
        await quorum.start()
        self.world.nodes[name].program = quorum
        proposing = asyncio.create_task(self._propose(ports, quorum, name))
        try:
            raise QuorumStopped(await ended)
        finally:
            handled_cancellation()
            proposing.cancel()
            await asyncio.wait([proposing])
            await quorum.stop()

    async def _propose(self, ports: Ports, quorum: RaftQuorum, name: str) -> None:
        sequence = 0
        while True:
            await asyncio.sleep(ports.random.expovariate(1 / 0.03))
            sequence += 1
            data = f"{name}/{self.world.nodes[name].life_count}/{sequence}".encode()
            try:
                result = await quorum.propose(data, 0.5)
            except (NotLeader, QuorumBusy, OutcomeUnknown):
                continue
            self.agreement.acknowledge(name, result, data)

    def _ran(self, loop: SimLoop) -> None:
        quorum: RaftQuorum | None = self.world.nodes[loop.name].program
        if quorum is not None:
            self.term = max(self.term, quorum.term)
            if quorum.is_leader:
                self.agreement.lead(loop.name, quorum.term)

    def run(self) -> None:
        """Raises what is found to be wrong."""
        world, agreement = self.world, self.agreement
        with no_collection():
            try:
                for name in NAMES:
                    world.start(name)
                Nemesis(world, self.faults, NAMES)
                world.run_for(FAULTS_MS[1] / 1000)
                for name in NAMES:
                    world.resume(name)
                    world.start(name)
                before = len(agreement.acknowledged)
                if not world.run_until(lambda: len(agreement.acknowledged) > before + 20, SERVES_AGAIN_S):
                    raise QuorumBroken("nothing is acknowledged after all faults were healed")
                if self.term > 1 + TERMS_PER_FAULT_MAX * len(self.faults):
                    raise QuorumBroken(f"{len(self.faults)} faults raised the term to {self.term}")
            finally:
                self.hash = world.trace_hash
                world.close()


class FollowerRun(QuorumRun):
    """All faults hit one follower, but for short pauses of the leader: the leader, which the other follower hears all
    the time, has to stay in its office and term."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        super().__init__(seed, (), keep_trace=keep_trace)

    def run(self) -> None:
        """Raises what is found to be wrong."""
        world, agreement = self.world, self.agreement
        with no_collection():
            try:
                for name in NAMES:
                    world.start(name)
                self._acknowledges(10)
                term, leader = self.term, agreement.leaders[self.term]
                rng = world.stream("follower")
                self.faults = at_a_follower(rng, leader)
                Nemesis(world, self.faults, NAMES)
                world.run_for(FAULTS_MS[1] / 1000)
                for name in NAMES:
                    world.resume(name)
                    world.start(name)
                self._acknowledges(20)
                world.run_until(self._all_follow, SERVES_AGAIN_S)
                if self.term != term or not self._all_follow():
                    raise QuorumBroken(f"{leader} was deposed in term {term} though {'; '.join(map(str, self.faults))}")
            finally:
                self.hash = world.trace_hash
                world.close()

    def _acknowledges(self, count: int) -> None:
        acknowledged = self.agreement.acknowledged
        goal = len(acknowledged) + count
        if not self.world.run_until(lambda: len(acknowledged) > goal, SERVES_AGAIN_S):
            raise QuorumBroken("nothing is acknowledged")

    def _all_follow(self) -> bool:
        quorums = [self.world.nodes[name].program for name in NAMES]
        return all(quorum is not None and quorum.leader_id is not None for quorum in quorums)


def at_a_follower(rng: random.Random, leader: str) -> tuple[Fault, ...]:
    others = [name for name in NAMES if name != leader]
    victim = rng.choice(others)
    begin_ms, end_ms = FAULTS_MS
    faults = [
        Fault(rng.randrange(begin_ms, end_ms), "pause", leader, "", rng.randrange(10, LEADER_PAUSE_MS_MAX))
        for _ in range(rng.randint(0, 3))
    ]
    for _ in range(rng.randint(1, 4)):
        kind, at_ms = rng.choice(AT_A_FOLLOWER), rng.randrange(begin_ms, end_ms)
        ends = [victim, rng.choice([name for name in NAMES if name != victim])]
        if kind in nemesis.LINKS and kind != "isolate":
            rng.shuffle(ends)
        duration_ms = min(int(rng.expovariate(1 / 1_200)) + 1, end_ms - at_ms)
        faults.append(Fault(at_ms, kind, ends[0], ends[1], duration_ms))
    return tuple(sorted(faults))
