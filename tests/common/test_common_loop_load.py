"""The load of an event loop from the counters of its jobs: bounds, monotony, means that forget."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.loop_load import (
    BUSY_BELOW,
    MEAN_OVER_S,
    TURN_COST_S,
    WAITS_ABOVE,
    LoadMeans,
    LoopCounters,
    Sample,
    load,
    sample,
)

SHARES = st.floats(0, 1)
TIMES = st.floats(0, 1e3)
VARIATIONS = st.floats(0, 100)
WEIRD = st.floats(allow_nan=True, allow_infinity=True)


@given(SHARES, TIMES, TIMES, VARIATIONS)
def test_a_load_is_from_0_to_1_and_grows_with_waits(busy: float, wait_s: float, job_s: float, variation: float) -> None:
    found = load(busy, wait_s, job_s, variation)
    assert 0.0 <= found <= 1.0
    assert found <= load(busy, wait_s * 2 + 0.001, job_s, variation) + 1e-12


@given(TIMES, TIMES, VARIATIONS)
def test_below_one_half_only_the_busy_share_counts(wait_s: float, job_s: float, variation: float) -> None:
    assert load(0.3, wait_s, job_s, variation) == 0.3
    assert load(BUSY_BELOW, wait_s, job_s, variation) == BUSY_BELOW


@given(st.floats(0.01, 0.99), st.floats(1e-6, 1.0), VARIATIONS, st.floats(WAITS_ABOVE, 1.0))
def test_above_it_kingmans_formula_is_inverted(rho: float, job_s: float, variation: float, busy: float) -> None:
    wait_s = rho / (1 - rho) * (job_s * (1 + variation) / 2 + TURN_COST_S)
    assert load(busy, wait_s, job_s, variation) == pytest.approx(rho)


@given(TIMES, st.floats(1e-6, 1.0), VARIATIONS)
def test_the_more_turns_cost_the_less_a_wait_says(wait_s: float, job_s: float, variation: float) -> None:
    means = LoadMeans().with_sample(Sample(1.0, wait_s, 1.0, job_s, job_s * job_s * (1 + variation)), 5.0)
    assert means.load == means.load_where(TURN_COST_S)
    assert means.load_where(2 * TURN_COST_S) <= means.load <= means.load_where(0.0)


@given(TIMES, st.floats(1e-6, 1e3), VARIATIONS)
def test_the_two_are_blended_without_a_step(wait_s: float, job_s: float, variation: float) -> None:
    at = [load(BUSY_BELOW + n * 0.001, wait_s, job_s, variation) for n in range(301)]
    assert max(abs(one - other) for one, other in pairwise(at)) < 0.006


SAMPLES = st.tuples(
    st.builds(Sample, SHARES, TIMES, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e9)), st.floats(0.001, 600)
)


@given(st.lists(SAMPLES, min_size=1, max_size=30))
def test_means_stay_within_what_was_sampled(samples: list[tuple[Sample, float]]) -> None:
    means = LoadMeans()
    for one, passed_s in samples:
        means = means.with_sample(one, passed_s)
    busy, waits = [one.busy for one, _ in samples], [one.wait_s for one, _ in samples]
    assert min(busy) - 1e-9 <= means.busy <= max(busy) + 1e-9
    assert min(waits) * (1 - 1e-9) <= means.wait_s <= max(waits) * (1 + 1e-9)
    assert means.seen_s == pytest.approx(sum(passed_s for _, passed_s in samples))
    assert means.service_variation >= 0.0
    assert 0.0 <= means.load <= 1.0


@given(st.integers(1, 40), st.integers(1, 5))
def test_how_often_one_looks_does_not_matter(count: int, times: int) -> None:
    """A lost report changes nothing under steady load."""
    one = Sample(0.8, 0.01, 1_000.0, 2.0, 0.01)
    rare = Sample(0.8, 0.01, 1_000.0 * times, 2.0 * times, 0.01 * times)
    often, seldom = LoadMeans(), LoadMeans()
    for _ in range(count):
        for _ in range(times):
            often = often.with_sample(one, 5.0)
        seldom = seldom.with_sample(rare, 5.0 * times)
    assert often.load == pytest.approx(seldom.load)
    assert often.weight == pytest.approx(seldom.weight)


def test_a_mean_forgets_as_unix_load_does_and_begins_with_what_it_saw() -> None:
    busy = LoadMeans().with_sample(Sample(1.0, 0.1, 10.0, 1.0, 0.1), 5.0)
    assert busy.busy == pytest.approx(1.0)
    assert busy.wait_s == pytest.approx(0.1)
    full = LoadMeans()
    for _ in range(1_000):
        full = full.with_sample(Sample(1.0, 0.1, 10.0, 1.0, 0.1), 5.0)
    rested = full.with_sample(Sample(0.0, 0.0, 0.0, 0.0, 0.0), MEAN_OVER_S)
    assert rested.busy == pytest.approx(1 / math.e)
    assert rested.wait_s == pytest.approx(0.1 / math.e)
    assert rested.job_s == pytest.approx(full.job_s)


@given(st.builds(LoopCounters, st.integers(-5, 5), *[WEIRD] * 4))
def test_only_sane_counters_are_samples_that_make_sense(counters: LoopCounters) -> None:
    if not counters.are_sane:
        return
    added = counters.since(LoopCounters())
    assert added is not None
    one = sample(added, 5.0)
    assert one is not None
    assert 0.0 <= one.busy <= 1.0
    assert one.wait_s >= 0.0
    assert sample(added, 0.0) is None


def test_a_counter_that_has_fallen_says_nothing() -> None:
    assert LoopCounters(1, 1.0).since(LoopCounters(1, 2.0)) is None
    assert LoopCounters(3, 2.0, 1.0, 1.0, 5.0).since(LoopCounters(1, 1.0)) == (2, 1.0, 1.0, 1.0, 5.0)
