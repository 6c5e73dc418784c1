"""Whole brokers under faults whose topic is copied, then not, then again: nothing acknowledged is lost, clients and
tier agree all the while, and in the end everything is in the tier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.cluster import run_plan
from tests.sim.plan import Plan, draw_plan

pytestmark = pytest.mark.simulation

SEEDS, TRIED = 4, 60


def plans() -> list[Plan]:
    """Drawn ones with a tier that deletes by size."""
    drawn = (draw_plan(seed) for seed in range(TRIED))
    tiered = [(plan, plan.tier) for plan in drawn if plan.tier is not None and plan.tier.total_bytes > 0]
    return [replace(plan, tier=replace(tier, switches=True)) for plan, tier in tiered[:SEEDS]]


@pytest.mark.parametrize("plan", plans(), ids=lambda plan: str(plan.seed))
def test_copying_is_disabled_and_enabled_under_faults(plan: Plan) -> None:
    report = run_plan(plan)
    assert report.failure == ""
    assert report.coverage["copying disabled"]
    assert report.coverage["segments copied"]
