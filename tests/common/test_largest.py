"""The largest of many values are those of a sorted list, and nothing is lost of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.largest import Largest


@given(st.lists(st.integers(0, 20)), st.integers(0, 8))
def test_as_a_sorted_list(values: list[int], count: int) -> None:
    largest: Largest[int] = Largest(count)
    for key, value in enumerate(values):
        largest.add(key, value)
    expected = sorted(enumerate(values), key=lambda pair: (-pair[1], pair[0]))
    assert largest.kept() == expected[:count]
    assert largest.rest == pytest.approx(sum(value for _, value in expected[count:]))
    assert largest.is_cut == (len(values) > count)
