"""The computed availability of a month of incidents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bench.kora.availability as month
from bench.kora.availability import MONTH_S, Incident, availability, month_of_freezes, times_for

RESULT = Path(month.__file__).parent / "results" / "stuck_disk.json"


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


def test_the_recorded_month_is_that_of_the_recorded_gaps() -> None:
    found = json.loads(RESULT.read_text())
    assert found["month"] == month_of_freezes(found["without"]["gap_s"], found["with"]["gap_s"])
    assert found["month"]["with"] >= found["month"]["goal"]
    assert found["with"]["lost"] == found["without"]["lost"] == 0
