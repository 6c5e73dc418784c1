"""One Raft node: PySyncObj's `SyncObj` with everything replaced that uses disk, clock, randomness, sockets or pickles.

PySyncObj implements elections, terms, votes, commits and the follower's side of the log. The overrides here rely on
names that version 0.3.17 looks up at call time, so the version is pinned:

- entries are opaque bytes, applied here; there are no pickles and no replicated methods
- the leader's sending, which considers how much a slow link still holds
- snapshots and log truncation, in Tidelog's own format and in the background
- acknowledgements: they never move a follower back behind what it has acknowledged
- the start of an election, which waits for a pre-vote (`kraft.quorum.candidacy`)

The class has no driver: the caller calls `receive` for each message, and `step` after events and at `next_deadline`. An
exception from either means that the node must stop.
"""

# The mangled names are PySyncObj's:
# ruff: noqa: N802

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from pysyncobj import SyncObj
from pysyncobj import syncobj as library
from pysyncobj.node import Node
from pysyncobj.version import VERSION

from common.invariants import check
from kraft.quorum.application import ENTRY_COST, STEP_COST, Application
from kraft.quorum.candidacy import INTRODUCTION, Candidacy, LogEnd, answer_to, is_introduction
from kraft.quorum.follower_progress import FollowerProgress, FollowerState
from kraft.quorum.journal_format import SnapshotBase
from kraft.quorum.message_filter import (
    APPEND_ENTRIES,
    COMMAND,
    NEXT_NODE_IDX,
    PRE_VOTE,
    PRE_VOTE_ANSWER,
    RESIGNATION,
    RESPONSE_VOTE,
    Message,
    RaftView,
    incoming,
)
from kraft.quorum.node_config import NodeConfig, library_config
from kraft.quorum.outbox import Outbox
from kraft.quorum.sending import Standing, entries_from, snapshot_parts
from kraft.quorum.snapshot_file import Snapshot, encode_snapshot
from kraft.quorum.snapshot_keeper import SnapshotKeeper
from kraft.quorum.snapshot_transfer import Arrived, SnapshotTransfer
from kraft.quorum.state_machine import AppliedResult, StateMachine
from kraft.quorum.write_ahead_log import WriteAheadLog

if VERSION != "0.3.17":
    raise ImportError(f"pysyncobj {VERSION} is installed, and the quorum relies on the insides of 0.3.17")


def _time_of_the_running_loop() -> float:
    """Nodes of one process may run on loops with different clocks, as in the simulator."""
    return asyncio.get_running_loop().time()


def _given_journal(journal: WriteAheadLog) -> WriteAheadLog:
    """`journalFile` carries the journal itself: each node is given its own, already open."""
    return journal


library.monotonicTime = _time_of_the_running_loop
library.createJournal = _given_journal

NOTHING_SENT = (0, 0, 0)


class Proposal(NamedTuple):
    """`applied` is called with the result, or with None if another entry took its place or its outcome is unknown."""

    term: int
    size: int
    applied: Callable[[AppliedResult | None], None]


class _NoPoller:
    """The library does not use sockets here."""

    def poll(self, timeout: float) -> None:
        pass


