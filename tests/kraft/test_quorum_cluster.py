"""Whole voters over real sockets and files, several in one event loop."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from common.errors import OutcomeUnknown, StorageFailure
from common.invariants import check
from common.pacing import Pacer, Work
from common.ports import Address
from kraft.quorum.node import RaftNode
from kraft.quorum.quorum import QuorumConfig, RaftQuorum
from kraft.quorum.state_machine import AppliedResult, NotLeader, QuorumBusy
from kraft.quorum.voter_guard import VoterRefused
from tests.common.call_count import counted_calls
from tests.kraft.loopback import free_addresses, until
from tests.kraft.works import at_hand
from tests.storage.log_workbench import FaultyDisk
from tests.virtual_time import lab_ports

SECRET = b"the secret of this cluster"
CLUSTER = b"cluster-id-16byt"
POISON = b"poison"


class Commands:
    """A state machine that keeps what it was told."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def applying(self, index: int, data: bytes | memoryview) -> Work[object]:
        yield 1
        check(data != POISON, "poison")
        self.seen.append(bytes(data))
        return len(self.seen)

    def snapshot(self) -> Work[bytes]:
        return at_hand(bytes(msgspec.msgpack.encode(self.seen)))

    def restoring(self, data: bytes) -> Work[Callable[[], None]]:
        return at_hand(lambda: setattr(self, "seen", msgspec.msgpack.decode(data)))


class Voter:
    """One life of one voter, and what it reported."""

    def __init__(self, root: Path, node_id: int, voters: dict[int, Address], config: QuorumConfig) -> None:
        self.node_id = node_id
        self.directory = root / str(node_id)
        self.machine = Commands()
        self.disk = FaultyDisk(self.directory)
        self.failures: list[str] = []
        self.offices: list[tuple[bool, int]] = []
        self.quorum = RaftQuorum(
            replace(lab_ports(self.directory), disk=self.disk),
            node_id,
            voters,
            "controller/quorum",
            SECRET,
            self.machine,
            config,
            pacer=Pacer(),
            fatal=self.failures.append,
        )
        self.quorum.on_leadership(lambda leads, term: self.offices.append((leads, term)))

    def cut_off(self) -> None:
        """As a crash: nothing more is sent or done."""
        self.quorum._fail(RuntimeError("crash"), "test")


class Cluster:
    def __init__(self, root: Path, size: int) -> None:
        self.root = root
        self.addresses = dict(enumerate(free_addresses(size), start=1))
        self.voters: dict[int, Voter] = {}
        self.config = QuorumConfig(transfer_timeout_s=0.1)  # nobody is left for the last one that stops
        self.config.node.election_timeout_min_s = 0.2
        self.config.node.election_timeout_max_s = 0.4
        self.config.node.heartbeat_interval_s = 0.05
        self.config.node.leader_fallback_timeout_s = 1.0

    async def start_without_elections(self) -> Voter:
        """All voters, and the leader. No voter stands because of a silence within a test, however slow the machine."""
        self.config.node.election_timeout_min_s, self.config.node.election_timeout_max_s = 50.0, 60.0
        self.config.node.leader_fallback_timeout_s = 60.0
        await self.start(*self.addresses)
        return await self.leader()

    def stop_timers(self) -> None:
        """No timer of a voter is due within a test any more: what it does follows from an event."""
        self.config.look_interval_s = 15.0
        self.config.node.heartbeat_interval_s = 15.0

    def make(self, node_id: int) -> Voter:
        self.voters[node_id] = Voter(self.root, node_id, self.addresses, self.config)
        return self.voters[node_id]

    async def start(self, *node_ids: int) -> None:
        await asyncio.gather(*(self.make(node_id).quorum.start() for node_id in node_ids))

    async def leader(self) -> Voter:
        """The voter that leads and that all running ones follow."""

        def agreed() -> Voter | None:
            running = [voter for voter in self.voters.values() if not voter.failures]
            leaders = [voter for voter in running if voter.quorum.is_leader]
            ids = {voter.quorum.leader_id for voter in running}
            return leaders[0] if len(leaders) == 1 and ids == {leaders[0].node_id} else None

        await until(agreed, timeout_s=10)
        found = agreed()
        assert found is not None
        return found

    async def all_have(self, count: int) -> None:
        running = [voter for voter in self.voters.values() if not voter.failures]
        await until(lambda: all(len(voter.machine.seen) == count for voter in running), timeout_s=10)
        assert all(voter.machine.seen == running[0].machine.seen for voter in running)

    async def stop(self, *node_ids: int) -> None:
        for node_id in node_ids:
            await self.voters.pop(node_id).quorum.stop()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, 3)
    yield made
    await made.stop(*made.voters)


