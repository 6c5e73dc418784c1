"""The balancer in the simulated cluster: controllers die in the middle of plans, and mistakes of its are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.sim.balance_scenario import BalancedCluster
from tests.sim.bugs import BALANCE_BUGS, planted
from tests.sim.cluster import run_plan
from tests.sim.nemesis import Fault
from tests.sim.plan import Plan, draw_plan
from tests.sim.report import Report

pytestmark = pytest.mark.simulation

SEEDS = range(3)
SEEDS_MAX = 6


def plan_of(seed: int) -> Plan:
    """One controller after another dies, and a broker, while the faults of the seed happen too."""
    plan = replace(draw_plan(seed), brokers=4, moves=True, tenant=False, tier=None, peeks=False, flushes_each=False)
    deaths = [Fault(900 + 700 * number, "kill", f"controller-{number % 3}", "", 350) for number in range(5)]
    return replace(plan, faults=(*deaths, Fault(1_500, "kill", "broker-1", "", 500)))


def balanced(seed: int) -> Report:
    return run_plan(plan_of(seed), make=BalancedCluster, counts_work=False)


def test_controllers_die_in_the_middle_of_plans_and_no_record_is_lost() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        report = balanced(seed)
        assert report.failure == ""
        counts += report.coverage
    for name, least in {
        "balance: DRAIN": 3, "balance: ADD": 3, "balance: CANCEL": 4, "balance moves DONE": 8,
        "balance moves of DRAIN": 6, "terms": 9,
    }.items():  # fmt: skip
        assert counts[name] >= least, (name, counts)


@pytest.mark.long
@pytest.mark.parametrize("bug", BALANCE_BUGS)
def test_a_planted_mistake_of_the_balancer_is_found(bug: str) -> None:
    for seed in range(SEEDS_MAX):
        with planted(bug):
            report = balanced(seed)
        if report.failure:
            assert "BalanceWatch" in report.failure, report.failure
            assert balanced(seed).failure == "", "the right program fails as well"
            return
    pytest.fail(f"{bug} is not found in {SEEDS_MAX} seeds")
