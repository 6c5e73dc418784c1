"""The split of a quota: it adds up, gives every broker something, and rests where the load does."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraft.quotas.shares import Demand, believed_share, demand_of, even_share, granted, is_bound, shares, total

LAZY = 800
QUOTAS = st.one_of(st.integers(1, 20), st.integers(1, 1 << 40), st.integers((1 << 53) - 2, (1 << 63) - 1))
RATES = st.one_of(st.just(0), st.integers(-(1 << 63), 1 << 70), st.integers(0, 1 << 41))
DEMANDS = st.dictionaries(st.integers(0, 10_000), st.builds(Demand, RATES, st.booleans()), min_size=1, max_size=24)


@given(QUOTAS, DEMANDS)
def test_shares_are_positive_and_add_up_to_the_quota(quota: int, demands: dict[int, Demand]) -> None:
    found = shares(quota, demands)
    assert found.keys() == demands.keys()
    assert min(found.values()) >= 1
    assert sum(found.values()) == max(quota, len(demands))


@given(QUOTAS, DEMANDS, st.randoms(use_true_random=False))
def test_the_order_of_brokers_does_not_matter(quota: int, demands: dict[int, Demand], rng: random.Random) -> None:
    order = list(demands)
    rng.shuffle(order)
    assert shares(quota, {broker: demands[broker] for broker in order}) == shares(quota, demands)


@given(QUOTAS, DEMANDS)
def test_a_busier_broker_has_no_smaller_share(quota: int, demands: dict[int, Demand]) -> None:
    found = shares(quota, demands)
    alike = sorted((demand.rate, found[broker]) for broker, demand in demands.items() if not demand.throttled)
    # where the quota is some bytes, the broker that gives up the last one may be any of the largest
    assert all(low[1] <= high[1] + 1 for low, high in itertools.pairwise(alike))


@given(QUOTAS, DEMANDS)
def test_shares_that_are_all_used_up_stay_as_they_are(quota: int, demands: dict[int, Demand]) -> None:
    found = shares(quota, demands)
    for _ in range(100):
        again = shares(quota, {broker: Demand(share, throttled=True) for broker, share in found.items()})
        if again == found:
            return
        found = again
    pytest.fail("the shares never rest")


@given(
    st.integers(10_000, 1 << 40),
    st.dictionaries(st.integers(0, 50), st.integers(0, 1 << 41), min_size=1, max_size=12),
)
def test_steady_load_rests_below_the_lazy_ratio_and_is_served_above_it(quota: int, offered: dict[int, int]) -> None:
    """Brokers hold the tenant to its shares, and the shares follow what the brokers then report.

    Near the quota two brokers may take turns at being throttled, because a throttled rate stands for more demand. What
    the tenant gets on average is near its quota all the same.
    """
    found = dict.fromkeys(offered, even_share(quota, len(offered)))
    served: list[int] = []
    for _ in range(200):
        used = {broker: Demand(min(load, found[broker]), load > found[broker]) for broker, load in offered.items()}
        served.append(sum(demand.rate for demand in used.values()))
        again = shares(quota, used)
        assert sum(again.values()) == quota
        rests, found = again == found, again
    if sum(offered.values()) * 10 <= quota * 8:
        assert rests
        assert all(load <= found[broker] for broker, load in offered.items()), "throttled below the quota"
    assert sum(served[100:]) * 10 >= 100 * min(sum(offered.values()), quota) * 9


def test_a_share_follows_the_load_and_leaves_a_floor_elsewhere() -> None:
    found = shares(900_000, {0: Demand(800_000), 1: Demand(0), 2: Demand(0)})
    assert found == {0: 870_330, 1: 14_835, 2: 14_835}
    found = shares(1_000, {0: Demand(300, throttled=True), 1: Demand(300)})
    assert found == {0: 577, 1: 423}, "1.5 against 1.1 times the rate"


@pytest.mark.parametrize("rate", [1 << 62, 1 << 100])
def test_an_absurd_report_leaves_others_their_part(rate: int) -> None:
    found = shares(1_000_000, {0: Demand(rate), 1: Demand(500_000), 2: Demand(-rate)})
    assert found[1] >= 300_000 and found[2] >= 10_000


def test_shares_begin_at_the_lazy_ratio_and_end_clearly_below() -> None:
    assert [is_bound(1_000, used, LAZY, was_bound=False) for used in (799, 800)] == [False, True]
    assert [is_bound(1_000, used, LAZY, was_bound=True) for used in (699, 700)] == [False, True]
    assert is_bound(1, 0, 50, was_bound=True), "a ratio below the hysteresis keeps the shares"
    assert total(100, [Demand(90), Demand(1 << 60), Demand(-5)]) == 190


class Grants:
    """Brokers that hold shares, and a controller that knows of each the largest that it may hold."""

    def __init__(self, quota: int) -> None:
        self.quota = quota
        self.held: dict[int, int] = {}
        self.possible: dict[int, int] = {}

    def answer(self, broker: int, target: int, arrives: bool) -> None:
        """A report with what the broker holds, and its answer."""
        holds = self.held.get(broker)
        elsewhere = sum(share for other, share in self.possible.items() if other != broker)
        told = granted(target, self.quota, elsewhere, holds)
        if told is None:
            return
        self.possible[broker] = max(told, holds or 0)
        if arrives:
            self.held[broker] = self.possible[broker] = told


STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.booleans(), st.lists(st.integers(0, 1_000), min_size=5, max_size=5)), max_size=60
)


@given(st.integers(100, 1_000_000), STEPS)
def test_shares_in_effect_never_exceed_the_quota(quota: int, steps: list[tuple[int, bool, list[int]]]) -> None:
    """Whoever reports, whatever is lost on the way, and however the demand moves meanwhile."""
    grants = Grants(quota)
    for broker, arrives, rates in steps:
        targets = shares(quota, {one: Demand(rate * quota // 1_000) for one, rate in enumerate(rates)})
        grants.answer(broker, targets[broker], arrives)
        assert sum(grants.held.values()) <= quota
    for broker in range(5):
        grants.answer(broker, even_share(quota, 5), arrives=True)  # each lets go of what is too much
    for broker in range(5):
        grants.answer(broker, even_share(quota, 5), arrives=True)
    assert grants.held == dict.fromkeys(range(5), even_share(quota, 5))


def test_a_broker_without_a_share_gets_none_that_would_stop_its_clients() -> None:
    assert granted(target=500, quota=1_000, elsewhere=900, holds=None) is None
    assert granted(target=500, quota=1_000, elsewhere=700, holds=None) == 300
    assert granted(target=500, quota=1_000, elsewhere=900, holds=100) == 100
    assert granted(target=500, quota=100, elsewhere=200, holds=400) == 1, "the quota was lowered"


@given(st.lists(st.tuples(st.integers(0, 2_000), st.booleans()), min_size=1, max_size=20))
def test_clients_that_wait_are_not_taken_for_idle_between_two_bursts(looks: list[tuple[int, bool]]) -> None:
    before, share = 0, 1_000
    for rate, waited in looks:
        demand = demand_of(rate, waited, share, before)
        assert demand.rate >= rate and not (demand.throttled and not waited)
        if waited:
            assert demand.rate >= before * 9 // 10
        else:
            assert demand == Demand(rate)
        before = demand.rate


@given(st.integers(0, 1 << 62), st.none() | st.integers(0, 1 << 62), st.integers(1, 1 << 40), st.integers(1, 100))
def test_a_reported_share_counts_for_no_more_than_the_quota_and_what_was_given(
    share: int, given: int | None, quota: int, brokers: int
) -> None:
    found = believed_share(share, given, quota, brokers)
    assert 0 <= found <= min(quota, share if given is None else min(share, given))
    if given is None and share <= quota:
        assert found == share, "of an earlier controller"
    assert believed_share(share, given, 0, brokers) == (share if given is None else min(share, given))
