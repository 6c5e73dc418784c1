"""Pre-votes and loyalty: the rules alone, then voters under faults that each rule is for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest

from common.ports import Address, Socket
from kraft.quorum.candidacy import Candidacy, LogEnd, answer_to, is_introduction
from kraft.quorum.message_filter import Message
from kraft.quorum.node import RaftNode
from kraft.quorum.suspicion import Suspicion, SuspicionConfig
from tests.kraft.quorum_world import STEP_S, QuorumWorld, UseClock, Violation, run_in_virtual_time

END = LogEnd(3, 10)
LOYALTY_S = 1.0


def candidacy(node_id: int = 1, size: int = 3) -> Candidacy:
    """Of a voter that all others have introduced themselves to, at 0 s."""
    peers = [peer for peer in range(1, size + 1) if peer != node_id]
    made = Candidacy(node_id, peers, LOYALTY_S, random.Random(1))
    for peer in peers:
        made.connected(peer, 0.0)
        made.introduced(peer)
    return made


def question_of(node_id: int, end: LogEnd = END) -> Message:
    return candidacy(node_id).question(5, end)


def test_a_majority_wins_a_round() -> None:
    asking = candidacy(size=5)
    asked, question = asking.canvass(2.0, 5, END)
    assert asked == [2, 3, 4, 5]
    answer = answer_to(question, 5, granted=True)
    assert [asking.answered(peer, answer) for peer in (2, 2, 3)] == [False, False, True]
    assert asking.is_won


def test_refusals_and_answers_to_earlier_rounds_do_not_count() -> None:
    asking = candidacy()
    _, earlier = asking.canvass(2.0, 5, END)
    _, question = asking.canvass(3.0, 5, END)
    assert not asking.answered(2, answer_to(earlier, 5, granted=True))
    assert not asking.answered(2, answer_to(question, 5, granted=False))
    assert asking.answered(3, answer_to(question, 5, granted=True))


def test_a_leader_that_is_heard_ends_a_canvass() -> None:
    asking = candidacy()
    _, question = asking.canvass(2.0, 5, END)
    asking.heard_leader(2.1)
    assert not asking.answered(2, answer_to(question, 5, granted=True))


def test_a_majority_that_is_lost_before_the_election_counts_no_more() -> None:
    asking = candidacy()
    _, question = asking.canvass(2.0, 5, END)
    assert asking.answered(2, answer_to(question, 5, granted=True))
    asking.disconnected(2)
    assert not asking.is_won


def test_a_voter_is_loyal_to_the_leader_that_it_hears() -> None:
    voter = candidacy()
    voter.heard_leader(10.0)
    assert not voter.judge(2, question_of(2), 10.9, END)
    assert voter.judge(2, question_of(2), 11.0, END)


def test_time_in_which_the_process_stood_still_is_no_silence() -> None:
    voter = candidacy()
    voter.heard_leader(10.0)
    voter.forgive_stall(2.0)
    assert not voter.judge(2, question_of(2), 12.9, END)


def test_nothing_is_owed_to_a_leader_that_has_gone() -> None:
    voter = candidacy()
    voter.heard_leader(10.0)
    voter.leader_gone()
    assert voter.judge(2, question_of(2), 10.0, END)


@pytest.mark.parametrize(("asking", "granted"), [(LogEnd(3, 9), False), (LogEnd(2, 99), False), (LogEnd(4, 1), True)])
def test_only_a_log_that_lacks_nothing_is_helped(asking: LogEnd, granted: bool) -> None:
    assert candidacy().judge(2, question_of(2, asking), 5.0, END) is granted


def test_of_two_that_canvass_at_once_one_wins() -> None:
    smaller, greater = candidacy(1), candidacy(2)
    _, of_smaller = smaller.canvass(5.0, 5, END)
    _, of_greater = greater.canvass(5.0, 5, END)
    assert not smaller.judge(2, of_greater, 5.0, END)
    assert greater.judge(1, of_smaller, 5.0, END)
    assert not greater.answered(3, answer_to(of_greater, 5, granted=True))
    smaller.canvass(6.0, 5, END)  # it could not win: another may
    assert smaller.judge(2, of_greater, 6.0, END)


def test_who_learns_of_a_death_last_is_not_held_up_by_those_that_it_refused() -> None:
    first, last = candidacy(1), candidacy(2)
    last.heard_leader(5.0)
    _, question = first.canvass(5.0, 5, END)
    assert not last.judge(1, question, 5.0, END)
    first.answered(2, answer_to(question, 5, granted=False))
    last.leader_gone()
    _, question = last.canvass(5.01, 5, END)
    assert first.judge(2, question, 5.01, END)


def test_one_is_helped_at_a_time() -> None:
    """Two that win their canvass would divide the votes, or one would take back the other's election."""
    voter = candidacy(3)
    assert voter.judge(1, question_of(1), 5.0, END)
    assert not voter.judge(2, question_of(2), 5.05, END)
    assert voter.judge(1, question_of(1), 5.05, END)
    assert voter.judge(2, question_of(2), 5.2, END)
    voter.term_begins()
    voter.voted(1, 6.0)
    assert not voter.judge(2, question_of(2), 6.2, END)
    assert voter.judge(2, question_of(2), 6.3, END)


