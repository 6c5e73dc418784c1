"""The computed availability of a month of incidents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.kora.availability import BEFORE, MONTH_S, Incident, availability, month_of_freezes, times_for


def test_a_quiet_month_is_whole() -> None:
    assert availability([]) == 1
    assert availability([Incident(0, 60.0)]) == 1
    assert availability([Incident(1, 2 * MONTH_S)]) == 0


def test_incidents_add_up() -> None:
    assert availability([Incident(2, 10.0), Incident(1, 30.0)], 1_000) == pytest.approx(0.95)
    with pytest.raises(ValueError, match="is not possible"):
        availability([Incident(1, -1.0)])


@given(st.floats(0.01, 10_000), st.floats(0.5, 1))
def test_as_many_incidents_as_the_wanted_availability_bears(gap_s: float, wanted: float) -> None:
    times = times_for(gap_s, wanted)
    assert availability([Incident(times, gap_s)]) >= wanted - 1e-9
    assert availability([Incident(times + 2, gap_s)]) < wanted


def test_a_month_has_as_many_freezes_as_spoil_it_without_care() -> None:
    found = month_of_freezes(60.0, 10.6)
    assert found["without"] >= BEFORE
    assert found["with"] == pytest.approx(1 - found["freezes"] * 10.6 / MONTH_S, abs=1e-6)
    assert found["with"] >= found["goal"]