async def test_commits_wait_for_no_timer(cluster: Cluster) -> None:
    leader = await cluster.start_without_elections()
    cluster.stop_timers()
    assert leader.offices == [(True, leader.quorum.term)]
    assert leader.quorum.has_quorum_contact()
    for number in range(100):
        result = await leader.quorum.propose(b"%d" % number, 10)
        assert result == AppliedResult(leader.quorum.applied_index, leader.quorum.term, number + 1)
    await cluster.all_have(100)
    together = await asyncio.gather(*(leader.quorum.propose(b"more", 10) for _ in range(500)))
    assert [result.result for result in together] == list(range(101, 601))
    follower = next(voter for voter in cluster.voters.values() if voter is not leader)
    assert not follower.quorum.has_quorum_contact()
    with pytest.raises(NotLeader) as raised:
        await follower.quorum.propose(b"x", 1)
    assert raised.value.leader_id == leader.node_id


async def test_proposals_have_limits(cluster: Cluster) -> None:
    cluster.config.proposal_bytes_max, cluster.config.inflight_bytes_max = 256 << 10, 512 << 10
    await cluster.start(1, 2, 3)
    leader = (await cluster.leader()).quorum
    largest = bytes(cluster.config.proposal_bytes_max)
    assert (await leader.propose(largest, 20)).result == 1
    with pytest.raises(ValueError, match="a proposal of"):
        await leader.propose(largest + b"x", 5)
    count = cluster.config.inflight_bytes_max // len(largest)
    waiting = [asyncio.create_task(leader.propose(largest, 20)) for _ in range(count)]
    await asyncio.sleep(0)
    with pytest.raises(QuorumBusy):
        await leader.propose(b"x", 5)
    await asyncio.gather(*waiting)
    await leader.propose(b"x", 5)
    await cluster.all_have(count + 2)


async def test_a_stopped_leader_hands_over_and_comes_back(cluster: Cluster) -> None:
    cluster.config.transfer_timeout_s = 10.0  # a machine that stands still must not cost the handover
    first = await cluster.start_without_elections()
    await first.quorum.propose(b"one", 5)
    await cluster.stop(first.node_id)
    cluster.config.transfer_timeout_s = 0.1  # nobody is left for the last one that stops
    second = await cluster.leader()
    assert first.offices[-1][0] is False
    assert second.quorum.term > first.offices[0][1]
    await second.quorum.propose(b"two", 5)
    await cluster.start(first.node_id)
    await cluster.all_have(2)


async def test_a_leader_without_a_successor_waits_for_one_in_peace(cluster: Cluster) -> None:
    """None of the others has the whole log: they are gone, and an entry waits for them."""
    cluster.config.node.leader_fallback_timeout_s = 10.0
    await cluster.start(1, 2, 3)
    leader = await cluster.leader()
    for voter in cluster.voters.values():
        if voter is not leader:
            voter.cut_off()
    with pytest.raises(OutcomeUnknown):
        await leader.quorum.propose(b"x", 0.05)
    with counted_calls(of=RaftNode.name_successor) as asked:
        assert not await leader.quorum.transfer_leadership(0.3)
    assert 0 < asked.calls < 60  # at heartbeats, not at every turn of the loop


