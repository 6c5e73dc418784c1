"""A voter that has restarted holds the log long before it has applied it: who leads meanwhile, and when it is ready.

In these worlds a step applies one entry, as it does where each is a piece of a large decision.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kraft.quorum.application import STEP_COST
from kraft.quorum.node import RaftNode
from tests.kraft.quorum_world import STEP_S, QuorumWorld, UseClock, run_in_virtual_time

BEHIND = 150  # entries: more than a second of steps


class Play:
    """A world of three voters and its time."""

    def __init__(self, use_clock: UseClock) -> None:
        self._clock = [1_000.0]
        use_clock(lambda: self._clock[0])
        self.world = QuorumWorld(7, 3, entry_cost=STEP_COST)
        self.until(lambda: self.leader() is not None)

    def until(self, holds: Callable[[], object], seconds: float = 60.0) -> float:
        """Seconds until `holds`."""
        began = self._clock[0]
        while not holds():
            assert self._clock[0] - began < seconds, "it takes too long"
            self.world.step(shuffled=False)
            self._clock[0] = self.world.now
        return self._clock[0] - began

    def leader(self) -> RaftNode | None:
        return next((node for node in self.world.nodes.values() if node.has_office()), None)

    def in_office(self) -> RaftNode:
        leader = self.leader()
        assert leader is not None
        return leader

    def followers(self) -> list[int]:
        return [name for name in self.world.names if name != self.in_office().node_id]

    def fill(self, count: int) -> None:
        """Commit and apply so many entries on all that live."""
        first = self.in_office().journal.last_index
        while self.in_office().journal.last_index < first + count:
            self.world.propose()
            self.until(self.is_even)

    def is_even(self) -> bool:
        end = self.in_office().journal.last_index
        return all(node.raftLastApplied == end for node in self.world.nodes.values())

    def restart(self, name: int) -> RaftNode:
        """Until it has the whole log again, of which most is still to be applied."""
        self.world.crash(name, power=False)
        self.world.start(name)
        node, leader = self.world.nodes[name], self.in_office()
        self.until(lambda: node.leader_id() == leader.node_id and node.journal.last_index == leader.journal.last_index)
        assert node.raftCommitIndex - node.raftLastApplied > BEHIND
        return node

    def end(self, leader: RaftNode, *last_to_learn: int) -> None:
        """Its process dies; the others learn of that, the last ones a little later."""
        gone = leader.node_id
        self.world.crash(gone, power=False)
        others = sorted(self.world.nodes, key=lambda name: name in last_to_learn)
        for name in others:
            self.world.nodes[name].disconnected(gone)
            self.world.nodes[name].leader_gone(gone)
            self.world.step(shuffled=False)
            self._clock[0] = self.world.now


def play(act: Callable[[Play], None]) -> None:
    def scenario(use_clock: UseClock) -> QuorumWorld:
        made = Play(use_clock)
        act(made)
        return made.world

    run_in_virtual_time(scenario)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("learns_last", [True, False])
def test_a_voter_that_still_applies_its_log_leaves_the_office_to_one_that_has(which: int, learns_last: bool) -> None:
    def act(play: Play) -> None:
        play.fill(2 * BEHIND)
        followers = play.followers()
        behind, even = followers[which], followers[1 - which]
        late = play.restart(behind)
        play.end(play.in_office(), behind if learns_last else even)
        took = play.until(lambda: play.leader() is not None)
        assert play.in_office().node_id == even
        assert took < play.world.config.election_timeout_min_s + 2 * STEP_S
        assert late.raftLastApplied < late.raftCommitIndex

    play(act)


def test_a_voter_that_alone_can_win_stands_although_it_still_applies_its_log() -> None:
    def act(play: Play) -> None:
        older, whole = play.followers()
        play.world.crash(older, power=False)
        play.fill(3 * BEHIND)
        node = play.restart(whole)
        play.end(play.in_office())
        play.world.start(older)
        play.until(node._isLeader, 3 * play.world.config.election_timeout_max_s)
        assert not node.has_office()
        play.until(node.has_office)

    play(act)


def test_a_voter_that_restarts_has_caught_up_when_it_has_applied_what_was_committed() -> None:
    def act(play: Play) -> None:
        assert play.in_office().has_caught_up
        play.fill(2 * BEHIND)
        node = play.restart(play.followers()[0])
        committed = play.in_office().raftCommitIndex
        assert not node.has_caught_up
        play.until(lambda: node.has_caught_up)
        assert node.raftLastApplied >= committed
        play.world.propose()
        play.until(lambda: node.raftLastApplied > committed)
        assert node.has_caught_up

    play(act)


def test_a_voter_that_leads_has_caught_up_when_it_may_serve() -> None:
    def act(play: Play) -> None:
        play.fill(2 * BEHIND)
        for name in play.world.names:
            play.world.crash(name, power=False)
        for name in play.world.names:
            play.world.start(name)
        play.until(lambda: any(node._isLeader() for node in play.world.nodes.values()))
        assert not any(node.has_caught_up for node in play.world.nodes.values())
        play.until(lambda: play.leader() is not None)
        assert play.in_office().has_caught_up
        play.until(lambda: all(node.has_caught_up for node in play.world.nodes.values()))

    play(act)
