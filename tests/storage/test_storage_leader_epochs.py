"""The epoch cache against a plain list that is searched from end to end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.log.leader_epochs import UNDEFINED, EpochEnd, LeaderEpochCache

END = 60
steps = st.lists(
    st.tuples(st.sampled_from(["assign", "end", "start"]), st.integers(0, 12), st.integers(0, END)), max_size=25
)


def twin_end_offset(entries: list[tuple[int, int]], epoch: int) -> EpochEnd:
    if epoch < 0 or not entries or epoch > entries[-1][0]:
        return UNDEFINED
    if epoch == entries[-1][0]:
        return EpochEnd(epoch, END)
    below = [known for known, _ in entries if known <= epoch]
    return EpochEnd(below[-1] if below else epoch, next(start for known, start in entries if known > epoch))


@given(steps)
def test_it_behaves_like_a_plain_list(operations: list[tuple[str, int, int]]) -> None:
    cache = LeaderEpochCache()
    twin: list[tuple[int, int]] = []
    for name, epoch, offset in operations:
        if name == "assign":
            cache.assign(epoch, offset)
            if not twin or twin[-1][0] != epoch or twin[-1][1] > offset:
                twin = [entry for entry in twin if entry[0] < epoch and entry[1] < offset] + [(epoch, offset)]
        elif name == "end":
            cache.truncate_from_end(offset)
            twin = [entry for entry in twin if entry[1] < offset]
        else:
            cache.truncate_from_start(offset)
            gone = [entry for entry in twin if entry[1] <= offset]
            twin = ([(gone[-1][0], offset)] if gone else []) + [entry for entry in twin if entry[1] > offset]
        assert cache.entries() == twin
        assert twin == sorted(set(twin))
    for epoch in range(-1, 14):
        assert cache.end_offset_for(epoch, END) == twin_end_offset(twin, epoch)
    for offset in range(END):
        assert cache.epoch_of(offset) == next((known for known, start in reversed(twin) if start <= offset), -1)
    assert LeaderEpochCache.decode(cache.encode()).entries() == twin


def test_the_checkpoint_is_kafkas_text() -> None:
    cache = LeaderEpochCache()
    assert cache.encode() == b"0\n0\n"
    cache.assign(0, 0)
    cache.assign(5, 17)
    assert cache.encode() == b"0\n2\n0 0\n5 17\n"
    assert LeaderEpochCache.decode(cache.encode()).take_unsaved() is None


@pytest.mark.parametrize("data", [b"", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0\n", b"0\n1\n-1 0\n", b"0\nx\n", b"\xff"])
def test_a_damaged_checkpoint_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        LeaderEpochCache.decode(data)


def test_changes_are_noted_until_they_are_saved() -> None:
    cache = LeaderEpochCache()
    assert cache.assign(1, 0)
    assert cache.take_unsaved() == cache.encode()
    assert not cache.assign(1, 9)
    cache.truncate_from_end(5)
    assert cache.take_unsaved() is None
    cache.truncate_from_start(3)
    assert cache.take_unsaved() is None, "whoever reads the file drops what lies below the log's start"
    assert (cache.latest_epoch, cache.entries()) == (1, [(1, 3)])
    assert cache.assign(2, 9)
    cache.take_unsaved()
    cache.not_saved()
    assert cache.take_unsaved() == cache.encode()
    cache.truncate_from_end(9)
    assert cache.take_unsaved() == b"0\n1\n1 3\n"
    assert cache.restore([(0, 1)])
    assert cache.take_unsaved() == b"0\n2\n0 1\n1 3\n"