async def test_a_crashed_leader_is_replaced(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    first = await cluster.leader()
    await first.quorum.propose(b"one", 5)
    first.cut_off()
    second = await cluster.leader()
    await second.quorum.propose(b"two", 5)
    await cluster.start(first.node_id)
    await cluster.all_have(2)


async def test_a_leader_without_followers_resigns_and_says_what_it_does_not_know(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    leader = await cluster.leader()
    for voter in cluster.voters.values():
        if voter is not leader:
            voter.cut_off()
    with pytest.raises(OutcomeUnknown, match="in time"):
        await leader.quorum.propose(b"x", 0.1)
    with pytest.raises(OutcomeUnknown, match="lost its leadership"):
        await leader.quorum.propose(b"y", 10)
    assert leader.offices[-1][0] is False
    assert not leader.quorum.has_quorum_contact()
    with pytest.raises(NotLeader):
        await leader.quorum.propose(b"z", 1)


async def test_everything_survives_a_restart_of_all(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    leader = await cluster.leader()
    for number in range(50):
        await leader.quorum.propose(b"%d" % number, 5)
    term = leader.quorum.term
    for voter in cluster.voters.values():
        voter.cut_off()
    await cluster.start(1, 2, 3)
    leader = await cluster.leader()
    assert leader.quorum.term > term
    assert leader.machine.seen == [b"%d" % number for number in range(50)]
    await leader.quorum.propose(b"more", 5)
    await cluster.all_have(51)


async def test_compaction_and_a_snapshot_for_one_that_was_away(cluster: Cluster) -> None:
    cluster.config.node.compaction_entries_min = 50
    await cluster.start(1, 2, 3)
    leader = await cluster.leader()
    away = next(voter.node_id for voter in cluster.voters.values() if voter is not leader)
    cluster.voters.pop(away).cut_off()
    for number in range(30):
        await asyncio.gather(*(leader.quorum.propose(b"%d.%d" % (number, k), 5) for k in range(10)))
    directory = leader.directory / "controller" / "quorum"
    await until((directory / "snapshot").exists)  # it is written beside the proposals
    await cluster.start(away)
    await cluster.all_have(300)
    await cluster.stop(1, 2, 3)
    await cluster.start(1, 2, 3)
    await (await cluster.leader()).quorum.propose(b"last", 5)
    await cluster.all_have(301)


async def test_a_wiped_voter_is_refused_until_it_is_replaced(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    leader = await cluster.leader()
    for _ in range(5):
        await leader.quorum.propose(b"x", 5)
    wiped = next(voter.node_id for voter in cluster.voters.values() if voter is not leader)
    cluster.voters[wiped].cut_off()
    shutil.rmtree(cluster.voters[wiped].directory)
    with pytest.raises(VoterRefused, match=r"replace\.voter=true"):
        await cluster.start(wiped)
    cluster.voters.pop(wiped)

    cluster.config.replace_voter = True
    await cluster.start(wiped)
    leader = await cluster.leader()
    await leader.quorum.propose(b"y", 5)
    await cluster.all_have(6)


async def test_a_replacement_waits_while_another_voter_is_down(cluster: Cluster) -> None:
    cluster.config.replace_timeout_s = 0.3
    await cluster.start(1, 2, 3)
    await (await cluster.leader()).quorum.propose(b"x", 5)
    cluster.voters.pop(1).cut_off()
    cluster.voters.pop(2).cut_off()
    shutil.rmtree(cluster.root / "2")
    cluster.config.replace_voter = True
    with pytest.raises(VoterRefused, match="controller 1 does not answer"):
        await cluster.start(2)
    cluster.voters.pop(2)


async def test_a_new_cluster_waits_for_all_its_voters(cluster: Cluster) -> None:
    early = asyncio.create_task(cluster.start(1, 2))
    await asyncio.sleep(0.4)
    assert not early.done()
    await cluster.start(3)
    await early
    await cluster.leader()


async def test_the_first_voter_of_a_new_cluster_leads_without_waiting_for_a_timeout(cluster: Cluster) -> None:
    cluster.config.node.election_timeout_min_s, cluster.config.node.election_timeout_max_s = 30.0, 60.0
    await cluster.start(1, 2, 3)
    assert (await cluster.leader()).node_id == 1  # within 10 s


async def test_a_voter_of_another_cluster_is_not_heard(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    leader = await cluster.leader()
    for voter in cluster.voters.values():
        voter.quorum.adopt_cluster_id(CLUSTER)
    await leader.quorum.propose(b"x", 5)
    stranger = next(voter for voter in cluster.voters.values() if voter is not leader)
    stranger.cut_off()
    journal = stranger.directory / "controller" / "quorum" / "journal"
    shutil.rmtree(stranger.directory)
    other = Cluster(cluster.root / "other", 1)
    other.addresses = {stranger.node_id: other.addresses[1]}
    await other.start(stranger.node_id)
    other.voters[stranger.node_id].quorum.adopt_cluster_id(b"another-id-16byt")
    await (await other.leader()).quorum.propose(b"alien", 5)
    await other.stop(stranger.node_id)
    journal.parent.mkdir(parents=True)
    shutil.copy(cluster.root / "other" / str(stranger.node_id) / "controller" / "quorum" / "journal", journal)
    await cluster.start(stranger.node_id)
    await asyncio.sleep(0.5)
    await leader.quorum.propose(b"y", 5)
    assert cluster.voters[stranger.node_id].machine.seen == [b"alien"]  # from its own journal, and nothing of ours
    assert leader.machine.seen == [b"x", b"y"]


async def test_an_exception_in_the_state_machine_stops_the_node(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    leader = await cluster.leader()
    with pytest.raises(OutcomeUnknown):
        await leader.quorum.propose(POISON, 5)
    assert len(leader.failures) == 1
    assert "poison" in leader.failures[0]
    assert not leader.quorum.is_leader


@pytest.mark.parametrize("fault", ["write", "fsync"])
async def test_an_error_of_the_disk_stops_the_node(cluster: Cluster, fault: str) -> None:
    await cluster.start(1, 2, 3)
    leader = await cluster.leader()
    if fault == "write":
        leader.disk.write_errno = errno.EIO
    else:
        leader.disk.fsync_errno = errno.EIO
    with pytest.raises(OutcomeUnknown):
        await leader.quorum.propose(b"x", 5)
    assert len(leader.failures) == 1
    assert f"[Errno {errno.EIO}]" in leader.failures[0]
    await cluster.leader()


async def test_one_voter_is_a_quorum(tmp_path: Path) -> None:
    alone = Cluster(tmp_path, 1)
    quorum = (await alone.start_without_elections()).quorum
    alone.stop_timers()
    for number in range(20):
        assert (await quorum.propose(b"x", 5)).result == number + 1
    assert quorum.has_quorum_contact()
    await alone.stop(1)
    await alone.start(1)
    await alone.leader()
    await alone.all_have(20)
    await alone.stop(1)


async def test_a_damaged_directory_is_refused(tmp_path: Path) -> None:
    alone = Cluster(tmp_path, 1)
    alone.config.node.compaction_entries_min = 5
    await alone.start(1)
    quorum = (await alone.leader()).quorum
    for _ in range(16):
        await quorum.propose(b"x", 5)
    # until its journal is cut, it can do without the snapshot
    await until(lambda: quorum.snapshots_written, timeout_s=10)
    for _ in range(4):  # groups behind the rewritten one: a damaged byte is not in the last, which may be torn
        await quorum.propose(b"x", 5)
    await alone.stop(1)
    directory = tmp_path / "1" / "controller" / "quorum"
    kept = {name: (directory / name).read_bytes() for name in ("journal", "snapshot")}
    for name, content in kept.items():
        damaged = bytearray(content)
        damaged[len(damaged) // 2] ^= 1
        for change in (bytes(damaged), None):
            if change is None:
                (directory / name).unlink()
            else:
                (directory / name).write_bytes(change)
            with pytest.raises(StorageFailure):
                await alone.start(1)
            (directory / name).write_bytes(content)
    await alone.start(1)
    await alone.leader()
    await alone.all_have(20)
    await alone.stop(1)


async def test_an_idle_cluster_steps_for_messages_alone(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    await cluster.leader()
    with counted_calls(of=RaftNode.step) as steps, counted_calls(of=RaftNode.receive) as received:
        await until(lambda: received.calls >= 40, timeout_s=20)
    assert steps.calls <= 2 * received.calls  # a step after each, and at the timers of heartbeats


async def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    ports, machine = lab_ports(tmp_path), Commands()
    voters = {1: ("127.0.0.1", 1)}

    def make(node_id: int = 1, secret: bytes = SECRET, config: QuorumConfig | None = None) -> RaftQuorum:
        return RaftQuorum(
            ports, node_id, voters, "q", secret, machine, config or QuorumConfig(), pacer=Pacer(), fatal=print
        )

    make()
    with pytest.raises(ValueError, match="not among the voters"):
        make(node_id=2)
    with pytest.raises(ValueError, match="secret"):
        make(secret=b"short")
    with pytest.raises(ValueError, match="compaction_bytes_min"):
        make(config=QuorumConfig(inflight_bytes_max=64 << 20))
