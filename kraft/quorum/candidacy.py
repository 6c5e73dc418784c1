"""Whether a voter may stand for election: pre-vote (KIP-996) and loyalty to a live leader. No I/O.

Before a voter increments its term it asks the others for a pre-vote, and becomes a candidate only if a majority grants
it. A voter that hears a leader grants none. So a voter that was cut off or returns deposes no leader, and its term does
not grow meanwhile.

A voter of an earlier release does not support pre-votes. Voters introduce themselves on each new link by a vote request
in term 0, which an earlier release ignores; a voter that has not introduced itself counts as granting.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any, NamedTuple

from common.backoff import Backoff, Jitter
from kraft.quorum.message_filter import PRE_VOTE, PRE_VOTE_ANSWER, REQUEST_VOTE, Message

# Shares of the shortest election timeout. How long a voter without a leader first waits for the outcome of a round:
CANVASS_PATIENCE = 0.1
ELECTION_PATIENCE = 0.25  # votes are made durable before they are sent
PATIENCE_MAX = 0.5  # upper limit before jitter, with which it is at most one whole timeout
RIVALRY = Jitter(1.0, 2.0)  # random, so that rival candidates get out of step
# How long a voter that is still applying committed entries lets others stand first, and how often it checks.
DEFERENCE = 1.0
DEFERENCE_LOOK = 0.02

INTRODUCTION: Message = {"type": REQUEST_VOTE, "term": 0, "last_log_index": 0, "last_log_term": 0}


class LogEnd(NamedTuple):
    """The log with the greater end is more advanced."""

    last_term: int
    last_index: int


def is_introduction(message: Message) -> bool:
    return bool(message["type"] == REQUEST_VOTE and message["term"] == 0)


def _patience(first: float, loyalty_s: float) -> Backoff:
    """Doubled after each round, so that slow voters have time to answer."""
    return Backoff(first * loyalty_s, PATIENCE_MAX * loyalty_s, RIVALRY)


class Candidacy:
    """One voter's view of leader and candidates. Times are seconds of one clock; `loyalty_s`, the shortest election
    timeout: how long after a leader's last message this voter grants no vote to others."""

    def __init__(self, node_id: int, peers: Collection[int], loyalty_s: float, rng: random.Random) -> None:
        self._node_id = node_id
        self._majority = (len(peers) + 1) // 2 + 1
        self._loyalty_s = loyalty_s
        self._canvass = _patience(CANVASS_PATIENCE, loyalty_s)
        self._election = _patience(ELECTION_PATIENCE, loyalty_s)
        self._random = rng
        self._heard_at: float | None = None  # when this term's leader was last heard; None if it is gone
        self._linked_at: dict[int, float] = {}
        self._introduced: dict[int, None] = {}
        self._willing: dict[int, None] = {}
        self._unwilling: dict[int, None] = {}
        self._is_open = False
        self._round = 0
        self._rounds_unled = 0  # rounds since there was a leader
        self._engaged_to = -1  # the voter that this one supports
        self._engaged_until = 0.0
        self._defers_until: float | None = None  # set while there is no leader
        self.is_won = False

    # -- the others

    def connected(self, peer: int, now: float) -> None:
        self._linked_at[peer] = now
        self._introduced.pop(peer, None)

    def disconnected(self, peer: int) -> None:
        self._linked_at.pop(peer, None)
        self._introduced.pop(peer, None)
        self._willing.pop(peer, None)
        self.is_won = self.is_won and self._has_majority()

    def introduced(self, peer: int) -> bool:
        """Record that `peer` supports pre-votes. Returns True if it must be asked now, in the open round."""
        self._introduced[peer] = None
        return self._is_open and peer not in self._willing

    def knows_pre_vote(self, peer: int) -> bool:
        return peer in self._introduced

    # -- the leader

    def heard_leader(self, now: float) -> None:
        """Record a leader of the current term, so that no election is needed."""
        self._heard_at = now
        self._rounds_unled = 0
        self._defers_until = None
        self.close()

    def elected(self) -> None:
        """This voter was elected."""
        self._heard_at = None
        self._rounds_unled = 0
        self._defers_until = None
        self.close()

    def leader_gone(self) -> None:
        """The leader's process has ended, or it has resigned: loyalty ends."""
        self._heard_at = None

    def term_begins(self) -> None:
        """Forget leader and candidates of the earlier term."""
        self._heard_at = None
        self._engaged_until = 0.0
        self.close()

    def voted(self, candidate: int, now: float) -> None:
        """Record that this voter has voted, so that other candidates wait for the outcome."""
        self._engage(candidate, now + ELECTION_PATIENCE * self._loyalty_s)

    def _engage(self, peer: int, until: float) -> None:
        self._engaged_to, self._engaged_until = peer, until

    def is_led(self, now: float) -> bool:
        return self._heard_at is not None and now - self._heard_at < self._loyalty_s

    def forgive_stall(self, late_s: float) -> None:
        """This process was stalled for `late_s`: messages of the leader may be unread."""
        if self._heard_at is not None:
            self._heard_at += late_s

    # -- a canvass of this voter's own

    def deference_s(self, now: float) -> float:
        """How long a voter that has not applied all committed entries waits before it checks again whether to stand;
        0.0 if it has waited long enough. If elected, it could not serve before it has applied them, which takes seconds
        after a restart, while another voter may be ready. It may be the only one that can win, so it waits at most the
        shortest election timeout."""
        if self._defers_until is None:
            self._defers_until = now + DEFERENCE * self._loyalty_s
        return DEFERENCE_LOOK * self._loyalty_s if now < self._defers_until else 0.0

    def canvass(self, now: float, term: int, end: LogEnd) -> tuple[list[int], Message]:
        """Begin a round. Returns the voters to ask, and the question. `is_won` may be true at once."""
        self._round += 1
        self._rounds_unled += 1
        self._is_open, self.is_won = True, False
        self._unwilling = {}
        self._willing = {
            peer: None
            for peer, linked_at in self._linked_at.items()
            if peer not in self._introduced and now - linked_at >= self._loyalty_s
        }
        self.is_won = self._has_majority()
        return list(self._introduced), self.question(term, end)

    def question(self, term: int, end: LogEnd) -> Message:
        return {
            "type": PRE_VOTE,
            "term": term,
            "round": self._round,
            "last_log_index": end.last_index,
            "last_log_term": end.last_term,
        }

    def answered(self, peer: int, answer: Message) -> bool:
        """Count the answer of `peer` in the current term. Returns True if it wins the round."""
        if not self._is_open or self.is_won or answer["round"] != self._round:
            return False
        if not answer["granted"]:
            self._unwilling[peer] = None
            return False
        self._willing[peer] = None
        self.is_won = self._has_majority()
        return self.is_won

    def _has_majority(self) -> bool:
        return 1 + len(self._willing) >= self._majority

    def close(self) -> None:
        """End the round: an election, a leader, or another candidate has settled it."""
        self._is_open = self.is_won = False

    def canvass_patience_s(self) -> float:
        """How long to wait for the outcome of a round before the next one."""
        return self._canvass.jittered_s(self._rounds_unled, self._random)

    def election_patience_s(self) -> float:
        """How long to wait for votes before another round."""
        return self._election.jittered_s(self._rounds_unled, self._random)

    # -- canvasses of others

    def judge(self, peer: int, question: Message, now: float, end: LogEnd) -> bool:
        """Whether this voter, which does not lead and is in the question's term, would vote for `peer`. If so, it does
        not stand itself."""
        asking = LogEnd(question["last_log_term"], question["last_log_index"])
        if self.is_led(now) or asking < end:
            return False
        if now < self._engaged_until and self._engaged_to != peer:
            return False
        # Two that canvass at the same moment, as when a leader's death is known to both, must not both win: the
        # smaller id has precedence, once, for it may be unable to win, and not over one that has refused it: that one
        # has learned of the death just now.
        has_precedence = self._node_id < peer and self._rounds_unled == 1 and peer not in self._unwilling
        if self._is_open and asking == end and has_precedence:
            return False
        self.close()
        self._engage(peer, now + CANVASS_PATIENCE * self._loyalty_s)
        return True


def answer_to(question: Message, term: int, *, granted: bool) -> dict[str, Any]:
    return {"type": PRE_VOTE_ANSWER, "term": term, "round": question["round"], "granted": granted}
