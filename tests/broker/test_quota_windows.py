"""Windows of quotas begin as Apache Kafka's do (a transcript of its Rate over SampledStat is the oracle), then hold
clients to their bounds more closely."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quotas.meters import PAUSE_MS_MAX, Meter
from broker.quotas.windows import UseWindow, WindowForm
from broker.security.usage import ThrottleReason

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
        return sum(one.value for one in self.samples) / self.elapsed(now)

    def elapsed(self, now: float) -> float:
        elapsed = now - min((one.begin for one in self.samples), default=now)
        full = int(elapsed / self.size_s)
        if full < self.count - 1:
            elapsed += (self.count - 1 - full) * self.size_s
        return max(elapsed, 0.001)


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 30)), min_size=1, max_size=60),
    st.integers(2, 13),
    st.sampled_from([1.0, 2.0, 30.0]),
)
def test_the_first_window_after_a_rest_is_kafkas(
    uses: list[tuple[float, float]], samples: int, sample_s: float
) -> None:
    """But no pause ends later than a sample after it."""
    form = WindowForm(samples, sample_s)
    window, oracle, now = UseWindow(form), KafkasRate(samples, sample_s), 0.0
    for gap_s, worth_s in [(0.0, uses[0][1]), *uses[1:]]:
        now += gap_s
        if now and (now >= form.full_s or window.is_at_rest(now)):
            break
        window.use(worth_s, now)
        oracle.record(worth_s, now)
        kafkas_s = (oracle.measure(now) - 1) * oracle.elapsed(now)
        least_s = min(kafkas_s, form.full_s, form.full_s + sample_s - now)
        assert window.owed_s(now) == pytest.approx(least_s, rel=1e-9, abs=1e-6)
        if kafkas_s > form.full_s:
            break


@pytest.mark.parametrize("seconds_worth", [0.01, 0.1, 0.5, 1.0, 1.3, 8.0])
@pytest.mark.parametrize("round_trip_s", [0.0005, 0.005])
@pytest.mark.parametrize("reads", [False, True])
def test_who_always_has_more_gets_the_bound_in_each_window_after_the_first(
    seconds_worth: float, round_trip_s: float, reads: bool
) -> None:
    meter, bound, now = Meter(FORM), 1e6, 0.0
    meter.limit(now, ThrottleReason.CLIENT_QUOTA, bound)
    used = [0.0] * 10
    while now < 110:
        if reads and (pause_ms := meter.refuses_ms(now, seconds_worth * bound)):
            now += pause_ms / 1000 + round_trip_s
            continue
        used[int(now // 11)] += seconds_worth
        meter.record(seconds_worth * bound, now)
        now += meter.pause_ms(now) / 1000 + round_trip_s
    slack = seconds_worth + FORM.sample_s + 0.1
    assert used[1:] == pytest.approx([11] * 9, abs=slack)
    assert sum(used[1:]) == pytest.approx(99, abs=slack), "nothing is lost"
    assert used[0] <= 1.6 * FORM.full_s if seconds_worth <= FORM.sample_s else used[0] <= 3 * FORM.full_s


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 1)), max_size=80), st.floats(1, 1e12))
def test_no_span_has_more_than_its_time_and_two_windows(uses: list[tuple[float, float]], bound: float) -> None:
    """Whatever the pattern of a client that waits as it is asked to, in requests of a sample's worth at most."""
    meter, now = Meter(FORM), 0.0
    meter.limit(now, ThrottleReason.CLIENT_QUOTA, bound)
    moments: list[tuple[float, float]] = []
    for gap_s, worth_s in uses:
        now += gap_s + meter.pause_ms(now) / 1000
        meter.record(worth_s * bound, now)
        moments.append((now, worth_s))
        total = 0.0
        for began, worth in reversed(moments):
            total += worth
            assert total <= now - began + 2 * FORM.full_s


