"""Sixty seeds of the whole cluster, what they have to reach, and that a seed repeats wherever it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.sim.cluster import run_seed
from tests.sim.nemesis import HEALTH, KINDS, STORE, shrink
from tests.sim.plan import draw_plan
from tests.sim.report import Report
from tests.sim.world import moved_memory

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(600)]  # ten seeds are minutes on a busy machine
SEEDS, CHUNK = 60, 10  # `make sim` and continuous integration run more
DRAWN = 300
FAILED_ONCE = (3, 8, 22, 29, 32, 109, 116, 228, 5282, 5436, 20116, 20480, 20823, 20962, 21335, 93, 523, 40061)
ROOT = Path(__file__).parents[2]
# What ten seeds bring about at the least, lest nothing happens in them; most do many times as much.
REACHED = {"elections": 3, "ISR shrinks": 5, "ISR expansions": 5, "batches sent again": 2, "leaderships": 20}


@cache
def run(seed: int) -> Report:
    """Several tests look at the same seeds."""
    report = run_seed(seed)
    if report.failure:
        pytest.fail(f"make sim SEED={seed} COUNT=1 shows: {report.failure}")
    return report


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_the_promise_holds(first: int) -> None:
    reached: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        report = run(seed)
        reached += report.coverage
        assert report.acknowledged > 15
        assert report.shown > 15
    assert {what: reached[what] for what, least in REACHED.items() if reached[what] < least} == {}


def test_replicas_move_about_meanwhile() -> None:
    seeds = [seed for seed in range(DRAWN) if draw_plan(seed).moves]
    assert len(seeds) > DRAWN // 5
    reached = sum((run(seed).coverage for seed in seeds[:8]), Counter[str]())
    least = {"moves begin": 20, "moves end": 20, "replicas removed": 20, "moves cancelled: NONE": 2, "throttles set": 2}
    assert {what: reached[what] for what, count in least.items() if reached[what] < count} == {}


def test_history_goes_to_the_tier_and_comes_back_meanwhile() -> None:
    seeds = [seed for seed in range(DRAWN) if draw_plan(seed).tier is not None]
    assert len(seeds) > DRAWN // 3
    reached = sum((run(seed).coverage for seed in seeds[:8]), Counter[str]())
    least = {
        "segments copied": 60,
        "manifests": 40,
        "objects deleted": 10,
        "passes over the whole log": 30,
        "delete records: NONE": 2,
        "topics deleted": 1,
    }
    assert {what: reached[what] for what, count in least.items() if reached[what] < count} == {}


def test_jobs_replace_segments_meanwhile() -> None:
    seeds = [seed for seed in range(DRAWN) if (tier := draw_plan(seed).tier) is not None and tier.rewrites]
    assert len(seeds) > DRAWN // 6
    reached = sum((run(seed).coverage for seed in seeds[:8]), Counter[str]())
    least = {"swaps": 15, "batches rewritten away": 100, "proposals accepted": 12, "proposals refused": 6}
    assert {what: reached[what] for what, count in least.items() if reached[what] < count} == {}


def test_tenants_move_while_their_groups_commit() -> None:
    seeds = [seed for seed in range(DRAWN) if draw_plan(seed).tenant]
    assert len(seeds) > DRAWN // 20
    reached = sum((run(seed).coverage for seed in seeds[:8]), Counter[str]())
    assert reached["commits before the mover"] > 20


def test_a_disk_is_stuck_for_long_and_its_broker_ended_meanwhile() -> None:
    seeds = [seed for seed in range(DRAWN) if (plan := draw_plan(seed)).watched and plan.lasting]
    assert len(seeds) > DRAWN // 20
    reached = sum((run(seed).coverage for seed in seeds[:5]), Counter[str]())
    assert reached["ended by their watchdogs"] > 1


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_seeds_that_failed_once(seed: int) -> None:
    """Kept as seeds; a seed takes another course once timing changes, so what was mended has tests of its own."""
    run(seed)


def test_all_kinds_of_faults_are_drawn() -> None:
    drawn = Counter(fault.kind for seed in range(DRAWN) for fault in draw_plan(seed).faults)
    assert set(drawn) == {*KINDS, *STORE, *HEALTH}
    assert min(drawn.values()) > 15


TIERED, UNTIERED = 9, 4


@pytest.mark.parametrize("seed", [TIERED, UNTIERED])
def test_a_seed_runs_alike_wherever_its_objects_lie(seed: int) -> None:
    assert (draw_plan(seed).tier is not None) == (seed == TIERED)
    hashes = set[str]()
    for padding in range(2):
        with moved_memory(padding):
            hashes.add(run_seed(seed).trace_hash)
    assert len(hashes) == 1


@pytest.mark.parametrize("seed", [TIERED, UNTIERED])
def test_a_seed_runs_alike_in_other_processes(seed: int) -> None:
    shown = set[str]()
    for hash_seed in ("1", "4711"):
        command = [sys.executable, "-m", "tests.sim", "--seed", str(seed), "--count", "1"]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
        shown.update(line.split()[3] for line in done.stdout.splitlines() if line.startswith(f"seed {seed} "))
    assert len(shown) == 1


@pytest.mark.parametrize("matter", [(0,), (5,), (1, 4), (0, 2, 6)])
def test_shrinking_leaves_the_faults_that_matter(matter: tuple[int, ...]) -> None:
    faults = next(list(plan.faults) for seed in range(DRAWN) if len((plan := draw_plan(seed)).faults) > 6)
    needed = [faults[number] for number in matter]
    fewer, runs = shrink(faults, lambda few: all(fault in few for fault in needed))
    assert fewer == needed
    assert runs < len(faults) ** 2


def test_a_seed_runs_with_the_faults_that_are_left() -> None:
    left = draw_plan(UNTIERED).faults[:1]
    report = run_seed(UNTIERED, faults=left)
    assert (report.plan.faults, report.failure) == (left, "")
    assert report.acknowledged != run(UNTIERED).acknowledged  # another course than with all of them
