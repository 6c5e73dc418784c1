"""The quorum of controllers: Raft over `common.ports`, for one replicated state machine.

This is the driver: it passes messages and time to `RaftNode`, and its messages to the transport. Nothing polls: a step
runs after an event or at the node's next deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from common.errors import OutcomeUnknown
from common.identifiers import ZERO_UUID, uuid_text
from common.invariants import check
from common.node_settings.identity import NodeSettings
from common.pacing import Pacer
from common.ports import Address, Ports
from common.settings import same
from kraft.quorum import voter_guard
from kraft.quorum.follower_progress import FollowerState
from kraft.quorum.handshake import SECRET_BYTES_MIN
from kraft.quorum.journal_format import DamagedJournal
from kraft.quorum.message_filter import Message
from kraft.quorum.node import RaftNode
from kraft.quorum.node_config import NodeConfig
from kraft.quorum.snapshot_file import Snapshot, SnapshotFile
from kraft.quorum.snapshot_keeper import LANE, BackgroundKeeper
from kraft.quorum.state_machine import AppliedResult, NotLeader, QuorumBusy, StateMachine
from kraft.quorum.suspicion import Suspicion, SuspicionConfig
from kraft.quorum.transport import QuorumTransport, TransportConfig, TransportEvents
from kraft.quorum.voter_guard import VoterStatus
from kraft.quorum.write_ahead_log import FILE_NAME, WriteAheadLog

TIMER_SLACK_S = 0.001  # deadlines must have passed, not only be reached
RETRY_INTERVAL_S = 0.05  # for a deadline that passed while no other voter was connected
LATE_MIN_S = 0.02

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class QuorumConfig:
    """Bytes and seconds. `listen`: the address to bind, if it is not this voter's address in `voters`."""

    proposal_bytes_max: int = 4 << 20
    inflight_bytes_max: int = 5 << 20  # one large proposal at a time: the controller proposes one batch after the other
    transfer_timeout_s: float = 1.0  # for handing over leadership before a planned stop
    look_interval_s: float = 0.1  # the timer's maximal interval, so that its lateness shows stalls of the process
    replace_voter: bool = same(NodeSettings, "controllers_replace_voter")
    replace_timeout_s: float = 30.0
    listen: Address | None = None
    node: NodeConfig = field(default_factory=NodeConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    suspicion: SuspicionConfig = field(default_factory=SuspicionConfig)


class _Office(NamedTuple):
    """Leadership as last reported."""

    is_held: bool
    term: int


class RaftQuorum:
    """One voter. Call all methods on the event loop that ran `start`.

    `voters`: every voter's id and address, including this node, the same on all of them. `directory`: relative to
    `ports.disk`'s root, used by nothing else. `fatal` is called at most once, when the node must stop (a disk error, an
    exception in the state machine, a broken invariant); then the quorum is silent.
    """

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        voters: dict[int, Address],
        directory: str,
        secret: bytes,
        state_machine: StateMachine,
        config: QuorumConfig,
        *,
        pacer: Pacer,
        fatal: Callable[[str], None],
    ) -> None:
        """Raises ValueError for invalid settings."""
        if node_id not in voters:
            raise ValueError(f"node {node_id} is not among the voters {sorted(voters)}")
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the cluster's secret has {len(secret)} bytes, and needs {SECRET_BYTES_MIN}")
        if config.node.compaction_bytes_min < 2 * config.inflight_bytes_max:
            raise ValueError("compaction_bytes_min must be twice inflight_bytes_max or more")
        self._ports = ports
        self._node_id = node_id
        self._directory = directory
        self._state_machine = state_machine
        self._config = config
        self._fatal = fatal
        self._listen: Address = config.listen or voters[node_id]
        self.voter_count = len(voters)
        events = TransportEvents(self._connected, self._disconnected, self._received, self._probed)
        self._transport = QuorumTransport(
            ports=ports,
            node_id=node_id,
            voters=voters,
            secret=secret,
            cluster_id=lambda: self.cluster_id,
            config=config.transport,
            events=events,
        )
        self._suspicion = Suspicion(ports.network, voters, config.suspicion, self._is_suspect, self._leader_gone)
        self._pacer = pacer
        self._snapshots = SnapshotFile(ports.disk, directory)
        self._keeper = BackgroundKeeper(pacer, self._snapshots, self._fail, self._kick)
        self._journal: WriteAheadLog | None = None
        self._node: RaftNode | None = None  # None before `start` has finished and after the end
        self._callbacks: list[Callable[[bool, int], None]] = []
        self._office = _Office(False, 0)
        self._is_kicked = False
        self._is_transferring = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._stepped = asyncio.Event()

    # -- life

    async def start(self) -> None:
        """Recover from disk, listen and join. Returns when the node votes, not when there is a leader.

        With an empty directory it first waits for an answer of every other voter, so the voters of a new cluster must
        be started together. Raises VoterRefused if this voter may not start, StorageFailure for a damaged directory,
        OSError if the address cannot be bound or the disk fails.
        """
        check(self._journal is None, "a quorum is started once")
        snapshot = await asyncio.to_thread(self._recover)
        self._transport.listen(self._listen)
        is_first = False
        try:
            if self._journal is None:
                await self._enter()
                is_first = self.term == 0 and all(self._node_id < peer for peer in self._transport.peers)
        except BaseException:
            await self._transport.stop()
            raise
        assert self._journal is not None
        ports, config = self._ports, self._config.node
        peers, unsent = self._transport.peers, self._transport.unsent_bytes
        journal, keeper = self._journal, self._keeper
        if snapshot is not None:
            restore = await self._pacer.run(self._state_machine.restoring(snapshot.state), LANE, own=True)
            restore()
        node = RaftNode(
            node_id=self._node_id,
            peers=peers,
            journal=journal,
            keeper=keeper,
            state_machine=self._state_machine,
            rng=ports.random,
            config=config,
            backlog=unsent,
        )
        if snapshot is not None:
            node.recover(snapshot)
        if is_first:
            node.hasten_election()
        self._node = node
        self._transport.join()
        self._kick()

    def _recover(self) -> Snapshot | None:
        """Load the state of an earlier run; there is a journal if there was one."""
        disk, directory = self._ports.disk, self._directory
        disk.make_directory(directory)
        parent = directory
        while parent:
            parent = parent.rpartition("/")[0]
            disk.sync_directory(parent)
        snapshot = self._snapshots.read()
        if disk.exists(f"{directory}/{FILE_NAME}"):
            base = None if snapshot is None else snapshot.base
            self._journal = WriteAheadLog.open(disk, directory, self._ports.random, self._node_id, base)
        elif snapshot is not None:
            raise DamagedJournal(f"{directory}: a snapshot without its journal; votes and entries are lost")
        return snapshot

    async def _enter(self) -> None:
        """Start with an empty directory."""
        config = self._config
        replace_s = config.replace_timeout_s if config.replace_voter else None
        admission = await voter_guard.admit(self._transport.peers, self._transport.probe, replace_s)
        disk, directory, rng = self._ports.disk, self._directory, self._ports.random
        journal = await asyncio.to_thread(
            WriteAheadLog.create, disk, directory, rng, self._node_id, admission.term, admission.cluster_id
        )
        self._journal = journal

    async def stop(self) -> None:
        """Hand over leadership if this node has it, then stop. Waiting proposals get OutcomeUnknown."""
        if self.is_leader and self._transport.peers:
            await self.transfer_leadership(self._config.transfer_timeout_s)
        node, self._node = self._node, None
        self._cancel_timer()
        await self._suspicion.stop()
        await self._keeper.stop()
        await self._transport.stop()
        if node is not None and self._journal is not None:
            node.give_up_proposals()
            await asyncio.to_thread(self._journal.close)

    def _fail(self, error: Exception, doing: str) -> None:
        """Stop sending: whatever state this node is in, it will restart from its journal on disk."""
        node, self._node = self._node, None
        if node is None:
            return
        reason = f"quorum of controllers: {doing}: {type(error).__name__}: {error}"
        _log.critical(reason, exc_info=error)
        self._cancel_timer()
        self._suspicion.cancel()
        self._keeper.end()
        self._transport.close()
        node.journal.abandon()
        node.give_up_proposals()
        self._fatal(reason)

    # -- what the controller asks

    @property
    def is_leader(self) -> bool:
        """Whether this node is elected and has applied every entry of earlier terms; another node may believe the same
        of itself."""
        return self._node is not None and self._node.has_office()

    @property
    def leader_id(self) -> int | None:
        """The node that this one believes to be the leader."""
        return None if self._node is None else self._node.leader_id()

    @property
    def term(self) -> int:
        """The Raft term, which is the controller epoch. It never decreases, also across restarts."""
        return 0 if self._journal is None else self._journal.getCurrentTerm()

    @property
    def applied_index(self) -> int:
        """Index of the last applied entry, or 0 before `start` has finished."""
        return 0 if self._node is None else int(self._node.raftLastApplied)

    @property
    def has_caught_up(self) -> bool:
        """Whether this node has applied all committed entries since its start; a majority of such voters can continue
        at once without the others."""
        return self._node is not None and self._node.has_caught_up

    @property
    def journal_bytes(self) -> int:
        """Bytes of the journal's file."""
        return 0 if self._journal is None else self._journal.file_bytes

    @property
    def journal_syncs(self) -> int:
        """Number of fsyncs of the journal since the start."""
        return 0 if self._journal is None else self._journal.sync_count

    @property
    def canvasses(self) -> int:
        """Number of pre-vote rounds of this voter since the start."""
        return 0 if self._node is None else self._node.canvass_count

    @property
    def candidacies(self) -> int:
        """Number of elections in which this voter stood since the start, each in its own term."""
        return 0 if self._node is None else self._node.candidate_count

    @property
    def snapshots_written(self) -> int:
        """Since the start, each before a trim of the journal."""
        return 0 if self._node is None else self._node.snapshot_count

    @property
    def cluster_id(self) -> bytes:
        """16 bytes; zeros until this voter knows it."""
        return ZERO_UUID if self._journal is None else self._journal.cluster_id

    @property
    def address(self) -> Address | None:
        """Where it listens, after `start`."""
        return self._transport.address

    def adopt_cluster_id(self, cluster_id: bytes) -> None:
        """Call it from `apply` or `restore` when the replicated state has the cluster's id: then voters of other
        clusters are rejected. Raises InvariantViolation if this voter belongs to another cluster."""
        if self._journal is not None and self._journal.cluster_id != cluster_id:
            known = self._journal.cluster_id
            check(
                known == ZERO_UUID, f"this voter is of cluster {uuid_text(known)}, its state of {uuid_text(cluster_id)}"
            )
            self._journal.adopt_cluster_id(cluster_id)

    async def propose(self, data: bytes, timeout_s: float) -> AppliedResult:
        """Replicate `data` and apply it.

        Raises NotLeader or QuorumBusy (no effect anywhere), OutcomeUnknown (it may still be applied), ValueError if it
        is larger than `proposal_bytes_max`.
        """
        if len(data) > self._config.proposal_bytes_max:
            raise ValueError(f"a proposal of {len(data)} bytes")
        node = self._node
        if node is None or self._is_transferring or not node.has_office():
            raise NotLeader(self.leader_id)
        if node.proposed_bytes + len(data) > self._config.inflight_bytes_max:
            raise QuorumBusy
        future: asyncio.Future[AppliedResult | None] = asyncio.get_running_loop().create_future()
        node.append(data, lambda result: None if future.done() else future.set_result(result))
        self._kick()
        try:
            async with asyncio.timeout(timeout_s):
                result = await future
        except TimeoutError:
            raise OutcomeUnknown("not committed in time") from None
        if result is None:
            raise OutcomeUnknown("this node lost its leadership before the commit")
        return result

    def has_quorum_contact(self) -> bool:
        """Whether this node leads and a majority has answered it within `leader_fallback_timeout_s`."""
        return self._node is not None and self._node.has_quorum_contact()

    def followers(self) -> dict[int, FollowerState]:
        """What this leader knows of the other voters, by id; nothing if it does not lead."""
        return {} if self._node is None else self._node.followers()

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        """Call back `(is_leader, term)` at each change, on the loop, outside of `apply`. Exceptions are fatal."""
        self._callbacks.append(callback)

    async def transfer_leadership(self, timeout_s: float) -> bool:
        """Let the most advanced follower lead. Returns True if this node follows at the end. Meanwhile it accepts no
        proposals."""
        self._is_transferring = True
        is_named = False
        try:
            async with asyncio.timeout(timeout_s):
                while self.is_leader or self._office.is_held:  # until its loss is reported
                    self._stepped.clear()
                    if not is_named and self._node is not None:
                        is_named = self._node.name_successor()
                        if is_named:
                            self._kick()  # otherwise an answer or the next heartbeat triggers the step
                    await self._stepped.wait()
        except TimeoutError:
            pass
        finally:
            self._is_transferring = False
        return not self.is_leader

    # -- events of the transport

    def _connected(self, peer: int) -> None:
        if self._node is not None:
            self._node.connected(peer)
            self._kick()

    def _disconnected(self, peer: int) -> None:
        if self._node is not None:
            self._node.disconnected(peer)
            if self._node.follows(peer):
                self._suspicion.begin(peer)

    def _is_suspect(self, leader: int) -> bool:
        return self._node is not None and self._node.follows(leader) and not self._transport.is_linked(leader)

    def _leader_gone(self, leader: int) -> None:
        if self._node is not None:
            _log.info("the leader's process has ended", extra={"voter": leader})
            self._node.leader_gone(leader)
            self._kick()

    def _received(self, peer: int, message: Message) -> None:
        node = self._node
        if node is None:
            return
        try:
            if not node.journal.has_relied_on(peer):
                node.journal.rely_on(peer)
                node.journal.sync()  # before its first vote or acknowledgement counts, once in this directory's life
            node.receive(peer, message)
        except Exception as error:
            self._fail(error, f"{message['type']} of voter {peer}")
        else:
            self._kick()

    def _probed(self, peer: int) -> dict[str, Any]:
        journal, node = self._journal, self._node
        leader_id = self.leader_id
        return VoterStatus(
            has_state=journal is not None,
            relied_on=journal is not None and journal.has_relied_on(peer),
            term=self.term,
            leader_id=-1 if leader_id is None else leader_id,
            last_index=0 if journal is None else journal.last_index,
            commit_index=0 if node is None else int(node.raftCommitIndex),
            cluster_id=self.cluster_id,
        ).to_map()

    # -- steps

    def _kick(self) -> None:
        """Run one step per turn of the loop, whatever happened in it: this is the group commit."""
        if not self._is_kicked:
            self._is_kicked = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_kicked = False
        node = self._node
        if node is None:
            return
        try:
            self._step(node)
        except Exception as error:
            self._fail(error, "a step")
        self._stepped.set()

    def _step(self, node: RaftNode) -> None:
        node.step(self._post)
        self._report_office(node)
        if node.has_more:
            self._kick()
        self._set_timer(node)

    def _post(self, messages: list[tuple[int, Message]]) -> None:
        if messages:
            for peer, message in messages:
                self._transport.send(peer, message)
            self._transport.flush()

    def _report_office(self, node: RaftNode) -> None:
        was, now = self._office, _Office(node.has_office(), node.raftCurrentTerm)
        if was == now or not (was.is_held or now.is_held):
            return
        self._office = now
        if was.is_held:
            node.give_up_proposals()
            _log.info("leadership lost", extra={"term": now.term})
            for callback in self._callbacks:
                callback(False, now.term)
        if now.is_held:
            _log.info("leadership gained", extra={"term": now.term})
            for callback in self._callbacks:
                callback(True, now.term)

    def _set_timer(self, node: RaftNode) -> None:
        """A timer that fires too early finds nothing to do and is set again, so a later deadline need not move it."""
        now = asyncio.get_running_loop().time()
        deadline = node.next_deadline()
        due = (deadline if deadline > now else now + RETRY_INTERVAL_S) + TIMER_SLACK_S
        due = min(due, now + self._config.look_interval_s)
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        late_s = asyncio.get_running_loop().time() - self._timer_due
        if late_s > LATE_MIN_S and self._node is not None:
            self._node.was_held_up(late_s)
        self._run()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
