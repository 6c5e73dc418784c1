"""Backoff: each pause twice the one before, within its bounds, spread by the source of chance that is given."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.backoff import AROUND, FULL, SLIGHT, UPPER_HALF, Backoff, Jitter, Retries

SECONDS = st.floats(1e-3, 1e3)
JITTERS = st.sampled_from([FULL, UPPER_HALF, AROUND, SLIGHT, Jitter(1.0, 2.0)])


@given(SECONDS, SECONDS, st.integers(1, 10**9))
def test_pauses_double_from_the_first_to_the_bound(first_s: float, max_s: float, failures: int) -> None:
    backoff = Backoff(first_s, max_s)
    assert backoff.pause_s(1) == min(first_s, max_s)
    assert backoff.pause_s(failures + 1) == min(2 * backoff.pause_s(failures), max_s)


def test_many_failures_end_at_the_bound_and_none_counts_as_one() -> None:
    backoff = Backoff(0.1, 2.0)
    assert [backoff.pause_s(failures) for failures in (0, 1, 2, 3, 6, 10**12)] == [0.1, 0.1, 0.2, 0.4, 2.0, 2.0]
    assert Backoff(0.1, 0.0).pause_s(3) == 0.0


@given(SECONDS, SECONDS, JITTERS, st.integers(1, 100), st.integers())
def test_jitter_stays_within_its_factors(
    first_s: float, max_s: float, jitter: Jitter, failures: int, seed: int
) -> None:
    backoff = Backoff(first_s, max_s, jitter)
    pause_s, jittered_s = backoff.pause_s(failures), backoff.jittered_s(failures, Random(seed))
    assert pause_s * jitter.low * (1 - 1e-9) <= jittered_s <= pause_s * jitter.high * (1 + 1e-9)


@pytest.mark.parametrize("jitter", [FULL, UPPER_HALF, AROUND, SLIGHT])
def test_jitter_uses_its_whole_range(jitter: Jitter) -> None:
    chance, width = Random(1), jitter.high - jitter.low
    spread = [jitter.spread(1.0, chance) for _ in range(1000)]
    assert min(spread) < jitter.low + width / 10
    assert max(spread) > jitter.high - width / 10


@given(st.lists(st.booleans(), max_size=40), st.integers())
def test_a_success_begins_a_new_row(outcomes: list[bool], seed: int) -> None:
    backoff, row = Backoff(0.05, 1.0), 0
    retries, same = Retries(backoff, Random(seed)), Random(seed)
    for succeeded in outcomes:
        if succeeded:
            row = 0
            retries.succeeded()
        else:
            row += 1
            assert retries.failed() == backoff.jittered_s(row, same)
        assert retries.failures == row
