"""An overloaded cell of the simulated cluster gives a tenant away, once, whoever is active; and mistakes are found."""

from __future__ import annotations

import pytest

from tests.sim.bugs import CELL_BUGS, planted
from tests.sim.cells_scenario import CellsRun
from tests.sim.loop import SimulationFailure

pytestmark = pytest.mark.simulation

SEED = 1
FOUND = {
    "relieve_a_cell_at_once": "a tenant leaves after",
    "forget_that_a_tenant_has_left": "tenants move without need|not the smallest set left",
    "overload_the_next_cell": "where no cell has room|no cell is known to be exhausted",
}


@pytest.mark.parametrize("deposes", [False, True])
def test_one_tenant_leaves_an_overloaded_cell_and_nothing_moves_again(deposes: bool) -> None:
    CellsRun(SEED, deposes=deposes).run()


@pytest.mark.long
@pytest.mark.parametrize("bug", CELL_BUGS)
def test_a_planted_mistake_is_found(bug: str) -> None:
    with planted(bug), pytest.raises(SimulationFailure, match=FOUND[bug]):
        CellsRun(SEED, deposes=False).run()
