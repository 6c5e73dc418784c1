"""Raft nodes of one quorum under faults: virtual time, queues for links, disks that lose what was not synced.

Everything but the driver, the transport and the sockets is the product's. A world's run follows from its seed. It
keeps book of what each node applied and what was acknowledged, and raises `Violation` for whatever must not be.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from unittest import mock

import msgspec

from common.pacing import Work, at_once
from kraft.quorum.application import STEP_COST
from kraft.quorum.journal_format import SnapshotBase
from kraft.quorum.message_filter import Delivery, Message, RaftView, check_message
from kraft.quorum.node import RaftNode
from kraft.quorum.node_config import NodeConfig
from kraft.quorum.snapshot_file import Snapshot, SnapshotFile, encode_snapshot
from kraft.quorum.snapshot_keeper import Installed, Kept
from kraft.quorum.snapshot_transfer import Arrived
from kraft.quorum.state_machine import AppliedResult
from kraft.quorum.write_ahead_log import WriteAheadLog
from tests.kraft.memory_disk import MemoryDisk, PowerCut
from tests.kraft.works import at_hand

DIRECTORY = "quorum"
STEP_S = 0.005
BYTES_PER_STEP = 20_000  # of a command: what a step applies
QUEUED_MESSAGES_MAX = 20_000


class Violation(Exception):
    """A promise was broken."""


class Sequence:
    """The replicated state: all commands in order. It reports each to the world."""

    def __init__(self, world: QuorumWorld, name: int) -> None:
        self._world = world
        self._name = name
        self.commands: list[bytes] = []
        self.index = 1

    def applying(self, index: int, data: bytes | memoryview) -> Work[object]:
        for _ in range(len(data) // BYTES_PER_STEP):
            yield STEP_COST
        if self._world.entry_cost:
            yield self._world.entry_cost
        self._world.applied(self._name, index, bytes(data), after=self.index)
        self.index = index
        self.commands.append(bytes(data))
        return len(self.commands)

    def snapshot(self) -> Work[bytes]:
        self._world.snapshots_taken += 1
        return at_hand(bytes(msgspec.msgpack.encode([self.index, self.commands])))

    def restoring(self, data: bytes) -> Work[Callable[[], None]]:
        return at_hand(partial(self.restore, data))

    def restore(self, data: bytes) -> None:
        index, self.commands = msgspec.msgpack.decode(data)
        if index < self.index:
            raise Violation(f"node {self._name}: a snapshot of {index} replaces the state at {self.index}")
        self.index = index
        if self._name in self._world.nodes:
            self._world.snapshots_installed += 1


class AtOnceKeeper:
    """Keeps snapshots within the call."""

    def __init__(self, file: SnapshotFile) -> None:
        self._file = file

    def keep(self, base: SnapshotBase, state: Work[bytes], done: Kept) -> None:
        encoded = encode_snapshot(Snapshot(base, at_once(state)))
        self._file.write(encoded)
        done(encoded)

    def install(self, arrived: Arrived, restoring: Work[Callable[[], None]], done: Installed) -> None:
        self._file.write(arrived.encoded)
        done(at_once(restoring))


class UnsyncedLog(WriteAheadLog):
    def sync(self) -> None:
        """What is gathered stays in memory."""


class QuorumWorld:
    """`filtered` and `synced` turn two safeguards off, to show that the faults here need them. `entry_cost` is what
    each entry costs to apply."""

    def __init__(
        self,
        seed: int,
        size: int,
        *,
        filtered: bool = True,
        synced: bool = True,
        node_classes: Mapping[int, type[RaftNode]] | None = None,
        entry_cost: int = 0,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 1_000.0
        self.clock = [self.now]  # follows `now` with each step
        self.entry_cost = entry_cost
        self._node_classes = node_classes or {}
        self.synced = synced
        self.filtered = filtered
        self.config = NodeConfig(
            election_timeout_min_s=0.4,
            election_timeout_max_s=0.8,
            heartbeat_interval_s=0.05,
            leader_fallback_timeout_s=1.0,
            append_bytes_max=600,
            backlog_bytes_max=4_000,
            snapshot_part_bytes=300,
            compaction_entries_min=1 << 30,
            compaction_bytes_min=1 << 30,
        )
        self.names = list(range(1, size + 1))
        self.disks = {name: MemoryDisk() for name in self.names}
        self.nodes: dict[int, RaftNode] = {}
        self.machines: dict[int, Sequence] = {}
        self.queues = {(a, b): deque[bytes]() for a in self.names for b in self.names if a != b}
        self.cut: set[tuple[int, int]] = set()
        self.delayed_until: dict[tuple[int, int], float] = {}
        self.by_index: dict[int, bytes] = {}
        self.acknowledged: list[bytes] = []
        self.proposal_count = 0
        self.leaders: dict[int, int] = {}  # term -> node
        self.snapshots_taken = 0
        self.snapshots_installed = 0
        for name in self.names:
            self.start(name)

    # -- life and death

    def start(self, name: int) -> None:
        try:
            self._recover(name)
        except PowerCut:
            self.disks[name].lose_power(self.random)

    def _recover(self, name: int) -> None:
        disk, rng = self.disks[name], random.Random(self.random.random())
        snapshots = SnapshotFile(disk, DIRECTORY)
        machine = Sequence(self, name)
        snapshot = snapshots.read()
        journal_class = WriteAheadLog if self.synced else UnsyncedLog
        if disk.exists(f"{DIRECTORY}/journal"):
            base = None if snapshot is None else snapshot.base
            journal = journal_class.open(disk, DIRECTORY, rng, name, base)
        else:
            journal = journal_class.create(disk, DIRECTORY, rng, name)
        peers = [peer for peer in self.names if peer != name]
        node_class = self._node_classes.get(name, RaftNode)
        node = node_class(
            name,
            peers,
            journal,
            AtOnceKeeper(snapshots),
            machine,
            rng,
            self.config,
            lambda peer: self._queued(name, peer),
        )
        if snapshot is not None:
            machine.restore(snapshot.state)
            node.recover(snapshot)
        for peer in peers:
            node.connected(peer)
            if peer in self.nodes:
                self.nodes[peer].disconnected(name)
                self.nodes[peer].connected(name)
        self.nodes[name], self.machines[name] = node, machine

    def crash(self, name: int, *, power: bool) -> None:
        """The process dies; with `power` the disk loses what was not synced as well."""
        del self.nodes[name], self.machines[name]
        self.disks[name].operations_left = None
        if power:
            self.disks[name].lose_power(self.random)
        for peer in self.names:
            if peer != name:
                self.queues[peer, name].clear()
                if self.random.random() < 0.5:
                    self.queues[name, peer].clear()

    def restart_one(self) -> None:
        for name in self.names:
            if name not in self.nodes:
                self.start(name)
                return

    # -- one moment

    def step(self, *, shuffled: bool = True) -> None:
        self.now += STEP_S
        for name in self.names:
            self._guarded(name, lambda node: node.step(self._poster(node.node_id)))
        for name, node in self.nodes.items():
            if node._isLeader() and self.leaders.setdefault(node.raftCurrentTerm, name) != name:
                raise Violation(f"two leaders in term {node.raftCurrentTerm}")
        links = [link for link in self.queues if link not in self.cut and self.delayed_until.get(link, 0) <= self.now]
        if shuffled:
            self.random.shuffle(links)
        for source, target in links:
            self._deliver(source, target, self.random.choice((1, 2, 3, 50)) if shuffled else 1_000)
        self.clock[0] = self.now

    def _deliver(self, source: int, target: int, count: int) -> None:
        queue = self.queues[source, target]
        while queue and count > 0 and target in self.nodes:
            count -= 1
            message = check_message(msgspec.msgpack.decode(queue.popleft()))
            self._guarded(target, partial(_receive, source, message))
        if target in self.nodes and self.random.random() < 0.7:
            self._guarded(target, lambda node: node.step(self._poster(node.node_id)))

    def _guarded(self, name: int, act: Callable[[RaftNode], None]) -> None:
        node = self.nodes.get(name)
        if node is not None:
            try:
                act(node)
            except PowerCut:
                self.crash(name, power=True)

    def _poster(self, name: int) -> Callable[[list[tuple[int, Message]]], None]:
        def post(messages: list[tuple[int, Message]]) -> None:
            for peer, message in messages:
                if peer in self.nodes and (name, peer) not in self.cut:
                    self.queues[name, peer].append(msgspec.msgpack.encode(message))
                    if len(self.queues[name, peer]) > QUEUED_MESSAGES_MAX:
                        raise Violation("a flood of messages")

        return post

    def _queued(self, name: int, peer: int) -> int:
        return sum(len(message) for message in self.queues[name, peer])

    # -- clients

    def propose(self) -> None:
        for node in list(self.nodes.values()):
            if node.has_office():
                for _ in range(self.random.choice((1, 1, 4))):
                    self.proposal_count += 1
                    data = b"%d:" % self.proposal_count + b"y" * self.random.choice((5, 60))
                    node.append(data, partial(self._answered, data))

    def _answered(self, data: bytes, result: AppliedResult | None) -> None:
        if result is not None:
            if self.by_index.get(result.index) != data:
                raise Violation(
                    f"{data!r} is acknowledged at {result.index}, where {self.by_index.get(result.index)!r} is"
                )
            self.acknowledged.append(data)

    def applied(self, name: int, index: int, data: bytes, after: int) -> None:
        if index <= after:
            raise Violation(f"node {name} applies {index} after {after}")
        if self.by_index.setdefault(index, data) != data:
            raise Violation(f"node {name} applies {data!r} at {index}, another applied {self.by_index[index]!r}")

    # -- faults

    def partition(self) -> None:
        names = self.random.sample(self.names, len(self.names))
        split = self.random.randint(1, len(names) - 1)
        left, right = names[:split], names[split:]
        self.cut = {(a, b) for a in left for b in right} | {(a, b) for a in right for b in left}
        if self.random.random() < 0.3:  # one way only
            self.cut = {(a, b) for a, b in self.cut if a in left}
        if self.random.random() < 0.5:
            for link in sorted(self.cut):
                self.queues[link].clear()

    def heal(self) -> None:
        self.cut = set()
        self.delayed_until.clear()

    # -- the end

    def settle(self, seconds: float = 9.0) -> None:
        self.heal()
        for disk in self.disks.values():
            disk.operations_left = None
        for name in self.names:
            if name not in self.nodes:
                self.start(name)
        for _ in range(int(seconds / STEP_S)):
            self.step(shuffled=False)
            if self._is_settled():
                return

    def _is_settled(self) -> bool:
        ends = {node.journal.last_index for node in self.nodes.values()}
        applied = {node.raftLastApplied for node in self.nodes.values()}
        has_leader = any(node.has_office() for node in self.nodes.values())
        return has_leader and len(ends) == 1 and applied == ends

    def judge(self) -> None:
        """After `settle`: all nodes agree, and hold each acknowledged command once, in the order of its index."""
        if not self._is_settled():
            states = {name: (node.raftLastApplied, node.journal.last_index) for name, node in self.nodes.items()}
            raise Violation(f"not settled: {states}")
        sequences = [machine.commands for machine in self.machines.values()]
        if any(sequence != sequences[0] for sequence in sequences):
            raise Violation("the nodes differ")
        found = dict.fromkeys(sequences[0])
        if len(found) != len(sequences[0]):
            raise Violation("a command is there twice")
        lost = [data for data in self.acknowledged if data not in found]
        if lost:
            raise Violation(f"{len(lost)} of {len(self.acknowledged)} acknowledged commands are lost: {lost[:3]}")


def _receive(source: int, message: Message, node: RaftNode) -> None:
    node.receive(source, message)


UseClock = Callable[[Callable[[], float]], None]
Scenario = Callable[[UseClock], QuorumWorld]


def run_in_virtual_time(scenario: Scenario) -> QuorumWorld:
    """Run the plain function `scenario` inside an event loop whose clock it chooses by calling its argument."""
    loop = asyncio.new_event_loop()

    async def main() -> QuorumWorld:
        return scenario(lambda clock: setattr(loop, "time", clock))

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def pass_in(view: RaftView, message: Message) -> Delivery | None:
    """The messages as PySyncObj would get them without the filter."""
    if "serialized" in message:
        end = message.pop("snapshot_end")
        message["serialized"] = (message["term"], *end, *message["serialized"])
    return Delivery(message, [])


def pass_out(view: RaftView, message: Message) -> Message:
    if message["type"] == "next_node_idx":
        message["term"] = view.term
    return message


def faults(seed: int, size: int = 3, steps: int = 1_500, *, filtered: bool = True) -> QuorumWorld:
    """Cuts, delays, reordering between links, crashes that keep the page cache, snapshots at any moment."""

    def scenario(use_clock: UseClock) -> QuorumWorld:
        clock = [1_000.0]
        use_clock(lambda: clock[0])
        world = QuorumWorld(seed, size, filtered=filtered)
        rng = world.random
        for _ in range(steps):
            world.step()
            clock[0] = world.now
            fate = rng.random()
            if fate < 0.25:
                world.propose()
            elif fate < 0.26:
                world.partition()
            elif fate < 0.275:
                world.heal()
            elif fate < 0.285:
                world.delayed_until[tuple(rng.sample(world.names, 2))] = world.now + 2 * rng.random()  # type: ignore[index]
            elif fate < 0.292 and len(world.nodes) > size // 2 + 1:
                world.crash(rng.choice(list(world.nodes)), power=False)
            elif fate < 0.31:
                world.restart_one()
            elif fate < 0.316:
                world.nodes[rng.choice(list(world.nodes))].compact_soon = True
        return finish(world, clock)

    return under_filter(filtered, scenario)


def power_cuts(seed: int, steps: int = 1_500, *, synced: bool = True) -> QuorumWorld:
    """Crashes that lose what was not synced, of one node or of all, between and within operations of the disk."""

    def scenario(use_clock: UseClock) -> QuorumWorld:
        clock = [1_000.0]
        use_clock(lambda: clock[0])
        world = QuorumWorld(seed, 3, synced=synced)
        rng = world.random
        for _ in range(steps):
            world.step()
            clock[0] = world.now
            fate = rng.random()
            if fate < 0.3:
                world.propose()
            elif fate < 0.307:
                world.partition()
            elif fate < 0.325:
                world.heal()
            elif fate < 0.33 and world.nodes:
                world.crash(rng.choice(list(world.nodes)), power=True)
            elif fate < 0.335:  # at some operation soon, often within a rewrite
                world.disks[rng.choice(world.names)].operations_left = rng.randrange(12)
            elif fate < 0.337:
                for name in list(world.nodes):
                    world.crash(name, power=True)
            elif fate < 0.365:
                world.restart_one()
            elif fate < 0.371 and world.nodes:
                world.nodes[rng.choice(list(world.nodes))].compact_soon = True
        return finish(world, clock)

    return under_filter(True, scenario)


def finish(world: QuorumWorld, clock: list[float]) -> QuorumWorld:
    """Let it settle, with the loop's clock following, and judge."""
    world.clock = clock
    world.settle()
    world.judge()
    return world


def under_filter(filtered: bool, scenario: Scenario) -> QuorumWorld:
    if filtered:
        return run_in_virtual_time(scenario)
    with mock.patch("kraft.quorum.node.incoming", pass_in), mock.patch("kraft.quorum.outbox.outgoing", pass_out):
        return run_in_virtual_time(scenario)
