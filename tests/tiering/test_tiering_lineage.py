"""Lineage: which segments lie on a partition's chain of leader epochs."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.common.call_count import counted_calls
from tests.tiering.segments import segment
from tests.tiering.tier_world import TOPIC_ID, TierWorld
from tiering.bucket.segment import TRANSACTION_INDEX, Section, SegmentState, TieredSegment
from tiering.shard.lineage import fits, follows
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.tier_records import decode_segment, encode_segment

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


def aborting(base: int, end: int) -> TieredSegment:
    plain = segment(base, end)
    index = Section(plain.log_bytes + 50, 34, 3)
    return replace(plain, sections={**plain.sections, TRANSACTION_INDEX: index})


@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=12),
    st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["gone", "other", "again"])), max_size=8),
    st.integers(0, 50),
)
def test_the_next_segment_with_aborted_transactions_is_the_one_that_a_walk_finds(
    shape: list[tuple[int, bool]], changes: list[tuple[int, str]], log_start: int
) -> None:
    tier, made, at = PartitionTier(TOPIC_ID, 0), [], 0
    for length, aborts in shape:
        made.append(aborting(at, at + length) if aborts else segment(at, at + length))
        at += length
    for one in made:
        tier.replay_segment(one.id, encode_segment(one, 0))
    for number, how in changes:
        if number < len(made):
            one = made[number]
            if how == "again":
                one = made[number] = segment(one.base_offset, one.end_offset)
            state = SegmentState.COPY_FINISHED if how == "again" else SegmentState.DELETE_STARTED
            tier.replay_segment(one.id, None if how == "gone" else encode_segment(replace(one, state=state), 0))
    tier.record = replace(tier.record, log_start_offset=log_start)
    for offset in range(at + 2):
        walked = (one for one in tier.segments(offset) if TRANSACTION_INDEX in one.sections)
        assert tier.find_aborting(offset) == (next(walked, None) if offset >= log_start else None)


def test_who_looks_for_aborted_transactions_looks_at_no_other_segment() -> None:
    """Each read asks, and a partition has thousands of segments."""
    tier = PartitionTier(TOPIC_ID, 0)
    for base in range(0, 1_000, 10):
        one = aborting(base, base + 10) if base == 900 else segment(base, base + 10)
        tier.replay_segment(one.id, encode_segment(one, base))
    with counted_calls(decode_segment) as looked:
        found = [tier.find_aborting(offset) for offset in (0, 909, 910)]
    assert [one and one.base_offset for one in found] == [900, 900, None]
    assert 1 <= looked.calls <= 2


def test_readers_at_a_few_segments_have_each_decoded_once() -> None:
    tier = PartitionTier(TOPIC_ID, 0)
    for base in range(0, 100, 10):
        one = segment(base, base + 10)
        tier.replay_segment(one.id, encode_segment(one, base))
    with counted_calls(decode_segment) as looked:
        for offset in range(20):
            found, following = tier.find(offset), tier.find(offset // 10 * 10 + 10)
            assert found is not None and found.base_offset == offset // 10 * 10
            assert following is not None and following.base_offset == found.end_offset
    assert looked.calls == 3
    one = replace(segment(10, 20), log_bytes=7)
    tier.replay_segment(one.id, encode_segment(one, 9))
    assert tier.find(15) == one, "what was written anew is not remembered"


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
