"""ISR and high watermark arithmetic against a twin that recomputes everything from scratch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.partitions.replica_set import JOIN_PATIENCE_S, ReplicaSet

LAG_S = 10.0


def replica_set(isr: tuple[int, ...] = (0, 1, 2), min_insync: int = 2) -> ReplicaSet:
    return ReplicaSet(0, (0, 1, 2), isr, 5, min_insync, now=100.0)


def at(replicas: ReplicaSet, node: int, offset: int, own_end: int, now: float = 100.0) -> None:
    replicas.followers[node].fetched(offset, 0, 1, None, 0, 0, own_end, now)


def test_nothing_is_committed_before_every_member_has_fetched_in_the_epoch() -> None:
    replicas = replica_set()
    at(replicas, 1, 50, 50)
    assert replicas.high_watermark(50, 100.0, LAG_S) == -1
    at(replicas, 2, 40, 50)
    assert replicas.high_watermark(50, 100.0, LAG_S) == 40


def test_the_own_end_counts_as_well() -> None:
    replicas = replica_set()
    at(replicas, 1, 50, 50)
    at(replicas, 2, 50, 50)
    assert replicas.high_watermark(45, 100.0, LAG_S) == 45


def test_an_isr_below_the_minimum_commits_nothing() -> None:
    replicas = replica_set(isr=(0,))
    assert replicas.is_starved
    assert replicas.high_watermark(50, 100.0, LAG_S) == -1


def test_the_minimum_is_at_most_the_number_of_replicas() -> None:
    replicas = ReplicaSet(0, (0,), (0,), 1, 2, now=0.0)
    assert not replicas.is_starved
    assert replicas.high_watermark(7, 0.0, LAG_S) == 7


def test_a_proposed_member_is_waited_for_and_a_leaving_one_still_is() -> None:
    replicas = replica_set(isr=(0, 1))
    at(replicas, 1, 50, 50)
    at(replicas, 2, 30, 50, now=50.0)
    replicas.propose_join(2)
    assert replicas.high_watermark(50, 200.0, LAG_S) == 30
    replicas = replica_set()
    at(replicas, 1, 50, 50)
    at(replicas, 2, 30, 50)
    replicas.propose_leave([2])
    assert replicas.high_watermark(50, 200.0, LAG_S) == 30
    replicas.adopt((0, 1, 2), (0, 1), 6)
    assert replicas.high_watermark(50, 200.0, LAG_S) == 50


def test_a_replica_about_to_join_holds_the_high_watermark_for_a_moment_only() -> None:
    replicas = replica_set(isr=(0, 1))
    at(replicas, 1, 60, 60)
    at(replicas, 2, 50, 50)
    replicas.followers[2].check_eligible(lambda *_: True)
    assert replicas.high_watermark(60, 100.5, LAG_S) == 50
    assert replicas.high_watermark(60, 100.1 + JOIN_PATIENCE_S, LAG_S) == 60
    replicas.followers[2].check_eligible(lambda *_: False)
    assert replicas.high_watermark(60, 100.5, LAG_S) == 60


def test_joining_takes_the_high_watermark_and_the_start_of_the_epoch() -> None:
    replicas = replica_set(isr=(0, 1))
    follower = replicas.followers[2]
    follower.check_eligible(lambda *_: True)
    at(replicas, 2, 40, 60)
    assert not replicas.may_join(follower, 41, 0, 100.0)
    assert not replicas.may_join(follower, 40, 41, 100.0)
    assert replicas.may_join(follower, 40, 40, 100.0)
    proposal = replicas.propose_join(2)
    assert tuple(proposal) == ((0, 1, 2), 5)
    assert not replicas.may_join(follower, 40, 40, 100.0)
    replicas.withdraw(proposal, 100.0)
    assert not replicas.may_join(follower, 40, 40, 100.1)
    assert replicas.may_join(follower, 40, 40, 101.0)


def test_a_withdrawn_proposal_of_an_older_state_changes_nothing() -> None:
    replicas = replica_set(isr=(0, 1))
    proposal = replicas.propose_join(2)
    replicas.adopt((0, 1, 2), (0, 1, 2), 6)
    newer = replicas.propose_leave([1])
    replicas.withdraw(proposal, 100.0)
    assert replicas.proposal == newer


def test_a_member_that_has_everything_never_lags() -> None:
    replicas = replica_set()
    at(replicas, 1, 50, 50)
    at(replicas, 2, 50, 50)
    assert replicas.lagging(50, 1000.0, LAG_S) == ()


def test_a_silent_member_lags_once_its_time_is_over() -> None:
    replicas = replica_set()
    at(replicas, 1, 50, 50)
    at(replicas, 2, 50, 50)
    at(replicas, 1, 60, 60, now=105.0)
    assert replicas.lagging(60, 109.0, LAG_S) == ()
    assert replicas.lagging(60, 110.5, LAG_S) == (2,)


def test_an_idle_follower_does_not_lag_when_the_first_record_in_hours_comes() -> None:
    replicas = replica_set()
    at(replicas, 1, 50, 50)
    at(replicas, 2, 50, 50)
    assert replicas.appended(101, True, 5000.0)  # an append found everything committed
    assert replicas.lagging(51, 5001.0, LAG_S) == ()
    assert replicas.lagging(51, 5011.0, LAG_S) == (1, 2)


def test_an_idle_follower_of_a_partition_that_cannot_commit_does_not_lag_at_the_next_record() -> None:
    replicas = replica_set(min_insync=3, isr=(0, 1))
    at(replicas, 1, 50, 50)  # acks=1 is appended all the same, and the high watermark stays behind
    replicas.note_whole(50, 5000.0)
    assert replicas.lagging(51, 5001.0, LAG_S) == ()
    replicas.note_whole(51, 5001.0)
    assert replicas.lagging(51, 5011.0, LAG_S) == (1,)


def test_a_member_that_keeps_pace_under_load_does_not_lag() -> None:
    replicas = replica_set()
    end = 0
    for step in range(100):
        now = 100.0 + step
        at(replicas, 1, end, end + 10, now)  # never at the end, yet always where the end was last time
        at(replicas, 2, 0, end + 10, now)
        end += 10
    assert replicas.lagging(end, 200.0, LAG_S) == (2,)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.sampled_from([1, 2]), st.integers(0, 20)),
        st.tuples(st.just("append"), st.just(0), st.integers(1, 5)),
        st.tuples(st.just("join"), st.sampled_from([1, 2]), st.just(0)),
        st.tuples(st.just("leave"), st.sampled_from([1, 2]), st.just(0)),
        st.tuples(st.just("commit"), st.just(0), st.just(0)),
        st.tuples(st.just("refuse"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(actions, st.integers(1, 3))
def test_the_high_watermark_is_the_twins(steps: list[tuple[str, int, int]], min_insync: int) -> None:
    replicas = ReplicaSet(0, (0, 1, 2), (0, 1, 2), 1, min_insync, now=0.0)
    ends = {1: -1, 2: -1}
    committed: set[int] = {0, 1, 2}
    proposed: set[int] | None = None
    own_end, epoch = 0, 1
    for what, node, amount in steps:
        if what == "fetch":
            ends[node] = min(amount, own_end)
            at(replicas, node, ends[node], own_end, 0.0)
        elif what == "append":
            own_end += amount
        elif what == "join" and proposed is None and node not in committed:
            proposed = committed | {node}
            replicas.propose_join(node)
        elif what == "leave" and proposed is None and node in committed:
            proposed = committed - {node}
            replicas.propose_leave([node])
        elif what == "commit" and proposed is not None:
            epoch += 1
            committed, proposed = proposed, None
            replicas.adopt((0, 1, 2), tuple(sorted(committed)), epoch)
        elif what == "refuse" and replicas.proposal is not None:
            proposed = None
            replicas.withdraw(replicas.proposal, 0.0)
        waited_for = (committed | (proposed or set())) - {0}
        expected = min([own_end, *(ends[node] for node in waited_for)]) if len(committed) >= min_insync else -1
        assert replicas.high_watermark(own_end, 0.0, LAG_S) == expected
        assert replicas.maximal_isr == committed | (proposed or set())


def test_a_replica_that_may_be_in_the_isr_has_to_have_fetched() -> None:
    replicas = ReplicaSet(0, (0, 1), (0,), 5, 1, now=100.0)
    assert replicas.isr_has_fetched_since(99.0)
    replicas.propose_join(1)  # the controllers may have taken it, and elected it since
    assert not replicas.isr_has_fetched_since(99.0)
    at(replicas, 1, 50, 50)
    assert replicas.isr_has_fetched_since(99.0)
