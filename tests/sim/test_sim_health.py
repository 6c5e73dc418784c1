"""Sick brokers in the simulator: put aside by whichever controller is active, one at a time, and taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.cluster import run_plan
from tests.sim.nemesis import Fault
from tests.sim.plan import Plan, draw_plan

pytestmark = pytest.mark.simulation


def plan(seed: int, *faults: Fault) -> Plan:
    quiet = replace(
        draw_plan(seed), brokers=3, partitions=6, pause_s=0.06, moves=False, tier=None, tenant=False, health=True
    )
    return replace(quiet, faults=tuple(sorted(faults)))


def test_a_broker_that_replies_late_leaves_the_isr_and_returns() -> None:
    """It begins when it has been measured for a while: a broker without a past is not judged."""
    report = run_plan(plan(3, Fault(1_300, "slow_replies", "broker-1", "", 3_300)))
    assert report.failure == ""
    assert report.coverage["health: slow"] == report.coverage["health: healthy"] == 1


def test_controllers_that_fail_one_after_another_keep_what_one_of_them_put_aside() -> None:
    kills = [Fault(2_600 + 500 * number, "kill", f"controller-{number}", "", 300) for number in range(3)]
    report = run_plan(plan(3, Fault(0, "no_clients", "broker-1", "", 4_400), *kills))
    assert report.failure == ""
    assert report.coverage["health: demoted"] == 1
    assert report.coverage["health: healthy"] == 0, "it has not heard clients for long enough yet"


def test_two_brokers_that_no_client_reaches_are_left_alone() -> None:
    faults = [Fault(0, "no_clients", f"broker-{broker}", "", 4_000) for broker in (0, 1)]
    report = run_plan(plan(3, *faults))
    assert report.failure == ""
    assert report.coverage["health: demoted"] == 0
