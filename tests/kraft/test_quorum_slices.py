"""What one callback of the quorum does is bounded, however much waits: counted, not timed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from common.pacing import SLICE_COST, Pacer
from kraft.batches import MetadataRecord
from kraft.controller.state_machine import MetadataStateMachine
from kraft.image.delta import replayed
from kraft.metadata_log import MetadataLog
from kraft.quorum.application import ENTRY_COST, STEP_COST
from kraft.quorum.journal_format import SnapshotBase
from kraft.quorum.message_filter import APPEND_ENTRIES
from kraft.quorum.node import RaftNode
from kraft.quorum.snapshot_file import Snapshot, SnapshotFile, encode_snapshot
from kraft.quorum.snapshot_keeper import LANE, BackgroundKeeper
from kraft.quorum.snapshot_transfer import Arrived
from kraft.records import PartitionRecord, TopicRecord
from tests.kraft.images import with_brokers
from tests.kraft.quorum_world import BYTES_PER_STEP, STEP_S, QuorumWorld, UseClock, run_in_virtual_time
from tests.virtual_time import lab_ports


def applied_by_steps(data: bytes, count: int) -> list[int]:
    """How many of `count` committed entries each step of a lone voter applies."""

    def scenario(use_clock: UseClock) -> QuorumWorld:
        clock = [1_000.0]
        use_clock(lambda: clock[0])
        world = QuorumWorld(1, 1)
        node, commands = world.nodes[1], world.machines[1].commands
        while not node.has_office():
            clock[0] += STEP_S
            node.step(lambda messages: None)
        for number in range(count):
            node.append(b"%d:" % number + data, lambda result: None)
        while len(commands) < count:
            before = len(commands)
            node.step(lambda messages: None)
            if len(commands) > before:
                steps.append(len(commands) - before)
        return world

    steps: list[int] = []
    run_in_virtual_time(scenario)
    return steps


def test_a_step_applies_some_small_entries() -> None:
    steps = applied_by_steps(b"x", 500)
    assert max(steps) <= STEP_COST // ENTRY_COST


def test_an_entry_that_costs_more_than_a_step_is_applied_in_several() -> None:
    """The work of one step, and then the end of that entry's in the next one."""
    assert applied_by_steps(bytes(BYTES_PER_STEP), 5) == [1] * 5


def test_a_follower_that_is_far_behind_gets_a_little_at_a_time_and_everything_in_the_end() -> None:
    sent: list[int] = []
    behind = 0

    class Watched(RaftNode):
        """Notes what it sends at a time to the one that is behind."""

        def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
            before = len(self.outbox.at_once)
            super()._SyncObj__sendAppendEntries()
            new = [message for peer, message in self.outbox.at_once[before:] if peer == behind]
            sent.append(sum(len(e[0]) for m in new if m["type"] == APPEND_ENTRIES for e in m["entries"]))

    def scenario(use_clock: UseClock) -> QuorumWorld:
        nonlocal behind
        clock = [1_000.0]
        use_clock(lambda: clock[0])
        world = QuorumWorld(3, 3, node_classes=dict.fromkeys(range(1, 4), Watched))
        world.clock = clock

        def run_for(seconds: float) -> None:
            for _ in range(int(seconds / STEP_S)):
                world.step(shuffled=False)

        def until(holds: Callable[[], bool]) -> None:
            while not holds():
                run_for(STEP_S)

        until(lambda: any(node.has_office() for node in world.nodes.values()))
        leader = next(node for node in world.nodes.values() if node.has_office())
        behind = next(name for name in world.names if name != leader.node_id)
        world.crash(behind, power=False)
        for _ in range(60):
            world.propose()
            run_for(0.05)
        world.restart_one()
        sent.clear()
        until(lambda: world.nodes[behind].raftLastApplied == leader.raftLastApplied)
        assert max(sent) <= world.config.backlog_bytes_max + world.config.append_bytes_max
        return world

    run_in_virtual_time(scenario)
    assert sum(sent) > 2_000


def large_machine() -> MetadataStateMachine:
    machine = MetadataStateMachine(MetadataLog())
    records: list[MetadataRecord] = []
    for number in range(40):
        topic_id = number.to_bytes(16, "big")
        records.append(TopicRecord(f"topic-{number}", topic_id))
        records += [PartitionRecord(topic_id, index, (0, 1, 2), (0, 1, 2), leader=0) for index in range(50)]
    machine.image = replayed(with_brokers(3), records)
    return machine


async def test_snapshots_are_encoded_and_decoded_in_slices(tmp_path: Path) -> None:
    source, target, pacer = large_machine(), MetadataStateMachine(MetadataLog()), Pacer(inline_cost=0)
    failures: list[str] = []
    kept: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    installed: asyncio.Future[Callable[[], None]] = asyncio.get_running_loop().create_future()
    file = SnapshotFile(lab_ports(tmp_path).disk, "")
    keeper = BackgroundKeeper(pacer, file, lambda error, doing: failures.append(doing), lambda: None)
    base = SnapshotBase((b"a", 6, 2), (b"b", 7, 2))
    keeper.keep(base, source.snapshot(), kept.set_result)
    encoded = await kept
    found = file.read()
    assert found is not None
    assert encoded == encode_snapshot(found)
    arrived = Arrived(Snapshot(base, found.state), encoded)
    keeper.install(arrived, target.restoring(found.state), installed.set_result)
    (await installed)()
    assert target.image == source.image
    assert not failures
    assert pacer.slices > 20
    assert pacer.costliest < 3 * SLICE_COST
    await keeper.stop()


async def test_a_snapshot_that_cannot_be_decoded_ends_the_node(tmp_path: Path) -> None:
    failures: list[str] = []
    file = SnapshotFile(lab_ports(tmp_path).disk, "")
    keeper = BackgroundKeeper(Pacer(), file, lambda error, doing: failures.append(doing), lambda: None)
    base = SnapshotBase((b"a", 6, 2), (b"b", 7, 2))
    machine = MetadataStateMachine(MetadataLog())
    keeper.install(Arrived(Snapshot(base, b"x"), b""), machine.restoring(b"x"), lambda restore: failures.append("done"))
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == LANE))
    assert failures == ["a snapshot of the leader"]