class RaftNode(SyncObj):  # type: ignore[misc]  # the library is untyped
    """`peers`: the other voters; `backlog(node_id)` returns how many bytes its link still holds."""

    def __init__(
        self,
        node_id: int,
        peers: list[int],
        journal: WriteAheadLog,
        keeper: SnapshotKeeper,
        state_machine: StateMachine,
        rng: random.Random,
        config: NodeConfig,
        backlog: Callable[[int], int],
    ) -> None:
        # SyncObj's constructor reads every attribute and draws an election timeout, so these come first.
        self.node_id = node_id
        self.outbox = Outbox(self._view)
        self.journal = journal
        self._keeper = keeper
        self._is_compacting = self._is_installing = False
        self._state_machine = state_machine
        self._application = Application(state_machine)
        self._rng = rng
        self._settings = config
        self._backlog = backlog
        self._transfer = SnapshotTransfer(config.snapshot_part_bytes, config.snapshot_bytes_max)
        self._peers = {peer: Node(peer) for peer in peers}
        self._proposals: dict[int, Proposal] = {}
        self.proposed_bytes = 0
        self._votes: dict[int, None] = {}
        self._votes_term = -1
        self._candidacy = Candidacy(node_id, peers, config.election_timeout_min_s, rng)
        self._answered_at: dict[int, float] = {}  # by follower of this leader
        self._progress = FollowerProgress()
        self._time = asyncio.get_running_loop().time
        self._stands_unasked = not peers  # no other voter can win
        self.canvass_count = self.candidate_count = 0
        self._leader_commit = 0  # from the leader's last message; this log may not reach it yet
        self.has_caught_up = False  # once since the start: everything the leader had committed was applied
        self._sent = NOTHING_SENT
        self.compact_soon = False
        self.snapshot_count = 0
        super().__init__(Node(node_id), [*self._peers.values()], library_config(journal, config), transport=self.outbox)
        self._poller = _NoPoller()
        self._SyncObj__serializer = self._transfer
        journal.serve(self._isLeader)
        # It knows no leader yet, and voters that hear one reject it: nothing to wait for.
        patience_s = self._candidacy.canvass_patience_s() if peers else 0.0
        self._SyncObj__raftElectionDeadline = library.monotonicTime() + patience_s

    def recover(self, snapshot: Snapshot) -> None:
        """Call it before anything else, if the directory has a snapshot; journal and state machine match it."""
        self._transfer.offer(encode_snapshot(snapshot), snapshot.end)
        self._SyncObj__raftLastApplied = snapshot.end[0]

    # -- driving

    def connected(self, peer: int) -> None:
        self._candidacy.connected(peer, library.monotonicTime())
        self.outbox._onNodeConnected(self._peers[peer])
        self.outbox.send(self._peers[peer], dict(INTRODUCTION))

    def disconnected(self, peer: int) -> None:
        self._candidacy.disconnected(peer)
        self.outbox._onNodeDisconnected(self._peers[peer])
        self._transfer.cancel(peer)

    def receive(self, sender: int, message: Message) -> None:
        """Handle a message that `check_message` has accepted, from the voter `sender`."""
        node = self._peers[sender]
        if is_introduction(message):
            if self._candidacy.introduced(sender):
                self.outbox.send(node, self._candidacy.question(self.raftCurrentTerm, self._log_end()))
            return
        if message["type"] in (PRE_VOTE, PRE_VOTE_ANSWER, RESIGNATION):
            self._receive_of_elections(node, message)
            return
        leader_commit = message.get("commit_index", 0)  # the filter lowers it to what this log holds
        delivery = incoming(self._view(), message)
        if delivery is None:
            self._correct(node, message)
            return
        if message["type"] == RESPONSE_VOTE and not self._is_first_vote(sender, message):
            return
        if message["type"] == NEXT_NODE_IDX:
            self._count_answer(node, message)
            return
        self.outbox._onMessageReceived(node, delivery.message)
        for answer in delivery.answers:
            self.outbox.send(node, answer)
        if message["type"] == APPEND_ENTRIES:
            self._candidacy.heard_leader(library.monotonicTime())
            self._leader_commit = leader_commit
            arrived = self._transfer.take()
            if arrived is not None:
                self._install(node, arrived)

    def step(self, post: Callable[[list[tuple[int, Message]]], None]) -> None:
        """Elect, commit, apply, and send, in the only safe order: first entries for others, so that their disks work in
        parallel, then the journal's fsync, then whatever relies on it."""
        self._advance()
        post(self.outbox.take_at_once())
        self.journal.sync()
        post(self.outbox.take_promises())

    def _advance(self) -> None:
        self._canvass_when_due()
        led = self._isLeader()
        self.doTick(0.0)
        if led and not self._isLeader():
            self._resigned()
        if self._isLeader():
            now = (self.raftCurrentTerm, self.journal.last_index, self.raftCommitIndex)
            if now != self._sent:
                self._sent = now
                self._SyncObj__sendAppendEntries()
        self.has_caught_up = self.has_caught_up or self.has_office() or self._is_even_with_leader()

    def _is_even_with_leader(self) -> bool:
        """Whether this node has certainly applied everything that the leader has committed: the leader has committed an
        entry of its own term. A leader that still applies what earlier leaders committed has not."""
        if self._isLeader() or self.leader_id() is None or self.raftLastApplied < self._leader_commit:
            return False
        return bool(self.journal.term_at(self._leader_commit) == self.raftCurrentTerm)

    def next_deadline(self) -> float:
        """Loop time at which `step` has something to do, if nothing else happens."""
        deadline = self._SyncObj__newAppendEntriesTime if self._isLeader() else self._SyncObj__raftElectionDeadline
        return float(deadline)

    @property
    def has_more(self) -> bool:
        """Whether `step` stopped at its limit, or one more call commits what the last one appended."""
        is_alone = not self._peers and self._isLeader() and self.raftCommitIndex < self.journal.last_index
        return bool(is_alone or (self.raftLastApplied < self.raftCommitIndex and not self._is_installing))

    def was_held_up(self, late_s: float) -> None:
        """This process was stalled for `late_s`: messages may be unread, so silence does not count that long."""
        self._SyncObj__raftElectionDeadline += late_s
        self._candidacy.forgive_stall(late_s)
        answered: dict[Node, float] = self._SyncObj__lastResponseTime
        for node in answered:
            answered[node] += late_s

    def hasten_election(self) -> None:
        """Stand for election at once: the first voter of a new cluster has no leader to disturb and no rival."""
        self._stands_unasked = True
        self._SyncObj__raftElectionDeadline = 0.0

    # -- elections

    def _canvass_when_due(self) -> None:
        """PySyncObj stands for election when its deadline has passed. Here the deadline begins a pre-vote round, and
        the node stands only if it wins, or if a leader hands over."""
        now = library.monotonicTime()
        if self._isLeader() or now <= self._SyncObj__raftElectionDeadline:
            return
        if self._stands_unasked or self._SyncObj__transferInProgress or self._candidacy.is_won:
            return
        self._SyncObj__raftLeader = None
        if self.raftLastApplied < self.raftCommitIndex and (look_s := self._candidacy.deference_s(now)):
            self._SyncObj__raftElectionDeadline = now + look_s
            return
        self._SyncObj__raftElectionDeadline = now + self._candidacy.canvass_patience_s()
        self.canvass_count += 1
        asked, question = self._candidacy.canvass(now, self.raftCurrentTerm, self._log_end())
        for peer in asked:
            self.outbox.send(self._peers[peer], dict(question))
        if self._candidacy.is_won:
            self._SyncObj__raftElectionDeadline = 0.0

    def _receive_of_elections(self, node: Node, message: Message) -> None:
        if message["term"] > self.raftCurrentTerm:
            self._adopt_term(message["term"])
        kind, is_current = message["type"], message["term"] == self.raftCurrentTerm
        if kind == PRE_VOTE:
            granted = is_current and not self._isLeader()
            granted = granted and self._candidacy.judge(node.id, message, library.monotonicTime(), self._log_end())
            if granted:
                self._wait_for_another()
            self.outbox.send(node, answer_to(message, self.raftCurrentTerm, granted=granted))
        elif kind == PRE_VOTE_ANSWER:
            if is_current and not self._isLeader() and self._candidacy.answered(node.id, message):
                self._SyncObj__raftElectionDeadline = 0.0
        elif is_current and self.leader_id() == node.id:
            self.leader_gone(node.id)

    def _adopt_term(self, term: int) -> None:
        """Another voter has a later term and ignores earlier ones: only a later term can bring all together."""
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(library._RAFT_STATE.FOLLOWER)
        self._SyncObj__raftLeader = None
        self._SyncObj__raftElectionDeadline = 0.0

    def _correct(self, node: Node, message: Message) -> None:
        """Correct a leader of an earlier term, which would not learn from silence that its term is over."""
        if message["type"] == APPEND_ENTRIES and self._candidacy.knows_pre_vote(node.id):
            self.outbox.send(node, answer_to({"round": 0}, self.raftCurrentTerm, granted=False))

    def _wait_for_another(self) -> None:
        deadline = library.monotonicTime() + self._candidacy.canvass_patience_s()
        self._SyncObj__raftElectionDeadline = max(self._SyncObj__raftElectionDeadline, deadline)

    def _resigned(self) -> None:
        """Resigned without the answers of a majority. Nodes that hear this need not wait for its silence."""
        self._SyncObj__raftElectionDeadline = library.monotonicTime() + self._SyncObj__generateRaftTimeout()
        for peer, node in self._peers.items():
            if self._candidacy.knows_pre_vote(peer):
                self.outbox.send(node, {"type": RESIGNATION, "term": self.raftCurrentTerm})

    def follows(self, peer: int) -> bool:
        """Whether `peer` leads, as far as this node knows."""
        return bool(not self._isLeader() and self.leader_id() == peer)

    def leader_gone(self, leader: int) -> None:
        """The leader's process has ended, or it has resigned: start a pre-vote round at once."""
        if self.follows(leader):
            self._SyncObj__raftLeader = None
            self._SyncObj__raftElectionDeadline = 0.0
            self._candidacy.leader_gone()

    def _log_end(self) -> LogEnd:
        _, index, term = self.journal[-1]
        return LogEnd(term, index)

    # -- proposing

    def append(self, data: bytes, applied: Callable[[AppliedResult | None], None]) -> None:
        """Append a command to the log; only while `has_office`."""
        index, term = self.journal.last_index + 1, self.raftCurrentTerm
        self.journal.add(bytes((COMMAND,)) + data, index, term)
        self._proposals[index] = Proposal(term, len(data), applied)
        self.proposed_bytes += len(data)

    def give_up_proposals(self) -> None:
        """Answer all waiting proposals with an unknown outcome."""
        proposals, self._proposals = self._proposals, {}
        self.proposed_bytes = 0
        for proposal in proposals.values():
            proposal.applied(None)

    def has_office(self) -> bool:
        """Whether it is leader and has applied all entries of earlier terms."""
        return bool(self._isLeader() and self.raftLastApplied >= self._SyncObj__noopIDx)

    def leader_id(self) -> int | None:
        leader = self._getLeader()
        return None if leader is None else int(leader.id)

    def has_quorum_contact(self) -> bool:
        """Whether a majority has answered this leader within the shortest time in which it could be replaced."""
        if not self._isLeader():
            return False
        since = library.monotonicTime() - self._settings.election_timeout_min_s
        count = 1 + sum(answered_at > since for answered_at in self._answered_at.values())
        return bool(count > (len(self._peers) + 1) // 2)

    def followers(self) -> dict[int, FollowerState]:
        """What this leader knows of the others; nothing if it does not lead."""
        matches = [(n, self._SyncObj__raftMatchIndex[node]) for n, node in self._peers.items() if self._isLeader()]
        return self._progress.states(matches, self._time())  # also asked outside the loop, by a simulation's watch

    def name_successor(self) -> bool:
        """Ask the most advanced follower to stand for election; False if none has the whole log."""
        refusals: list[Any] = []
        self.transferLeadership(callback=lambda _, reason: refusals.append(reason) if reason else None)
        return not refusals

    # -- what PySyncObj calls

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self._rng.uniform(self._settings.election_timeout_min_s, self._settings.election_timeout_max_s)

    def _SyncObj__setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:  # noqa: N803
        if term > self.raftCurrentTerm:
            self._candidacy.term_begins()
        if votedForNodeId is not None:
            self._candidacy.voted(votedForNodeId, library.monotonicTime())
        self._stands_unasked = not self._peers
        super()._SyncObj__setCurrentTerm(term, votedForNodeId)
        if votedForNodeId == self.node_id:
            self.candidate_count += 1
            self._SyncObj__raftElectionDeadline = library.monotonicTime() + self._candidacy.election_patience_s()

    def _SyncObj__onBecomeLeader(self) -> None:
        self._candidacy.elected()
        self._answered_at = dict.fromkeys(self._peers, library.monotonicTime())
        self._progress.begin()
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__applyLogEntries(self) -> bool:
        applied = self.raftLastApplied
        count = min(self.raftCommitIndex - applied, STEP_COST // ENTRY_COST)
        if count <= 0 or self._is_installing:
            return False
        start = applied + 1 - self.journal.first_index
        self._application.begin_step()
        for command, index, term in self.journal[start : start + count]:
            check(index == self.raftLastApplied + 1, "entries are applied in order, each once")
            done = self._application.apply(index, command)
            if done is None:
                break  # `has_more` is true: the loop serves others first
            self._SyncObj__raftLastApplied = index
            proposal = self._proposals.pop(index, None)
            if proposal is not None:
                self.proposed_bytes -= proposal.size
                proposal.applied(AppliedResult(index, term, done.result) if proposal.term == term else None)
        return False

    def _checkCommandsToApply(self) -> None:
        """Commands enter only through `append`; none are forwarded."""

    def _SyncObj__deleteEntriesFrom(self, index: int) -> None:
        check(index > self.raftLastApplied, "applied entries are never truncated")
        self.journal.deleteEntriesFrom(index - self.journal.first_index)

    def _SyncObj__sendAppendEntries(self) -> None:
        self._SyncObj__newAppendEntriesTime = library.monotonicTime() + self._settings.heartbeat_interval_s
        next_index: dict[Node, int] = self._SyncObj__raftNextIndex
        for peer, node in self._peers.items():
            if not self.isNodeConnected(node):
                self._transfer.cancel(peer)
                continue
            standing = Standing(self.raftCurrentTerm, self.raftCommitIndex, self._backlog(peer))
            if next_index[node] > self.journal.first_index:
                sending = entries_from(next_index[node], self.journal, standing, self._settings)
            else:
                check(self._transfer.end is not None, "a log that does not begin at 1 follows a snapshot")
                sending = snapshot_parts(peer, self._transfer, standing, self._settings)
            for message in sending.messages:
                self.outbox.send(node, message)
            next_index[node] = sending.next_index or next_index[node]

    # -- snapshots

    def _SyncObj__tryLogCompaction(self) -> None:
        covered = self.raftLastApplied - 1 - self.journal.first_index
        is_due = covered >= self._settings.compaction_entries_min
        is_due = is_due or self.journal.entry_bytes >= self._settings.compaction_bytes_min or self.compact_soon
        if not is_due or covered <= 0 or self._is_compacting or self._is_installing:
            return
        self.compact_soon = False
        self._is_compacting = True
        position = self.raftLastApplied - self.journal.first_index
        base = SnapshotBase(*self.journal[position - 1 : position + 1])
        self._keeper.keep(base, self._state_machine.snapshot(), partial(self._compacted, base))

    def _compacted(self, base: SnapshotBase, encoded: bytes) -> None:
        """The snapshot is durable. The log is trimmed only now: after a crash in between, the log still matches."""
        self._is_compacting = False
        self._transfer.offer(encoded, base.last[1:])
        self.journal.discard_before(base.previous[1])
        self.snapshot_count += 1

    def _install(self, node: Node, arrived: Arrived) -> None:
        """A leader's snapshot has arrived. Until it is durable and decoded, nothing is applied or appended."""
        check(arrived.snapshot.end[0] > self.raftLastApplied, "a snapshot never undoes applied entries")
        self._is_installing = True
        work = self._state_machine.restoring(arrived.snapshot.state)
        self._keeper.install(arrived, work, partial(self._installed, node, arrived))

    def _installed(self, node: Node, arrived: Arrived, restore: Callable[[], None]) -> None:
        check(not self._isLeader(), "a leader has all that was committed")
        snapshot = arrived.snapshot
        self._is_installing = False
        self.journal.restart_at(snapshot.base)
        self._transfer.offer(arrived.encoded, snapshot.end)
        self._application.forget()
        restore()
        self._SyncObj__raftLastApplied = snapshot.end[0]
        self._SyncObj__raftCommitIndex = max(self.raftCommitIndex, snapshot.end[0])
        self.journal.setRaftCommitIndex(self.raftCommitIndex)
        self._SyncObj__sendNextNodeIdx(node, success=True)

    # -- answers of followers

    def _count_answer(self, node: Node, message: Message) -> None:
        """Leader: what `node` has acknowledged only grows, and is not sent again unless requested."""
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
        if self._backlog(node.id) < self._settings.backlog_bytes_max and (
            next_index[node] <= self.journal.last_index or self._transfer.is_under_way(node.id)
        ):
            self._sent = NOTHING_SENT  # entries that did not fit continue with this step
        self._SyncObj__lastResponseTime[node] = self._answered_at[node.id] = now = library.monotonicTime()
        self._progress.answered(node.id, match_index[node], self.journal.last_index, now)

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
        applied, committed = self.raftLastApplied, self.raftCommitIndex
        return RaftView(self.raftCurrentTerm, applied, committed, self.journal, self._is_installing)
