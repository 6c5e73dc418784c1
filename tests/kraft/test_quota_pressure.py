"""What pressure leaves tenants, and what other ways to split a quota would have done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraft.quotas.pressure import FULL, Claim, pressed, used
from kraft.quotas.what_if import Policy, TenantUsage, Throttled, replay, within_budget

RATES = st.floats(0, 1e12)
CLAIMS = st.dictionaries(
    st.integers(0, 50).map(str), st.builds(Claim, RATES, RATES, st.floats(0, 1e9), st.booleans()), max_size=20
)


@given(st.floats(1e6, 1e12), CLAIMS)
def test_tenants_together_stay_within_the_limit(limit: float, claims: dict[str, Claim]) -> None:
    bounds = pressed(limit, claims)
    if not bounds:
        assert sum(claim.rate for claim in claims.values()) <= limit * FULL
        return
    assert bounds.keys() == claims.keys()
    reserved = sum(claim.reserved for claim in claims.values())
    use = sum(min(claim.demand, bounds[tenant]) for tenant, claim in claims.items())
    assert use <= max(limit * FULL, reserved) * 1.0001
    assert all(bounds[tenant] >= claim.reserved for tenant, claim in claims.items())


def test_tenants_that_all_want_more_give_way_in_proportion() -> None:
    claims = {"a": Claim(50, 100, is_held=True), "b": Claim(60, 300, is_held=True)}
    bounds = pressed(100, claims)
    assert bounds == {"a": pytest.approx(22.5), "b": pytest.approx(67.5)}


def test_what_is_reserved_is_kept_and_what_one_does_not_need_is_there_for_others() -> None:
    bounds = pressed(100, {"a": Claim(80, 100), "b": Claim(30, 100, reserved=40), "c": Claim(1, 100)})
    assert bounds["b"] >= 40
    assert bounds["a"] == pytest.approx(90 - 33 - 1.1), "b wants 33, c little"
    assert used(10.0, {"a": Claim(5, 100, reserved=3)}) == pytest.approx(5.5)


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


def test_what_is_reserved_is_served_on_a_crowded_broker() -> None:
    noisy = TenantUsage(100_000, [{0: 3_000}] * 30)
    for reserved, expected in ((0, True), (1_800, False)):
        quiet = TenantUsage(1_000, [{0: 600, 1: 0, 2: 0}] * 30, reserved)
        found = replay(Policy.RESERVED, {"quiet": quiet, "noisy": noisy}, (0, 1, 2), 10.0, capacity=1_000)
        assert (found["quiet"].all_s > 0) is expected
