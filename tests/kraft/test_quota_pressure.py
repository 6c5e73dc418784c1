"""What pressure leaves tenants, and what other ways to split a quota would have done."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraft.controller.unfair_time import UnfairTime, Waited
from kraft.quotas.pressure import FULL, LEFT_MIN, OVER_LOOKS, Claim, QueueLimit, pressed
from kraft.quotas.what_if import Policy, TenantUsage, Throttled, replay, within_budget

RATES = st.floats(0, 1e12)
CLAIMS = st.dictionaries(
    st.integers(0, 50).map(str),
    st.builds(Claim, RATES, st.none() | st.floats(1, 1e12), st.floats(0, 1e9), st.booleans()),
    max_size=20,
)


@given(st.floats(1e6, 1e12), CLAIMS, RATES)
def test_tenants_together_stay_within_the_limit(limit: float, claims: dict[str, Claim], others: float) -> None:
    bounds = pressed(limit, claims, others)
    most = max(limit * FULL - others, limit * LEFT_MIN)
    if not bounds:
        assert sum(claim.rate for claim in claims.values()) <= most
        return
    assert bounds.keys() == claims.keys()
    use = sum(min(claim.demand, bounds[tenant]) for tenant, claim in claims.items())
    assert use <= most * 1.0001
    wanted = sum(min(claim.demand, claim.reserved) for claim in claims.values())
    part = min(most * (1 - LEFT_MIN) / wanted, 1.0) if wanted > 0 else 1.0
    for tenant, claim in claims.items():
        kept = claim.reserved if part >= 1.0 else min(claim.demand, claim.reserved) * part
        assert bounds[tenant] >= kept


@given(st.floats(1e6, 1e12), CLAIMS)
def test_tenants_that_are_held_have_the_same_part_of_what_is_allocated_to_them(
    limit: float, claims: dict[str, Claim]
) -> None:
    bounds = pressed(limit, claims)
    free = [
        bounds[tenant] / claim.allocated
        for tenant, claim in claims.items()
        if bounds and not claim.reserved and claim.allocated is not None
    ]
    assert not free or max(free) <= min(free) * 1.0001


@given(st.floats(1e6, 1e12), CLAIMS)
def test_the_order_of_tenants_does_not_matter(limit: float, claims: dict[str, Claim]) -> None:
    backwards = dict(reversed(claims.items()))
    assert pressed(limit, claims) == pytest.approx(pressed(limit, backwards))


def test_a_tenant_without_a_quota_counts_as_one_with_an_even_part_of_the_limit() -> None:
    claims = {"a": Claim(80, None, is_held=True), "b": Claim(80, 15, is_held=True), "c": Claim(3, None)}
    bounds = pressed(100, claims)
    assert bounds["a"] == pytest.approx(2 * bounds["b"]), "a third of 90 against 15"
    assert bounds["a"] + bounds["b"] == pytest.approx(90 - 3.3)


def test_reserved_rates_that_do_not_fit_are_cut_in_proportion() -> None:
    claims = {"a": Claim(100, 1, 100, is_held=True), "b": Claim(100, 1, 50, is_held=True), "c": Claim(0, 1, 900)}
    bounds = pressed(100, claims)
    assert bounds["a"] == pytest.approx(54), "two thirds of nine tenths of 90"
    assert bounds["b"] == pytest.approx(36), "27, and what is left, because it has less"


def test_reserved_rates_that_nobody_uses_are_there_for_others() -> None:
    claims = {str(number): Claim(10, 1, 1_000) for number in range(10)}
    assert sum(min(11, bound) for bound in pressed(100, claims).values()) == pytest.approx(90)


def test_clients_that_cannot_be_held_back_leave_tenants_a_tenth_at_least() -> None:
    claims = {"a": Claim(80, 100, is_held=True)}
    assert pressed(100, claims, others=40)["a"] == pytest.approx(50)
    assert pressed(100, claims, others=500)["a"] == pytest.approx(10)


def test_long_waits_cut_the_time_of_the_loop_by_a_fifth_and_give_it_back_slowly() -> None:
    queue = QueueLimit()
    assert queue.step(True, 0.9) is None, "a hiccup"
    assert queue.step(False, 0.9) is None
    assert [queue.step(True, 0.9) for _ in range(OVER_LOOKS - 1)] == [None]
    assert queue.step(True, 0.9) == pytest.approx(0.9 * 0.8)
    assert queue.step(True, 0.6) == pytest.approx(0.9 * 0.64), "of what was used when it began"
    assert queue.step(False, 0.6) == pytest.approx(0.9 * 0.64 * 1.05)
    later = [queue.step(False, 0.6) for _ in range(20)]
    assert later[-1] is None and queue.factor == 1.0
    assert all(a is None or b is None or b > a for a, b in pairwise(later))


@given(st.lists(st.booleans(), max_size=200), st.floats(0, 1))
def test_the_time_that_is_left_is_never_nothing(looks: list[bool], used: float) -> None:
    queue = QueueLimit()
    for is_over in looks:
        limit = queue.step(is_over, used)
        assert 0.05 <= queue.factor <= 1.0
        assert (limit is None) == (queue.factor == 1.0) and (limit is None or limit > 0)


def test_tenants_that_all_want_more_give_way_in_proportion() -> None:
    claims = {"a": Claim(50, 100, is_held=True), "b": Claim(60, 300, is_held=True)}
    bounds = pressed(100, claims)
    assert bounds == {"a": pytest.approx(22.5), "b": pytest.approx(67.5)}


def test_what_is_reserved_is_kept_and_what_one_does_not_need_is_there_for_others() -> None:
    bounds = pressed(100, {"a": Claim(80, 100), "b": Claim(30, 100, reserved=40), "c": Claim(1, 100)})
    assert bounds["b"] >= 40
    assert bounds["a"] == pytest.approx(90 - 33 - 1.1), "b wants 33, c little"


def test_below_the_limit_there_is_no_bound() -> None:
    assert pressed(100, {"a": Claim(80, 10), "b": Claim(10, 1)}) == {}
    assert pressed(100, {}) == {}


HOT = TenantUsage(900, [{0: 600, 1: 10, 2: 10}] * 60)
EVEN = TenantUsage(900, [{0: 100, 1: 100, 2: 100}] * 60)
GREEDY = TenantUsage(900, [{0: 900, 1: 900, 2: 900}] * 60)


def test_an_even_split_throttles_a_hot_broker_and_the_others_do_not() -> None:
    tenants = {"hot": HOT, "even": EVEN, "greedy": GREEDY}
    static = replay(Policy.STATIC, tenants, (0, 1, 2), 10.0)
    assert static == {"hot": Throttled(600, 600), "even": Throttled(), "greedy": Throttled(600, 0)}
    dynamic = replay(Policy.DYNAMIC, tenants, (0, 1, 2), 10.0)
    assert dynamic["hot"].unfair_s <= 20 and dynamic["even"] == Throttled()
    lazy = replay(Policy.LAZY, tenants, (0, 1, 2), 10.0)
    assert lazy["hot"] == Throttled() and lazy["greedy"].unfair_s == 0
    assert lazy["greedy"].all_s >= 580, "held to its quota"
    assert within_budget(static, 600.0) == pytest.approx(2 / 3) and within_budget(lazy, 600.0) == 1.0
    assert within_budget({}, 1.0) == 1.0


def test_a_replay_calls_the_time_unfair_that_the_controller_does() -> None:
    """After a time at its quota a tenant waits with reason for what it has used in advance."""
    usage = TenantUsage(900, [{0: 900, 1: 900, 2: 900}] * 60 + [{0: 600, 1: 10, 2: 10}] * 10)
    found = replay(Policy.STATIC, {"one": usage}, (0, 1, 2), 5.0)
    assert found == {"one": Throttled(350, 30)}, "in 20 of the last 50 s it works off 11 s that it was ahead"
    controller = UnfairTime()
    for number, offered in enumerate(usage.intervals, 1):
        used = (sum(min(rate, 300) for rate in offered.values()), 0, 0)
        has_reason = controller.is_over("one", (usage.quota, 0, 0), used, number * 5.0)
        controller.add("one", 5_000, 0 if has_reason else 5_000)
    assert controller.of("one") == Waited(350_000, 30_000)


def test_what_is_reserved_is_served_on_a_crowded_broker() -> None:
    noisy = TenantUsage(100_000, [{0: 3_000}] * 30)
    for reserved, expected in ((0, True), (1_800, False)):
        quiet = TenantUsage(1_000, [{0: 600, 1: 0, 2: 0}] * 30, reserved)
        found = replay(Policy.RESERVED, {"quiet": quiet, "noisy": noisy}, (0, 1, 2), 10.0, capacity=1_000)
        assert (found["quiet"].all_s > 0) is expected
