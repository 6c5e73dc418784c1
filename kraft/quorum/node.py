"""One Raft node: PySyncObj's `SyncObj`, with all that touches a disk, a clock, chance, a socket or a pickle replaced.

PySyncObj keeps elections, terms, votes, commits and the follower's side of the log. What is overridden here is
overridden through names that version 0.3.17 looks up at call time, so the version is pinned:

- entries are opaque bytes, applied here; there is no pickle and no replicated method
- the leader's sending, which knows how much a slow link still holds
- snapshots and the cut of the log, in one step and in our own format
- acknowledgements: they never move a follower back behind what it has acknowledged

The class has no driver: one calls `receive` for each message and `step` after events and at `next_deadline`.
Exceptions from either mean that the node must stop.
"""

# The mangled names are PySyncObj's:
# ruff: noqa: N802

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj import syncobj as library
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from common.invariants import check
from kraft.quorum.journal_format import SnapshotBase
from kraft.quorum.message_filter import (
    APPEND_ENTRIES,
    COMMAND,
    NEXT_NODE_IDX,
    PROMISES,
    RESPONSE_VOTE,
    Message,
    RaftView,
    incoming,
    outgoing,
)
from kraft.quorum.snapshot_file import Snapshot, SnapshotFile, encode_snapshot
from kraft.quorum.snapshot_transfer import SnapshotTransfer
from kraft.quorum.state_machine import AppliedResult, StateMachine
from kraft.quorum.write_ahead_log import WriteAheadLog

if VERSION != "0.3.17":
    raise ImportError(f"pysyncobj {VERSION} is installed, and the quorum relies on the insides of 0.3.17")


def _time_of_the_running_loop() -> float:
    """Nodes of one process may live on loops with clocks of their own, as in simulation."""
    return asyncio.get_running_loop().time()


def _given_journal(journal: WriteAheadLog) -> WriteAheadLog:
    """`journalFile` carries the journal itself: each node brings its own, opened before."""
    return journal


library.monotonicTime = _time_of_the_running_loop
library.createJournal = _given_journal

APPLIES_PER_STEP_MAX = 1_000


@dataclass(slots=True)
class NodeConfig:
    """Seconds and bytes, as `kraft.quorum.quorum.QuorumConfig` sets them."""

    election_timeout_min_s: float = 0.4
    election_timeout_max_s: float = 0.8
    heartbeat_interval_s: float = 0.05
    leader_fallback_timeout_s: float = 1.0
    append_bytes_max: int = 8 << 20  # in one message
    backlog_bytes_max: int = 16 << 20  # unsent on one link: more, and it gets signs of life only
    snapshot_part_bytes: int = 1 << 20
    snapshot_bytes_max: int = 512 << 20
    compaction_entries_min: int = 20_000
    compaction_bytes_min: int = 20 << 20  # metadata.log.max.record.bytes.between.snapshots; entries are in memory


class Proposal(NamedTuple):
    """`applied` is called with the result, or with None when another entry took its place or nobody can tell."""

    term: int
    size: int
    applied: Callable[[AppliedResult | None], None]


class Outbox(Transport):  # type: ignore[misc]  # the library is untyped
    """PySyncObj's transport: what it wants sent, apart by whether it may leave before the journal's next sync."""

    def __init__(self, view: Callable[[], RaftView]) -> None:
        super().__init__(None, None, [])
        self._view = view
        self.at_once: list[tuple[int, Message]] = []
        self.promises: list[tuple[int, Message]] = []

    def send(self, node: Node, message: Message) -> bool:
        message = outgoing(self._view(), message)
        if message["type"] not in PROMISES:
            self.at_once.append((node.id, message))
        elif self._is_outdated_by(node.id, message):
            self.promises[-1] = (node.id, message)
        else:
            self.promises.append((node.id, message))
        return True

    def _is_outdated_by(self, node_id: int, message: Message) -> bool:
        """The last promise is an acknowledgement, and `message` one to the same node for more."""
        if not self.promises or not message.get("success"):
            return False
        last_id, last = self.promises[-1]
        return last_id == node_id and bool(last.get("success")) and last["next_node_idx"] <= message["next_node_idx"]

    def take_at_once(self) -> list[tuple[int, Message]]:
        taken, self.at_once = self.at_once, []
        return taken

    def take_promises(self) -> list[tuple[int, Message]]:
        """Only after a sync of the journal."""
        taken, self.promises = self.promises, []
        return taken


