"""Which brokers are slower than their peers, by what leaders measure of their followers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kraft.health.slowness import AckDelay, SlowLimits, Slowness

INTERVAL_S = 5.0
LIMITS = SlowLimits(score=6)


class Looks:
    """Looks at brokers whose leaders report every interval: `truth` is how long each broker takes to acknowledge, and
    a leader that is slow itself adds that to what it measures of others."""

    def __init__(self, brokers: int = 3, limits: SlowLimits = LIMITS) -> None:
        self.slowness = Slowness(limits, INTERVAL_S)
        self.brokers = list(range(brokers))
        self.now = 0.0

    def look(self, truth: dict[int, float] | None = None, times: int = 1, slow: tuple[int, ...] = ()) -> None:
        delays = {broker: (truth or {}).get(broker, 2.0) for broker in self.brokers}
        for _ in range(times):
            self.now += INTERVAL_S
            for leader in self.brokers:
                if leader in slow:
                    continue  # it leads nothing
                own = delays[leader] if delays[leader] > 50 else 0.0
                measured = {f: AckDelay(100, max(delay, own)) for f, delay in delays.items() if f != leader}
                self.slowness.reported(leader, measured, self.now)
            self.slowness.look(self.brokers, slow, self.now)


def known_well() -> Looks:
    looks = Looks()
    looks.look(times=LIMITS.score)
    return looks


def test_a_broker_that_stays_slow_is_found_and_its_peers_are_not() -> None:
    looks = known_well()
    looks.look({1: 400.0}, times=LIMITS.score - 1)
    assert looks.slowness.slow() == []
    assert looks.slowness.doubtful() == [1]
    looks.look({1: 400.0})
    assert looks.slowness.slow() == [1], "although it finds its own followers slow when it leads"
    assert "400 ms" in looks.slowness.evidence(1)


def test_it_is_well_only_after_as_many_good_looks() -> None:
    looks = known_well()
    looks.look({1: 400.0}, times=10 * LIMITS.score)
    looks.look(times=LIMITS.score - 1, slow=(1,))
    assert not looks.slowness.is_well(1)
    looks.look(slow=(1,))
    assert looks.slowness.is_well(1)


def test_a_short_stall_has_no_consequence() -> None:
    looks = known_well()
    for _ in range(20):
        looks.look({1: 400.0}, times=3)
        looks.look(times=3)
        assert looks.slowness.slow() == []


def test_a_broker_that_was_always_that_far_away_is_not_slow() -> None:
    looks = Looks()
    looks.look({1: 80.0}, times=20 * LIMITS.score)
    assert looks.slowness.slow() == []


def test_all_brokers_slow_at_once_are_not_slower_than_their_peers() -> None:
    looks = known_well()
    looks.look({0: 400.0, 1: 420.0, 2: 410.0}, times=2 * LIMITS.score)
    assert looks.slowness.slow() == looks.slowness.doubtful() == []


def test_of_two_brokers_neither_can_be_told_from_the_other() -> None:
    looks = Looks(brokers=2)
    looks.look(times=LIMITS.score)
    looks.look({1: 400.0}, times=2 * LIMITS.score)
    assert looks.slowness.slow() == []


def test_fast_brokers_are_never_slow_however_fast_their_peers_are() -> None:
    looks = known_well()
    looks.look({1: 49.0}, times=2 * LIMITS.score)
    assert looks.slowness.slow() == []


def test_a_new_controller_takes_over_who_was_slow() -> None:
    looks = known_well()
    looks.slowness.restart([1])
    assert looks.slowness.slow() == [1]
    looks.look({1: 400.0}, times=3 * LIMITS.score, slow=(1,))
    assert not looks.slowness.is_well(1), "its past is not known, but its peers are"
    looks.look(times=LIMITS.score, slow=(1,))
    assert looks.slowness.is_well(1)


def test_what_is_no_longer_reported_does_not_count() -> None:
    looks = known_well()
    looks.look({1: 400.0})
    for _ in range(2 * LIMITS.score):
        looks.now += INTERVAL_S
        looks.slowness.look(looks.brokers, (), looks.now)
    assert looks.slowness.slow() == []
    assert looks.slowness.readings == {}


def test_one_leaders_few_or_absurd_samples_do_not_count() -> None:
    looks = Looks()
    for delay in (AckDelay(1, 9000.0), AckDelay(-5, 9000.0), AckDelay(100, -1.0), AckDelay(100, float("inf"))):
        looks.slowness.reported(0, {1: delay, 0: AckDelay(100, 5.0)}, 0.0)
        looks.slowness.look([0, 1, 2], (), 0.0)
        assert looks.slowness.readings == {}


def test_an_operators_pardon_begins_again() -> None:
    looks = known_well()
    looks.look({1: 400.0}, times=LIMITS.score)
    looks.slowness.pardon(1)
    assert looks.slowness.is_well(1)


@given(
    st.lists(
        st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 4)), st.floats(0, 1e4), max_size=10), max_size=40
    ),
    st.randoms(),
)
def test_scores_move_by_one_within_bounds_whatever_the_order_of_reports(
    rounds: list[dict[tuple[int, int], float]], random: object
) -> None:
    one, other = Slowness(LIMITS, INTERVAL_S), Slowness(LIMITS, INTERVAL_S)
    now, before = 0.0, dict[int, int]()
    for reports in rounds:
        now += INTERVAL_S
        by_leader: dict[int, dict[int, AckDelay]] = {}
        for (leader, follower), delay in reports.items():
            by_leader.setdefault(leader, {})[follower] = AckDelay(50, delay)
        for leader, delays in by_leader.items():
            one.reported(leader, delays, now)
        for leader, delays in reversed(by_leader.items()):
            other.reported(leader, delays, now)
        one.look(range(5), (), now)
        other.look(range(4, -1, -1), (), now)
        assert one.scores == other.scores
        for broker, score in one.scores.items():
            assert abs(score - before.get(broker, 0)) <= 1
            assert 0 <= score <= LIMITS.score
        before = dict(one.scores)
