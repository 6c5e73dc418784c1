"""The token bucket: its rate and its stock and no more, waits that suffice, debt and its forgiveness."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.token_bucket import TokenBucket

RATES = st.floats(0.5, 1_000)
PAUSES = st.lists(st.floats(0, 2), min_size=1, max_size=60)


@given(RATES, st.floats(1, 100), PAUSES, st.integers(1, 1_000))
def test_what_is_there_is_taken_and_no_more(rate: float, burst: float, pauses: list[float], tries: int) -> None:
    bucket, now, taken = TokenBucket(rate, burst, 0.0), 0.0, 0
    for pause in pauses:
        now += pause
        for _ in range(tries):
            if bucket.take(1, now):
                assert bucket.take(1, now) > 0
                break
            taken += 1
    assert taken <= burst + rate * now + 1e-6 * (1 + taken)


@given(
    rate=st.integers(1, 10**9),
    burst_s=st.floats(0, 2),
    pieces=st.lists(st.tuples(st.integers(1, 10**8), st.floats(0, 5)), min_size=1, max_size=50),
)
def test_with_debt_no_span_carries_more_than_the_rate_and_one_burst(
    rate: int, burst_s: float, pieces: list[tuple[int, float]]
) -> None:
    now = 100.0
    bucket = TokenBucket(rate, rate * burst_s, now)
    moved: list[tuple[float, int]] = []
    for count, pause in pieces:
        now += pause
        bucket.spend(count, now)
        moved.append((now + bucket.wait_s(), count))
    for first in range(len(moved)):
        total = 0
        for at, count in moved[first:]:
            total += count  # the first piece was paid for before the span began
            paid = (at - moved[first][0] + burst_s) * rate + moved[first][1]
            assert total <= paid * (1 + 1e-6) + 1


def test_a_connection_each_second_is_accepted_at_its_rate() -> None:
    bucket, now, taken = TokenBucket(50, 50, 0.0), 0.0, 0
    while now < 10:
        bucket.spend(1, now)
        now += max(bucket.wait_s(1), 0.001)
        taken += 1
    assert 50 * 10 <= taken <= 50 * 11 + 1


@given(RATES, st.floats(0, 100), st.lists(st.floats(0, 500), max_size=10), st.floats(0, 100))
def test_after_the_wait_there_is_what_was_wanted(rate: float, burst: float, spent: list[float], wanted: float) -> None:
    bucket = TokenBucket(rate, burst, 5.0)
    for count in spent:
        bucket.spend(count, 5.0)
    wanted = min(wanted, burst)
    bucket.refill(5.0 + bucket.wait_s(wanted))
    assert bucket.level >= wanted - 1e-6 * (1 + sum(spent))


@given(RATES, st.floats(0, 10), st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 2)), min_size=1, max_size=30))
def test_no_debt_is_longer_than_what_is_not_forgiven(
    rate: float, debt_s: float, spent: list[tuple[float, float]]
) -> None:
    bucket, now = TokenBucket(rate, rate, 0.0, rate * debt_s), 0.0
    for count, pause in spent:
        now += pause
        bucket.spend(count, now)
        assert -rate * debt_s <= bucket.level <= bucket.burst
        assert bucket.wait_s() <= debt_s * (1 + 1e-9)


def test_stock_and_debt_survive_a_change_of_the_rate() -> None:
    bucket = TokenBucket(100, 100, 0.0)
    bucket.change(10, 10)
    assert bucket.take(10, 0.0) == 0.0
    assert bucket.take(1, 0.0) == pytest.approx(0.1)
    bucket.spend(20, 0.0)
    bucket.change(40, 40)
    assert bucket.wait_s() == pytest.approx(0.5)
    assert not bucket.is_full(1.4)
    assert bucket.is_full(1.5)
    assert TokenBucket(0, 0, 0.0).wait_s(1) == float("inf")
