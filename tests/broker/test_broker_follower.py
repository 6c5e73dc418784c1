"""Truncation by epochs against a model of logs as lists of epochs: it always finds the common prefix."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.replication.follower import truncation_offset
from storage.log.leader_epochs import EpochEnd, LeaderEpochCache


def cache_of(log: list[int]) -> LeaderEpochCache:
    """The epoch cache of a log in which record i was written in epoch `log[i]`."""
    cache = LeaderEpochCache()
    for offset, epoch in enumerate(log):
        cache.assign(epoch, offset)
    return cache


def settle(leader: list[int], follower: list[int], leader_epoch: int) -> list[int]:
    """Fetch and truncate until the leader finds no divergence; what is left of the follower."""
    leader_cache = cache_of(leader)
    leader_cache.assign(leader_epoch, len(leader))
    for _ in range(len(follower) + 2):
        cache = cache_of(follower)
        if not follower:
            return follower
        found = leader_cache.end_offset_for(cache.latest_epoch, len(leader))
        if found.epoch == cache.latest_epoch and found.end_offset >= len(follower):
            return follower
        own = cache.end_offset_for(found.epoch, len(follower))
        offset = truncation_offset(found, own, len(follower))
        assert offset < len(follower), "each round makes progress"
        follower = follower[:offset]
    raise AssertionError("no end of truncating")


def test_a_follower_without_the_leaders_epoch_cuts_to_its_own_older_one() -> None:
    assert truncation_offset(EpochEnd(5, 30), EpochEnd(3, 20), 40) == 20


def test_a_follower_with_the_same_epoch_cuts_to_the_earlier_end() -> None:
    assert truncation_offset(EpochEnd(3, 25), EpochEnd(3, 30), 40) == 25
    assert truncation_offset(EpochEnd(3, 35), EpochEnd(3, 30), 40) == 30


def test_a_follower_that_knows_no_epoch_takes_the_leaders_word() -> None:
    assert truncation_offset(EpochEnd(3, 25), EpochEnd(-1, -1), 40) == 25


@given(
    prefix=st.lists(st.integers(0, 3), max_size=8),
    leader_tail=st.lists(st.integers(4, 9), max_size=6),
    follower_tail=st.lists(st.integers(4, 9), max_size=6),
)
def test_what_is_left_is_the_common_prefix(prefix: list[int], leader_tail: list[int], follower_tail: list[int]) -> None:
    """An epoch has one leader, so two logs never hold different records of one epoch at one offset."""
    even = sorted(2 * epoch for epoch in leader_tail)
    odd = sorted(2 * epoch + 1 for epoch in follower_tail)
    common = sorted(2 * epoch for epoch in prefix)
    leader, follower = common + even, common + odd
    left = settle(leader, follower, leader_epoch=100)
    assert left == follower[: len(left)]
    assert left == leader[: len(left)], "nothing that the leader lacks stays"
    assert len(left) >= len(common) if common or not odd else left == []


@given(common=st.lists(st.integers(0, 5), min_size=1, max_size=8), missing=st.integers(0, 5))
def test_a_follower_that_only_lacks_the_end_cuts_nothing(common: list[int], missing: int) -> None:
    leader = sorted(common)
    follower = leader[: max(len(leader) - missing, 0)]
    assert settle(leader, follower, leader_epoch=100) == follower