@given(st.lists(st.tuples(st.floats(0, 40), st.floats(0.001, 3)), max_size=80), st.booleans())
def test_a_bound_under_which_nothing_is_saved_up_gives_each_span_its_time(
    uses: list[tuple[float, float]], was_bound: bool
) -> None:
    """Whatever the rests between requests are; beyond it comes the request that is the last."""
    meter, now, bound = Meter(FORM), 100.0, 1_000.0
    if was_bound:
        meter.limit(0.0, ThrottleReason.SHARE, 6 * bound)
    meter.limit(now, ThrottleReason.SHARE, bound, saves=False)
    moments: list[tuple[float, float]] = []
    for gap_s, worth_s in uses:
        now += gap_s + meter.pause_ms(now) / 1000
        total = 0.0
        for began, worth in reversed(moments):
            total += worth
            assert total <= now - began + 0.001 * len(moments)
        meter.record(worth_s * bound, now)
        moments.append((now, worth_s))
    meter.limit(now, ThrottleReason.SHARE, bound)
    now += meter.pause_ms(now) / 1000 + FORM.full_s
    meter.record(FORM.full_s * bound, now)
    assert meter.pause_ms(now) == 0, "saved up again"


@given(st.lists(st.floats(0.001, 30), min_size=1, max_size=40), st.floats(1, 1e12))
def test_no_pause_is_longer_than_the_longest_and_what_is_owed_ends(batches: list[float], bound: float) -> None:
    """Also a batch of more than a window's worth: what is beyond two of them is forgiven."""
    meter, now = Meter(FORM), 0.0
    meter.limit(now, ThrottleReason.CLIENT_QUOTA, bound)
    for worth in batches:
        began = now
        while pause_ms := meter.pause_ms(now):
            assert 0 < pause_ms <= PAUSE_MS_MAX
            now += pause_ms / 1000
        assert now - began <= 2 * FORM.full_s + 0.001
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
    meter.limit(0.0, ThrottleReason.CLIENT_QUOTA, bound)
    for gap_s, worth in uses:
        now += gap_s
        meter.record(worth * bound, now)
        assert meter.is_near or not meter.pause_ms(now)


def test_the_lowest_of_several_bounds_counts_and_gives_the_reason() -> None:
    meter = Meter(FORM)
    meter.record(2_000, 0.0)
    assert (meter.bound, meter.pause_ms(0.0)) == (None, 0)
    meter.limit(0.0, ThrottleReason.SHARE, 100)
    meter.limit(0.0, ThrottleReason.PRESSURE, 50)
    assert (meter.bound, meter.reason, meter.pause_ms(0.0)) == (50, "pressure", 0), "without a bound nothing counted"
    meter.record(2_000, 0.0)
    assert meter.pause_ms(0.0) == PAUSE_MS_MAX, "2,000 at 50 a second, of which a window's worth was free"
    meter.limit(0.0, ThrottleReason.PRESSURE, None)
    assert (meter.bound, meter.reason, meter.pause_ms(0.0)) == (100, "share", 0), "what was owed at 50 is less now"
    meter.record(1_000, 0.0)
    assert meter.pause_ms(0.0) == PAUSE_MS_MAX
    meter.limit(0.0, ThrottleReason.SHARE, 190)
    assert meter.pause_ms(0.0) == 526
    meter.limit(0.0, ThrottleReason.SHARE, 100)
    assert meter.pause_ms(0.0) == 526, "a bound that falls is no fault of the client"
    meter.limit(0.0, ThrottleReason.SHARE, 1 << 60)
    assert meter.pause_ms(0.0) == 0


def test_a_bound_of_nothing_lets_nothing_in_but_ends_no_client() -> None:
    meter = Meter(FORM)
    meter.limit(0.0, ThrottleReason.SHARE, 0)
    assert meter.pause_ms(0.0) == 0, "nothing was used"
    meter.record(1, 0.0)
    assert meter.pause_ms(0.0) == PAUSE_MS_MAX


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 3)), max_size=30))
def test_room_is_between_a_sample_and_a_window(uses: list[tuple[float, float]]) -> None:
    meter, now, bound = Meter(FORM), 0.0, 1_000.0
    assert meter.room(now, FORM) == float("inf")
    meter.limit(0.0, ThrottleReason.CLIENT_QUOTA, bound)
    assert meter.room(now, FORM) == bound * FORM.full_s
    for gap_s, worth in uses:
        now += gap_s
        meter.record(worth * bound, now)
        assert bound * FORM.sample_s <= meter.room(now, FORM) <= bound * FORM.full_s
