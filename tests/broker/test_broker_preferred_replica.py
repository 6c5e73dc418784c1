"""Which replica a consumer is sent to."""

from __future__ import annotations

from broker.replication.preferred_replica import ReadableReplica, preferred_replica


def replica(node: int, rack: str, end: int = 100, start: int = 0, caught_up_s: float = 0.0) -> ReadableReplica:
    return ReadableReplica(node, rack, start, end, caught_up_s)


def test_a_client_without_a_rack_or_in_the_leaders_rack_stays_at_the_leader() -> None:
    followers = [replica(1, "a"), replica(2, "b")]
    assert preferred_replica("", 0, "a", followers, 5) is None
    assert preferred_replica("a", 0, "a", followers, 5) is None


def test_a_client_goes_to_its_own_rack() -> None:
    assert preferred_replica("b", 0, "a", [replica(1, "c"), replica(2, "b")], 5) == 2
    assert preferred_replica("d", 0, "a", [replica(1, "c"), replica(2, "b")], 5) is None


def test_a_replica_without_the_offset_is_no_choice() -> None:
    assert preferred_replica("b", 0, "a", [replica(1, "b", end=4)], 5) is None
    assert preferred_replica("b", 0, "a", [replica(1, "b", end=9, start=6)], 5) is None
    assert preferred_replica("b", 0, "a", [replica(1, "b", end=9, start=-1)], 5) is None
    assert preferred_replica("b", 0, "a", [replica(1, "b", end=5)], 5) == 1


def test_the_most_complete_then_the_most_recent_then_the_lowest_wins() -> None:
    assert preferred_replica("b", 0, "a", [replica(1, "b", end=90), replica(2, "b", end=99)], 5) == 2
    assert preferred_replica("b", 0, "a", [replica(1, "b", caught_up_s=2.0), replica(2, "b", caught_up_s=1.0)], 5) == 2
    assert preferred_replica("b", 0, "a", [replica(3, "b"), replica(2, "b")], 5) == 2
