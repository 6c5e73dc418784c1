"""Lost brokers and controllers of a cluster with thousands of partitions, and mistakes that only such a one shows."""

from __future__ import annotations

import pytest

from tests.sim.bugs import FLEET_BUGS, planted
from tests.sim.counted_work import UNITS_MAX, LoopHeld
from tests.sim.fleet_scenario import FleetRun, NotMoved
from tests.sim.invariants import InvariantBroken

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(300)]
SEED = 1
FOUND: dict[str, tuple[type[Exception], str]] = {
    "unfence_before_the_last_piece": (InvariantBroken, r"is unfenced while \d+ partitions list it"),
    "forget_removals_of_the_last_controller": (NotMoved, "partitions have no leader after broker 0 was lost"),
    "fence_in_one_go": (
        LoopHeld,
        r"controller-\d: .* units of work in one go, in .*kraft\.controller\.broker_removal\.",
    ),
}


def test_all_leaderships_move_in_pieces_whoever_dies() -> None:
    run = FleetRun(SEED)
    run.run()
    assert 0 < run.work.costliest < UNITS_MAX


@pytest.mark.long
@pytest.mark.parametrize("bug", FLEET_BUGS)
def test_a_planted_mistake_is_found(bug: str) -> None:
    error, text = FOUND[bug]
    with planted(bug), pytest.raises(error, match=text):
        FleetRun(SEED).run()
