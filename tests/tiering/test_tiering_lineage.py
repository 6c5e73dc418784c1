"""Lineage: which segments lie on a partition's chain of leader epochs."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.tiering.segments import segment
from tests.tiering.tier_world import TOPIC_ID, TierWorld
from tiering.lineage import fits, follows
from tiering.partition_tier import PartitionTier
from tiering.tier_records import encode_segment

CHAIN = [(1, 0), (3, 100), (4, 150), (8, 300)]


@pytest.mark.parametrize(
    ("epochs", "end"),
    [
        ([(1, 0)], 100),
        ([(1, 50)], 90),
        ([(1, 50), (3, 100)], 150),
        ([(3, 100), (4, 150)], 300),
        ([(8, 300)], 10_000),
        ([(8, 400)], 10_000),
    ],
)
def test_a_segment_of_the_chain_fits(epochs: list[tuple[int, int]], end: int) -> None:
    assert fits(epochs, end, CHAIN)


@pytest.mark.parametrize(
    ("epochs", "end"),
    [
        ([], 10),
        ([(2, 100)], 150),  # an epoch that the partition never had
        ([(1, 0)], 101),  # its epoch ended within it
        ([(3, 99)], 150),  # it began earlier than the partition's
        ([(1, 50), (3, 110)], 150),  # an epoch of another start
        ([(1, 50), (4, 150)], 200),  # an epoch left out
        ([(8, 300), (9, 400)], 500),  # beyond the chain
    ],
)
def test_a_segment_of_another_history_does_not(epochs: list[tuple[int, int]], end: int) -> None:
    assert not fits(epochs, end, CHAIN)


def test_a_segment_follows_another() -> None:
    older = [(1, 0), (3, 50)]
    assert follows([(3, 50)], older, 100)
    assert follows([(3, 100)], older, 100)
    assert follows([(4, 100)], older, 100)
    assert not follows([(3, 40)], older, 100)
    assert not follows([(4, 99)], older, 100)
    assert not follows([(2, 100)], older, 100)


def test_what_is_found_by_offset_and_by_time() -> None:
    world = TierWorld()
    world.claim(1)
    world.copy([0, 10, 20], 10)
    world.move_log_start(5)
    tier = world.tier

    def base(found: object) -> object:
        return getattr(found, "base_offset", None)

    assert [base(tier.find(offset)) for offset in (4, 5, 9, 10, 29, 30)] == [None, 0, 0, 10, 20, None]

    assert base(tier.find(15, [(2, 0)])) is None, "another lineage"
    assert base(tier.find(15, [(1, 10)])) == 10
    assert [base(tier.find_timestamp(at)) for at in (0, 1_010, 1_011, 1_030, 1_031)] == [0, 0, 10, 20, None]
    assert base(tier.find_timestamp(0, 10)) == 10
    assert base(next(tier.by_max_timestamp())) == 20
    assert tier.log_bytes == 3_000
    assert [row[:2] for row in tier.sizes()] == [(0, 10), (10, 20), (20, 30)]


def test_a_partition_of_ten_thousand_segments_is_small() -> None:
    tracemalloc.start()
    tier = PartitionTier(TOPIC_ID, 0)
    before, _ = tracemalloc.get_traced_memory()
    for base in range(10_000):
        one = segment(base * 1_000_000_000, (base + 1) * 1_000_000_000)
        tier.replay_segment(one.id, encode_segment(one, base))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / 10_000 < 400