def test_a_voter_of_an_earlier_release_counts_as_willing() -> None:
    asking = candidacy()
    for peer in (2, 3):
        asking.connected(peer, 1.0)
    assert asking.canvass(1.5, 5, END)[0] == []
    assert not asking.is_won  # it may yet introduce itself
    asking.canvass(2.0, 5, END)
    assert asking.is_won


def test_waiting_grows_to_the_shortest_time_out() -> None:
    asking = candidacy()
    waits = []
    for number in range(12):
        asking.canvass(float(number), 5, END)
        waits.append((asking.canvass_patience_s(), asking.election_patience_s()))
    assert waits[0][0] < 0.2 * LOYALTY_S
    assert all(0.1 <= wait <= LOYALTY_S for pair in waits for wait in pair)


# -- voters


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("ERROR"):
        yield


class EarlierNode(RaftNode):
    """A voter of a release without pre-vote."""

    def connected(self, peer: int) -> None:
        self.outbox._onNodeConnected(self._peers[peer])

    def receive(self, sender: int, message: Message) -> None:
        if message["type"] in ("pre_vote", "pre_vote_answer", "resignation"):
            raise Violation("it would take this for a breach of the protocol and end the connection")
        if is_introduction(message):
            before = (self.raftCurrentTerm, len(self.outbox.promises))
            self.outbox._onMessageReceived(self._peers[sender], message)
            if before != (self.raftCurrentTerm, len(self.outbox.promises)):
                raise Violation("the introduction means something to it")
            return
        super().receive(sender, message)

    def _canvass_when_due(self) -> None:
        """The library stands for election at its deadline."""


Play = Callable[[QuorumWorld, Callable[[float], None]], None]


def play(act: Play, *, earlier: tuple[int, ...] = ()) -> QuorumWorld:
    """`act` gets a world of three voters and what lets it run for some seconds."""

    def scenario(use_clock: UseClock) -> QuorumWorld:
        clock = [1_000.0]
        use_clock(lambda: clock[0])
        world = QuorumWorld(7, 3, node_classes=dict.fromkeys(earlier, EarlierNode))
        world.clock = clock

        def run_for(seconds: float) -> None:
            for _ in range(int(seconds / STEP_S)):
                world.step(shuffled=False)

        run_for(3.0)
        act(world, run_for)
        return world

    return run_in_virtual_time(scenario)


def leader_of(world: QuorumWorld) -> int:
    (name,) = [name for name, node in world.nodes.items() if node.has_office()]
    return name


def cut(world: QuorumWorld, victim: int, *, hears: bool, is_heard: bool) -> None:
    for name in world.names:
        if name != victim:
            world.cut |= set() if hears else {(name, victim)}
            world.cut |= set() if is_heard else {(victim, name)}


@pytest.mark.parametrize(("hears", "is_heard"), [(False, False), (False, True), (True, False)])
def test_a_follower_that_is_cut_off_and_returns_deposes_nobody(hears: bool, is_heard: bool) -> None:
    def act(world: QuorumWorld, run_for: Callable[[float], None]) -> None:
        leader = leader_of(world)
        term, victim = world.nodes[leader].raftCurrentTerm, next(name for name in world.names if name != leader)
        cut(world, victim, hears=hears, is_heard=is_heard)
        run_for(5.0)
        world.heal()
        run_for(2.0)
        assert leader_of(world) == leader
        assert {node.raftCurrentTerm for node in world.nodes.values()} == {term}
        assert world.nodes[victim].leader_id() == leader

    play(act)


@pytest.mark.parametrize("hears", [True, False])
def test_a_leader_that_loses_its_majority_resigns_and_is_replaced_once(hears: bool) -> None:
    def act(world: QuorumWorld, run_for: Callable[[float], None]) -> None:
        leader = leader_of(world)
        term = world.nodes[leader].raftCurrentTerm
        cut(world, leader, hears=hears, is_heard=not hears)
        run_for(world.config.leader_fallback_timeout_s + 2 * world.config.election_timeout_max_s)
        assert not world.nodes[leader]._isLeader()
        successor = leader_of(world)
        assert successor != leader
        assert world.nodes[successor].raftCurrentTerm == term + 1
        world.heal()
        run_for(2.0)
        assert leader_of(world) == successor
        assert {node.raftCurrentTerm for node in world.nodes.values()} == {term + 1}

    play(act)


