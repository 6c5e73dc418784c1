"""Seeds with transactions hold what the invariants say, and mistakes with transactions are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.sim.bugs import planted
from tests.sim.cluster import run_plan, run_seed
from tests.sim.nemesis import Fault
from tests.sim.plan import SMALL_CHUNK_BYTES, Plan, TierPlan, TransactionsPlan, draw_plan
from tests.sim.tenants import BROKERS
from tests.sim.transaction_bugs import TRANSACTION_BUGS
from tests.sim.world import moved_memory

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(600)]
SEEDS_MAX, SEEDS = 12, 8
FAILED_ONCE = (25, 1063, 1113, 730_159, 730_315, 734_789, 735_032, 736_013, 736_446, 736_620, 760_668, 794_198)
FOUND_BY = ("InvariantBroken", "NotServing", "SimulationFailure")
REACHED = {
    "markers: abort": 200,
    "markers: commit": 400,
    "acknowledged: commit": 200,
    "pending offsets": 200,
    "late batches: INVALID_TXN_STATE": 2,
    "late batches: INVALID_PRODUCER_EPOCH": 2,
    "end: CONCURRENT_TRANSACTIONS": 1,
    "init: CONCURRENT_TRANSACTIONS": 10,
    "offsets unstable": 1,
    "producers fenced": 20,
    "segments copied": 20,
    "topics deleted in transactions": 2,
    "floors of coordinator epochs": 1,
}


def coordinators_die(seed: int) -> list[Fault]:
    """One broker after another, and what it says to others is late before that."""
    names = [f"broker-{(seed + number) % 3}" for number in range(3)]
    slow = [Fault(0, "slow_link", one, other, 4_400) for one in names for other in names if one != other]
    kills = [Fault(500 + 1_300 * number, "kill", name, "", 500) for number, name in enumerate(names)]
    return sorted(slow + kills)


def old_coordinators_die() -> list[Fault]:
    """In the cell that the tenant leaves, so that leader epochs there rise above those where it comes to."""
    return [Fault(100 + 700 * number, "kill", f"broker-{number % 3}", "", 300) for number in range(6)]


def plan_of(bug: str, seed: int) -> Plan:
    plan = replace(
        draw_plan(seed, transactions=True), brokers=3, tier=None, moves=False, health=False, tenant=False, faults=()
    )
    clients = TransactionsPlan(last_epoch=3 if bug == "keep_a_used_up_id" else 32_766, pause_s=0.1)
    plan = replace(plan, transactions=clients, racks=True)
    if bug == "copy_the_undecided":
        plan = replace(plan, tier=TierPlan(1_024, 1_024, -1, SMALL_CHUNK_BYTES))
    if bug == "let_coordinator_epochs_fall":
        plan = replace(plan, tenant=True, brokers=BROKERS, faults=tuple(old_coordinators_die()))
    if bug in ("forget_the_prepared_at_load", "load_without_markers"):
        plan = replace(plan, faults=tuple(coordinators_die(seed)))
    return plan


@pytest.mark.long
@pytest.mark.parametrize("bug", TRANSACTION_BUGS)
def test_a_planted_mistake_is_found(bug: str) -> None:
    for seed in range(SEEDS_MAX):
        with planted(bug):
            report = run_plan(plan_of(bug, seed))
        if report.failure:
            assert report.failure.startswith(FOUND_BY), report.failure
            right = run_plan(plan_of(bug, seed))
            assert right.failure == "", f"the right program fails as well: {right.failure}"
            return
    pytest.fail(f"{bug} is not found in {SEEDS_MAX} seeds")


def test_transactions_are_whole_under_faults() -> None:
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        report = run_seed(seed, transactions=True)
        assert report.failure == "", f"python -m tests.sim --transactions --seed {seed} shows: {report.failure}"
        reached += report.coverage
    assert {what: reached[what] for what, least in REACHED.items() if reached[what] < least} == {}


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_seeds_that_failed_once(seed: int) -> None:
    """Kept as seeds; what was mended has tests of its own."""
    assert run_seed(seed, transactions=True).failure == ""


def test_a_share_of_the_seeds_has_transactions() -> None:
    plans = [plan for seed in range(300) if (plan := draw_plan(seed)).transactions is not None]
    assert 40 < len(plans) < 90
    assert any(plan.tier for plan in plans)
    assert any(plan.moves for plan in plans)


def test_a_seed_runs_alike_wherever_its_objects_lie() -> None:
    hashes = set[str]()
    for padding in range(2):
        with moved_memory(padding):
            hashes.add(run_seed(1, transactions=True).trace_hash)
    assert len(hashes) == 1