class _NoPoller:
    """Sockets are not the library's here."""

    def poll(self, timeout: float) -> None:
        pass


class RaftNode(SyncObj):  # type: ignore[misc]  # the library is untyped
    """`peers` are the other voters; `backlog(node_id)` is how many bytes its link still holds."""

    def __init__(
        self,
        node_id: int,
        peers: list[int],
        journal: WriteAheadLog,
        snapshots: SnapshotFile,
        state_machine: StateMachine,
        rng: random.Random,
        config: NodeConfig,
        backlog: Callable[[int], int],
    ) -> None:
        # SyncObj's constructor looks at every attribute and draws an election timeout: ours come first.
        self.node_id = node_id
        self.outbox = Outbox(self._view)
        self.journal = journal
        self._snapshots = snapshots
        self._state_machine = state_machine
        self._rng = rng
        self._settings = config
        self._backlog = backlog
        self._transfer = SnapshotTransfer(config.snapshot_part_bytes, config.snapshot_bytes_max)
        self._peers = {peer: Node(peer) for peer in peers}
        self._proposals: dict[int, Proposal] = {}
        self.proposed_bytes = 0
        self._votes: dict[int, None] = {}
        self._votes_term = -1
        self._sent: tuple[int, int, int] = (0, 0, 0)
        self.compact_soon = False
        self.snapshot_count = 0
        others = list(self._peers.values())
        super().__init__(Node(node_id), others, _library_config(journal, config), transport=self.outbox)
        self._poller = _NoPoller()
        self._SyncObj__serializer = self._transfer
        journal.is_leader = self._isLeader
        if not peers:  # nobody else can win: no reason to wait
            self._SyncObj__raftElectionDeadline = 0.0

    def recover(self, snapshot: Snapshot) -> None:
        """Before anything else, when the directory holds a snapshot; `journal` is aligned to it."""
        self._transfer.offer(encode_snapshot(snapshot), snapshot.end)
        self._state_machine.restore(snapshot.state)
        self._SyncObj__raftLastApplied = snapshot.end[0]

    # -- driving

    def connected(self, peer: int) -> None:
        self.outbox._onNodeConnected(self._peers[peer])

    def disconnected(self, peer: int) -> None:
        self.outbox._onNodeDisconnected(self._peers[peer])
        self._transfer.cancel(peer)

    def receive(self, sender: int, message: Message) -> None:
        """A message that `check_message` has accepted, from the voter `sender`."""
        node = self._peers[sender]
        delivery = incoming(self._view(), message)
        if delivery is None or (message["type"] == RESPONSE_VOTE and not self._is_first_vote(sender, message)):
            return
        if message["type"] == NEXT_NODE_IDX:
            self._count_answer(node, message)
            return
        self.outbox._onMessageReceived(node, delivery.message)
        for answer in delivery.answers:
            self.outbox.send(node, answer)

    def step(self, post: Callable[[list[tuple[int, Message]]], None]) -> None:
        """Elect, commit, apply, and let out what is to be said, in the only order that is safe: entries for others
        first, so that their disks work along with ours, then the journal's sync, then whatever promises something."""
        self._advance()
        post(self.outbox.take_at_once())
        self.journal.sync()
        post(self.outbox.take_promises())

    def _advance(self) -> None:
        led = self._isLeader()
        self.doTick(0.0)
        if led and not self._isLeader():
            self.postpone_election()  # without contact to the others it would only disturb them
        if self._isLeader():
            now = (self.raftCurrentTerm, self.journal.last_index, self.raftCommitIndex)
            if now != self._sent:
                self._sent = now
                self._SyncObj__sendAppendEntries()

    def next_deadline(self) -> float:
        """The loop's time at which `step` has something to do, if nothing else happens."""
        deadline = self._SyncObj__newAppendEntriesTime if self._isLeader() else self._SyncObj__raftElectionDeadline
        return float(deadline)

    @property
    def has_more(self) -> bool:
        """`step` stopped at its limit, or one more call commits what the last one appended."""
        is_alone = not self._peers and self._isLeader() and self.raftCommitIndex < self.journal.last_index
        return bool(is_alone or self.raftLastApplied < self.raftCommitIndex)

    def postpone_election(self) -> None:
        """Hear the others out first, after this node was away for a while."""
        self._SyncObj__raftElectionDeadline = library.monotonicTime() + self._SyncObj__generateRaftTimeout()

    def hasten_election(self) -> None:
        """Stand for election at once: the first voter of a new cluster has no leader to disturb, and no rival."""
        self._SyncObj__raftElectionDeadline = 0.0

    # -- proposing

    def append(self, data: bytes, applied: Callable[[AppliedResult | None], None]) -> None:
        """Put a command into the log; only while `has_office`."""
        index, term = self.journal.last_index + 1, self.raftCurrentTerm
        self.journal.add(bytes((COMMAND,)) + data, index, term)
        self._proposals[index] = Proposal(term, len(data), applied)
        self.proposed_bytes += len(data)

    def give_up_proposals(self) -> None:
        """Tell all that wait that nobody can tell."""
        proposals, self._proposals = self._proposals, {}
        self.proposed_bytes = 0
        for proposal in proposals.values():
            proposal.applied(None)

    def has_office(self) -> bool:
        """Leader, and all entries of earlier terms are applied."""
        return bool(self._isLeader() and self.raftLastApplied >= self._SyncObj__noopIDx)

    def leader_id(self) -> int | None:
        leader = self._getLeader()
        return None if leader is None else int(leader.id)

    def has_quorum_contact(self) -> bool:
        if not self._isLeader():
            return False
        since = library.monotonicTime() - self._settings.leader_fallback_timeout_s
        heard: dict[Node, float] = self._SyncObj__lastResponseTime
        count = 1 + sum(heard[node] > since for node in self._peers.values())
        return bool(2 * count > len(self._peers) + 1)

    def name_successor(self) -> bool:
        """Ask the most advanced follower to stand for election; False while none has the whole log."""
        refusals: list[Any] = []
        self.transferLeadership(callback=lambda _, reason: refusals.append(reason) if reason else None)
        return not refusals

    # -- what PySyncObj calls

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self._rng.uniform(self._settings.election_timeout_min_s, self._settings.election_timeout_max_s)

    def _SyncObj__applyLogEntries(self) -> bool:
        applied = self.raftLastApplied
        count = min(self.raftCommitIndex - applied, APPLIES_PER_STEP_MAX)
        if count <= 0:
            return False
        start = applied + 1 - self.journal.first_index
        for command, index, term in self.journal[start : start + count]:
            check(index == self.raftLastApplied + 1, "entries are applied in order, each once")
            result = self._state_machine.apply(index, command[1:]) if command[0] == COMMAND else None
            self._SyncObj__raftLastApplied = index
            proposal = self._proposals.pop(index, None)
            if proposal is not None:
                self.proposed_bytes -= proposal.size
                proposal.applied(AppliedResult(index, term, result) if proposal.term == term else None)
        return False

    def _checkCommandsToApply(self) -> None:
        """Commands enter through `append`; none are forwarded."""

    def _SyncObj__deleteEntriesFrom(self, index: int) -> None:
        check(index > self.raftLastApplied, "what is applied is never cut off the log")
        self.journal.deleteEntriesFrom(index - self.journal.first_index)

    def _SyncObj__sendAppendEntries(self) -> None:
        self._SyncObj__newAppendEntriesTime = library.monotonicTime() + self._settings.heartbeat_interval_s
        for peer, node in self._peers.items():
            if not self.isNodeConnected(node):
                self._transfer.cancel(peer)
            elif self._SyncObj__raftNextIndex[node] > self.journal.first_index:
                self._send_entries(node)
            else:
                self._send_snapshot(node)

    def _send_entries(self, node: Node) -> None:
        next_index: dict[Node, int] = self._SyncObj__raftNextIndex
        queued = self._backlog(node.id)
        while True:
            previous_index = next_index[node] - 1
            has_room = queued < self._settings.backlog_bytes_max
            entries = self.journal.batch(previous_index + 1, self._settings.append_bytes_max) if has_room else []
            self.outbox.send(
                node,
                {
                    "type": APPEND_ENTRIES,
                    "term": self.raftCurrentTerm,
                    "commit_index": self.raftCommitIndex,
                    "prevLogIdx": previous_index,
                    "prevLogTerm": self.journal.term_at(previous_index),
                    "entries": entries,
                },
            )
            next_index[node] += len(entries)
            queued += sum(len(entry[0]) for entry in entries)
            if not entries or next_index[node] > self.journal.last_index:
                return

    def _send_snapshot(self, node: Node) -> None:
        end = self._transfer.end
        check(end is not None, "a log that does not begin at 1 follows a snapshot")
        queued = self._backlog(node.id)
        while queued < self._settings.backlog_bytes_max:
            part = self._transfer.next_part(node.id, self.raftCurrentTerm)
            self.outbox.send(
                node,
                {
                    "type": APPEND_ENTRIES,
                    "term": self.raftCurrentTerm,
                    "commit_index": self.raftCommitIndex,
                    "serialized": list(part),
                    "snapshot_end": end,
                },
            )
            queued += len(part.data)
            if part.is_last:
                self._SyncObj__raftNextIndex[node] = self.journal[1][1] + 1
                return

    def _SyncObj__tryLogCompaction(self) -> None:
        covered = self.raftLastApplied - 1 - self.journal.first_index
        is_due = covered >= self._settings.compaction_entries_min
        is_due = is_due or self.journal.entry_bytes >= self._settings.compaction_bytes_min or self.compact_soon
        if is_due and covered > 0:
            self.compact_soon = False
            self._compact()

    def _compact(self) -> None:
        """Snapshot first, then the cut: a crash in between leaves a log that still fits."""
        position = self.raftLastApplied - self.journal.first_index
        previous, last = self.journal[position - 1 : position + 1]
        snapshot = Snapshot(SnapshotBase(previous, last), self._state_machine.snapshot())
        encoded = encode_snapshot(snapshot)
        self._snapshots.write(encoded)
        self._transfer.offer(encoded, snapshot.end)
        self.journal.discard_before(previous[1])
        self.snapshot_count += 1

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N803
        """A leader's snapshot has arrived."""
        arrived = self._transfer.take()
        check(clearJournal and arrived is not None, "a snapshot is installed when its last part came")
        assert arrived is not None
        snapshot = arrived.snapshot
        check(snapshot.end[0] > self.raftLastApplied, "a snapshot never takes back what is applied")
        self._snapshots.write(arrived.encoded)
        self.journal.restart_at(snapshot.base)
        self._transfer.offer(arrived.encoded, snapshot.end)
        self._state_machine.restore(snapshot.state)
        self._SyncObj__raftLastApplied = snapshot.end[0]
        self._SyncObj__raftCommitIndex = max(self.raftCommitIndex, snapshot.end[0])

    # -- answers of followers

    def _count_answer(self, node: Node, message: Message) -> None:
        """Leader: what `node` has acknowledged only grows, and it is never sent again unless it asks for it."""
        if not self._isLeader():
            return
        match_index: dict[Node, int] = self._SyncObj__raftMatchIndex
        next_index: dict[Node, int] = self._SyncObj__raftNextIndex
        acknowledged, wanted = match_index[node], message["next_node_idx"]
        if message["reset"]:
            next_index[node] = min(max(wanted, acknowledged + 1, 2), self.journal.last_index + 1)
        if message["success"] and acknowledged < wanted - 1 <= self.journal.last_index:
            match_index[node] = wanted - 1
            next_index[node] = max(next_index[node], wanted)
        self._SyncObj__lastResponseTime[node] = library.monotonicTime()

    def _is_first_vote(self, sender: int, message: Message) -> bool:
        """The library counts votes, not voters."""
        if message["term"] != self._votes_term:
            self._votes_term = message["term"]
            self._votes = {}
        if sender in self._votes:
            return False
        self._votes[sender] = None
        return True

    def _view(self) -> RaftView:
        return RaftView(self.raftCurrentTerm, self.raftLastApplied, self.raftCommitIndex, self.journal)


def _library_config(journal: WriteAheadLog, config: NodeConfig) -> SyncObjConf:
    return SyncObjConf(
        autoTick=False,
        appendEntriesUseBatch=True,  # nothing wakes a poller: `step` sends
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        useFork=False,
        journalFile=journal,
        fullDumpFile=None,  # `_compact` and `recover` have it
        raftMinTimeout=config.election_timeout_min_s,
        raftMaxTimeout=config.election_timeout_max_s,
        appendEntriesPeriod=config.heartbeat_interval_s,
        leaderFallbackTimeout=config.leader_fallback_timeout_s,
        connectionTimeout=60.0,
    )
