"""The arithmetic of stream offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_offload.reading.stream_offsets import Place, decode_offset, encode_offset, limited, place_of
from tiering.bucket.keys import PartitionPath

PLACE = place_of(PartitionPath("a-topic", bytes(15) + b"\1", 3))
OTHER = Place(PLACE.directory, 12)


def test_an_offset_says_which_topic_it_is_of() -> None:
    encoded = encode_offset({OTHER: 7, PLACE: 5})
    assert encoded == {"a-topic-" + "0" * 31 + "1": {"3": 5, "12": 7}}
    assert decode_offset(encoded) == {PLACE: 5, OTHER: 7}
    assert PLACE.words == "a-topic-3"
    with pytest.raises(ValueError, match="a-topic"):
        decode_offset({"a-topic": {"0": 1}})


places = st.dictionaries(st.integers(0, 8), st.tuples(st.integers(0, 1_000), st.integers(0, 1_000)), min_size=1)


@given(sizes=places, rows_max=st.integers(1, 3_000))
def test_a_limit_is_kept_and_something_always_moves(sizes: dict[int, tuple[int, int]], rows_max: int) -> None:
    start = {Place("t", number): first for number, (first, _) in sizes.items()}
    end = {Place("t", number): first + count for number, (first, count) in sizes.items()}
    found = limited(start, end, rows_max)
    moved = sum(found[place] - start[place] for place in start)
    assert found.keys() == start.keys()
    assert all(start[place] <= found[place] <= end[place] for place in start)
    assert moved == min(rows_max, sum(count for _, count in sizes.values()))
