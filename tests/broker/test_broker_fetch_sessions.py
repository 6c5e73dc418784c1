"""The session cache: who may evict whom, and a session against a twin that remembers everything it was told."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.replication.fetch_sessions import EPOCH_MAX, EVICTION_S, FetchSession, FetchSessionCache, next_epoch
from common.errors import ErrorCode, ProtocolError
from wire.hot_codec import FetchCall, FetchPart

VERSION = 12


def part(index: int, offset: int = 0) -> FetchPart:
    return FetchPart(b"topic", index, -1, offset, -1, -1, 1_000)


def call(size: int = 1, replica: int = -1, session_id: int = 0, epoch: int = 0) -> FetchCall:
    parts = [part(index) for index in range(size)]
    return FetchCall(replica, -1, 500, 1, 1_000, 0, session_id, epoch, parts, [], b"", None)


def filled(cache: FetchSessionCache, request: FetchCall, now: float) -> FetchSession | None:
    assert cache.resume(request, VERSION, now) is None
    session = cache.create(request, VERSION, now)
    if session is not None:
        session.update(request.parts, ())
    return session


def test_a_full_cache_gives_no_session_to_one_worth_no_more() -> None:
    cache = FetchSessionCache(2, random.Random(1))
    assert filled(cache, call(5), 0.0)
    assert filled(cache, call(3), 0.0)
    assert filled(cache, call(9), EVICTION_S / 2) is None, "both are young and in use"
    assert (len(cache), cache.evictions) == (2, 0)


def test_a_larger_session_takes_the_place_of_the_smallest_old_one() -> None:
    cache = FetchSessionCache(2, random.Random(1))
    large, small = filled(cache, call(5), 0.0), filled(cache, call(3), 0.0)
    assert large is not None and small is not None
    late = EVICTION_S + 1
    for session in (large, small):  # in use, yet old
        cache.resume(call(0, session_id=session.id, epoch=session.epoch), VERSION, late)
    assert filled(cache, call(3), late) is None, "no larger than the smallest"
    assert filled(cache, call(4), late)
    assert large.id in cache and small.id not in cache


def test_an_unused_session_goes_first() -> None:
    cache = FetchSessionCache(2, random.Random(1))
    unused, used = filled(cache, call(50), 0.0), filled(cache, call(3), 0.0)
    assert unused is not None and used is not None
    late = EVICTION_S + 1
    cache.resume(call(0, session_id=used.id, epoch=used.epoch), VERSION, late)
    assert filled(cache, call(1), late)
    assert used.id in cache and unused.id not in cache


def test_followers_evict_consumers_at_once_and_never_the_other_way_round() -> None:
    cache = FetchSessionCache(2, random.Random(1))
    follower, consumer = filled(cache, call(1, replica=1), 0.0), filled(cache, call(90), 0.0)
    assert follower is not None and consumer is not None
    assert filled(cache, call(1, replica=2), 1.0)
    assert consumer.id not in cache
    assert filled(cache, call(90), 1.0) is None
    assert follower.id in cache


def test_a_session_belongs_to_its_kind_of_reader() -> None:
    cache = FetchSessionCache(2, random.Random(1))
    session = filled(cache, call(1, replica=1), 0.0)
    assert session is not None
    with pytest.raises(ProtocolError) as refused:
        cache.resume(call(1, session_id=session.id, epoch=1), VERSION, 0.0)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_no_slots_mean_no_sessions() -> None:
    cache = FetchSessionCache(0, random.Random(1))
    assert filled(cache, call(3), 0.0) is None


def test_a_forgotten_position_stays_forgotten_whoever_still_tells_it_of_news() -> None:
    """A quota may: else the session would answer with two rows for the partition, one from where it stood before."""
    session = filled(FetchSessionCache(2, random.Random(1)), call(2), 0.0)
    assert session is not None
    before = session.positions[b"topic", 0]
    session.update([part(0, 7)], [(b"topic", 0)])
    session.update([part(0, 7)], [])
    before.owner.position_changed(before, committed=False)
    assert [position.offset for position in session.changed if position.index == 0] == [7]


@pytest.mark.parametrize(
    ("length", "size", "is_kept"), [(260, 1_000, True), (16, 1_000, True), (16, 1_001, False), (0x7FFF, 100, False)]
)
def test_a_session_is_kept_without_its_connection_if_it_is_small(length: int, size: int, is_kept: bool) -> None:
    """A thousand slots would keep gigabytes of names that no topic has."""
    cache = FetchSessionCache(5, random.Random(1))
    parts = [FetchPart(b"%0*d" % (length, number), 0, -1, 0, -1, -1, 1_000) for number in range(size)]
    session = filled(cache, replace(call(), parts=parts), 0.0)
    assert session is not None
    session.connection_closed()
    assert (session.id in cache) is is_kept


def test_epochs_go_round() -> None:
    assert (next_epoch(1), next_epoch(EPOCH_MAX)) == (2, 1)


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=4),
            st.lists(st.integers(0, 5), max_size=3),
        ),
        max_size=20,
    )
)
def test_a_session_remembers_what_it_was_told(steps: list[tuple[list[tuple[int, int]], list[int]]]) -> None:
    session = FetchSession(1, -1, False, 0.0)
    twin: dict[int, int] = {}
    for named, forgotten in steps:
        positions = session.update(
            [part(index, offset) for index, offset in named], [(b"topic", index) for index in forgotten]
        )
        twin |= dict(named)
        for index in forgotten:
            twin.pop(index, None)
        assert {key[1]: position.offset for key, position in session.positions.items()} == twin
        assert {position.index for position in positions} == {index for index, _ in named} - set(forgotten)
        assert all(position in session.changed for position in positions)
        assert all(position is session.positions[b"topic", position.index] for position in session.changed)
