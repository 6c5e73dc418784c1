"""The arithmetic of exported offsets, beside sets of numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_offload.export.offset_spans import (
    Place,
    Spans,
    collide,
    decode_exported,
    encode_exported,
    merged,
    overlap,
    with_spans,
    without,
)
from spark_offload.export.tasks import NO_OFFSET, SplitDone, covered
from spark_offload.reading.splits import Split
from spark_offload.running.job import Problem

LOOSE = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def offsets(spans: Spans) -> set[int]:
    return {offset for first, end in spans for offset in range(first, end)}


@given(LOOSE, LOOSE)
def test_spans_are_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    left, right = merged(one), merged(other)
    loose = [span for span in one if span[0] < span[1]]
    assert offsets(left) == {offset for first, end in loose for offset in range(first, end)}
    assert offsets(without(left, right)) == offsets(left) - offsets(right)
    assert overlap(left, right) == bool(offsets(left) & offsets(right))
    assert sum(end - first for first, end in left) == len(offsets(left))
    place = Place("c/_/t-1", 0)
    assert collide({place: left}, {place: right}) == overlap(left, right)
    both = with_spans({place: left}, {place: right})
    assert offsets(both[place]) == offsets(left) | offsets(right)
    assert decode_exported(encode_exported(both)) == both


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"a": 1}', '{"a": {"x": []}}', '{"a": {"0": [[1]]}}', '{"a": {"0": [[5, 2]]}}', '{"a": {"0": 3}}'],
)
def test_nonsense_is_no_state(text: str) -> None:
    with pytest.raises(ValueError, match="offsets of an export"):
        decode_exported(text)


def split(start: int, end: int, low: int = 0, high: int = 100, partition: int = 0) -> Split:
    return Split("t", partition, "key", start, end, 1000, low, high, start, end)


@given(st.data())
def test_what_could_not_be_read_is_not_covered_and_nothing_comes_twice(data: st.DataObject) -> None:
    """Splits of one partition, each with its offsets, some of them without a row; any of them may be cut short."""
    cuts = sorted(data.draw(st.sets(st.integers(0, 40), min_size=2, max_size=8)))
    rows = data.draw(st.sets(st.integers(cuts[0], cuts[-1] - 1)))
    done: list[tuple[Split, SplitDone]] = []
    exported: set[int] = set()
    lost: set[int] = set()
    for first, end in pairwise(cuts):
        own = sorted(offset for offset in rows if first <= offset < end)
        broken = data.draw(st.booleans())
        read = own[: data.draw(st.integers(0, len(own)))] if broken else own
        exported |= set(read)
        lost |= set(own) - set(read)
        bounds = (read[0], read[-1]) if read else (NO_OFFSET, NO_OFFSET)
        # Pieces of one segment share its bounds.
        done.append((split(cuts[0], cuts[-1]), SplitDone(len(read), *bounds, Problem("x", "y") if broken else None)))
    found = offsets(covered(((cuts[0], cuts[-1]),), done))
    assert exported <= found
    assert not lost & found
