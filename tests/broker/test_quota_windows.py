"""Windows of quotas count as Apache Kafka's do: a transcript of its Rate over SampledStat is the oracle."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.quotas.meters import PAUSE_MS_MAX, Meter
from broker.quotas.windows import RateWindow, WindowForm

FORM = WindowForm(11, 1.0)


@dataclass
class Sample:
    begin: float
    last: float
    value: float = 0.0


class KafkasRate:
    """SampledStat and Rate of Apache Kafka 4.1, in seconds; an expired sample leaves, instead of being reset."""

    def __init__(self, samples: int, sample_s: float) -> None:
        self.count, self.size_s = samples, sample_s
        self.samples: list[Sample] = []

    def record(self, value: float, now: float) -> None:
        if not self.samples or now - self.samples[-1].begin >= self.size_s:
            self.samples = [*self.samples, Sample(now, now)][-self.count - 1 :]
        self.samples[-1].value += value
        self.samples[-1].last = now

    def measure(self, now: float) -> float:
        self.samples = [one for one in self.samples if now - one.last < self.count * self.size_s]
        elapsed = now - min((one.begin for one in self.samples), default=now)
        full = int(elapsed / self.size_s)
        if full < self.count - 1:
            elapsed += (self.count - 1 - full) * self.size_s
        return sum(one.value for one in self.samples) / max(elapsed, 0.001)


steps = st.lists(
    st.tuples(
        st.floats(0, 3, allow_nan=False) | st.sampled_from([0.0, 1.0, 0.999, 11.0, 12.5, 60.0]),
        st.integers(0, 1 << 53),
    ),
    min_size=1,
    max_size=60,
)


@given(steps, st.integers(1, 13), st.sampled_from([1.0, 2.0, 30.0]))
@example([(0.0, 2**53 + 2), (1.0, 999_999_999), (2.0, 0)], 3, 1.0).via("a sum that was above 2^53 forgot small parts")
def test_a_window_has_the_rate_of_kafka(uses: list[tuple[float, int]], samples: int, sample_s: float) -> None:
    window, oracle, now = RateWindow(WindowForm(samples, sample_s)), KafkasRate(samples, sample_s), 1000.0
    for gap_s, used in uses:
        now += gap_s
        assert window.rate(now) == pytest.approx(oracle.measure(now), rel=1e-9)
        window.record(used, now)
        oracle.record(used, now)
        assert window.rate(now) == pytest.approx(oracle.measure(now), rel=1e-9)


@given(steps, st.floats(1e-3, 1e15))
def test_the_pause_is_what_kafka_makes_of_the_rate(uses: list[tuple[float, int]], bound: float) -> None:
    window, now = RateWindow(FORM), 0.0
    for gap_s, used in uses:
        now += gap_s
        window.record(used, now)
        total, elapsed = window.total(now), window.elapsed(now)
        expected = (total / elapsed - bound) / bound * elapsed
        assert window.pause_s(bound, now) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seconds_worth", [0.01, 0.1, 0.5, 1.0, 1.3])
@pytest.mark.parametrize("round_trip_s", [0.0005, 0.005])
def test_who_waits_out_each_pause_is_held_to_the_bound_in_the_long_run(
    seconds_worth: float, round_trip_s: float
) -> None:
    """The bursts of the beginning return with each window for a while, as in Apache Kafka."""
    meter, bound, now, used, before = Meter(FORM), 1e6, 0.0, 0.0, 0.0
    meter.limit("quota", bound)
    while now < 300:
        meter.record(seconds_worth * bound, now)
        used += seconds_worth * bound
        if now < 100:
            before = used
        now += meter.pause_ms(now) / 1000 + round_trip_s
    assert used - before == pytest.approx(200 * bound, rel=0.03)
    assert before <= (100 + 1.5 * FORM.full_s) * bound


@given(st.lists(st.floats(0.001, 30), min_size=1, max_size=40), st.floats(1, 1e12))
def test_what_waits_is_let_in_at_last_and_no_pause_is_longer_than_the_longest(
    batches: list[float], bound: float
) -> None:
    """Also a batch of more than a window's worth: it has to wait for an empty window."""
    meter, now = Meter(FORM), 0.0
    meter.limit("quota", bound)
    for worth in batches:
        began = now
        while pause_ms := meter.refuses_ms(now, worth * bound):
            assert 0 < pause_ms <= PAUSE_MS_MAX
            now += pause_ms / 1000
        assert now - began <= PAUSE_MS_MAX / 1000 + FORM.samples * FORM.sample_s
        meter.record(worth * bound, now)


@given(
    st.integers(1, 12),
    st.sampled_from([0.3, 1.0, 7.0]),
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 12)), min_size=1, max_size=60),
)
def test_a_pause_is_due_only_where_recording_says_that_it_may_be(
    samples: int, sample_s: float, uses: list[tuple[float, float]]
) -> None:
    meter, now, bound = Meter(WindowForm(samples, sample_s)), 0.0, 1_000.0
    meter.limit("quota", bound)
    for gap_s, worth in uses:
        now += gap_s
        may_be_over = meter.record(worth * bound, now)
        assert may_be_over or not meter.pause_ms(now)


def test_the_lowest_of_several_bounds_counts_and_gives_the_reason() -> None:
    meter = Meter(FORM)
    meter.record(2_000, 0.0)
    assert (meter.bound, meter.pause_ms(0.0)) == (None, 0)
    meter.limit("share", 100)
    meter.limit("pressure", 50)
    assert (meter.bound, meter.reason) == (50, "pressure")
    assert meter.pause_ms(0.0) == PAUSE_MS_MAX, "2,000 at 50 a second, of which ten seconds' worth were free"
    meter.limit("pressure", None)
    assert (meter.bound, meter.reason, meter.pause_ms(0.0)) == (100, "share", PAUSE_MS_MAX)
    meter.limit("share", 190)
    assert meter.pause_ms(0.0) == 526
    meter.limit("share", 1 << 60)
    assert meter.pause_ms(0.0) == 0


def test_a_bound_of_nothing_lets_nothing_in_but_ends_no_client() -> None:
    meter = Meter(FORM)
    meter.limit("share", 0)
    assert meter.pause_ms(0.0) == 0, "nothing was used"
    meter.record(1, 0.0)
    assert meter.pause_ms(0.0) == meter.refuses_ms(0.0, 1) == PAUSE_MS_MAX


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 3)), max_size=30))
def test_room_is_between_a_sample_and_a_window(uses: list[tuple[float, float]]) -> None:
    meter, now, bound = Meter(FORM), 0.0, 1_000.0
    assert meter.room(now, FORM) == float("inf")
    meter.limit("quota", bound)
    assert meter.room(now, FORM) == bound * FORM.full_s
    for gap_s, worth in uses:
        now += gap_s
        meter.record(worth * bound, now)
        assert bound * FORM.sample_s <= meter.room(now, FORM) <= bound * FORM.full_s
