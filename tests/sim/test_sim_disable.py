"""Whole brokers under faults whose topic leaves the tier and comes back: nothing is lost but what the tier was to lose,
every replica that counts holds the rest, and in the end everything is in the tier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.cluster import run_plan
from tests.sim.plan import Plan, draw_plan

pytestmark = pytest.mark.simulation

SEEDS, TRIED = 4, 40


def plans() -> list[Plan]:
    """Drawn ones with a tier; nothing else takes records."""
    drawn = (draw_plan(seed) for seed in range(TRIED))
    tiered = [(plan, plan.tier) for plan in drawn if plan.tier is not None]
    return [
        replace(plan, tier=replace(tier, leaves=True, total_bytes=-1, deletes_records=False))
        for plan, tier in tiered[:SEEDS]
    ]


@pytest.mark.parametrize("plan", plans(), ids=lambda plan: str(plan.seed))
def test_tiering_is_disabled_and_enabled_under_faults(plan: Plan) -> None:
    report = run_plan(plan)
    assert report.failure == ""
    assert report.coverage["tiering disabled"]
    assert report.coverage["tiers emptied"]
    assert report.coverage["segments copied"]