def test_voters_that_start_together_wait_for_no_silence() -> None:
    def act(world: QuorumWorld, run_for: Callable[[float], None]) -> None:
        for name in world.names:
            world.crash(name, power=False)
        for name in world.names:
            world.start(name)
        run_for(0.8 * world.config.election_timeout_min_s)
        assert leader_of(world)

    play(act)


def test_a_voter_that_starts_beside_a_leader_follows_it() -> None:
    def act(world: QuorumWorld, run_for: Callable[[float], None]) -> None:
        leader = leader_of(world)
        term = world.nodes[leader].raftCurrentTerm
        for name in [name for name in world.names if name != leader]:
            world.crash(name, power=False)
            world.start(name)
            run_for(1.0)
        assert leader_of(world) == leader
        assert {node.raftCurrentTerm for node in world.nodes.values()} == {term}

    play(act)


def test_a_leader_that_only_speaks_says_that_it_resigns() -> None:
    def act(world: QuorumWorld, run_for: Callable[[float], None]) -> None:
        leader = leader_of(world)
        cut(world, leader, hears=False, is_heard=True)
        run_for(world.config.leader_fallback_timeout_s + 0.1)  # less than any silence that would be noticed
        assert leader_of(world) != leader

    play(act)


def test_a_voter_whose_term_is_ahead_is_followed_up_once() -> None:
    """It could take no entries of the present leader, and would win no pre-vote while that is heard."""

    def act(world: QuorumWorld, run_for: Callable[[float], None]) -> None:
        leader = leader_of(world)
        ahead = next(name for name in world.names if name != leader)
        world.nodes[ahead]._SyncObj__setCurrentTerm(20, None)
        run_for(3.0)
        assert {node.raftCurrentTerm for node in world.nodes.values()} == {21}
        assert all(node.leader_id() == leader_of(world) for node in world.nodes.values() if not node._isLeader())

    play(act)


def test_a_leader_that_stood_still_waits_for_the_answers_that_are_under_way() -> None:
    def act(world: QuorumWorld, run_for: Callable[[float], None]) -> None:
        node = world.nodes[leader_of(world)]
        away_s = 3 * world.config.leader_fallback_timeout_s
        world.now += away_s
        world.clock[0] = world.now
        for held_up in world.nodes.values():  # the others as well: nobody stands because of its silence
            held_up.was_held_up(away_s)
        assert not node.has_quorum_contact()  # it may have been replaced meanwhile
        run_for(0.2)
        assert node.has_office()
        assert node.has_quorum_contact()

    play(act)


@pytest.mark.parametrize("earlier", [(1,), (2, 3), (1, 3)])
def test_voters_of_two_releases_elect_and_replace_leaders(earlier: tuple[int, ...]) -> None:
    def act(world: QuorumWorld, run_for: Callable[[float], None]) -> None:
        for _ in range(4):
            leader = leader_of(world)
            world.propose()
            run_for(0.2)
            world.crash(leader, power=False)
            run_for(4.0)
            assert leader_of(world) != leader
            world.restart_one()
            run_for(1.0)
        world.settle()
        world.judge()

    play(act, earlier=earlier)


# -- the end of a leader's connection


class Doors:
    """A network on which each connect has the next outcome of a list."""

    def __init__(self, *outcomes: type[OSError]) -> None:
        self.outcomes = list(outcomes)

    def listen(self, address: Address, accepted: Callable[[Socket], None]) -> None:
        raise NotImplementedError

    async def connect(self, address: Address) -> Socket:
        raise self.outcomes.pop(0)


async def suspect(doors: Doors, *, looks: int) -> list[int]:
    gone: list[int] = []
    left = [looks]

    def is_open(leader: int) -> bool:
        left[0] -= 1
        return left[0] >= 0

    suspicion = Suspicion(doors, {4: ("h", 1)}, SuspicionConfig(pause_s=0.0), is_open, gone.append)  # type: ignore[arg-type]
    suspicion.begin(4)
    await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name() == "probe-4"])
    return gone


async def test_a_refused_connection_proves_that_a_leader_has_gone() -> None:
    assert await suspect(Doors(ConnectionResetError, TimeoutError, ConnectionRefusedError), looks=9) == [4]


async def test_a_leader_that_does_not_answer_is_given_the_time_of_its_silence() -> None:
    assert await suspect(Doors(TimeoutError, TimeoutError), looks=2) == []
