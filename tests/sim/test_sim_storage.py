"""Seeds of one log directory under deaths and losses of power."""

from __future__ import annotations

import pytest

from tests.sim.storage_scenario import StorageRun

pytestmark = pytest.mark.simulation
SEEDS, CHUNK = 120, 30
FAILED_ONCE = (143, 187, 286, 296, 397, 435, 462, 526, 539, 543, 545, 652)


def run(seed: int) -> StorageRun:
    scenario = StorageRun(seed)
    try:
        scenario.run()
    except Exception as error:
        pytest.fail(f"storage seed {seed}: {type(error).__name__}: {error}")
    return scenario


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_what_was_safe_is_there_after_recovery(first: int) -> None:
    runs = [run(seed) for seed in range(first, first + CHUNK)]
    assert sum(run.model.recoveries for run in runs) > 2 * CHUNK
    assert max(run.model.longest for run in runs) > 50


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_seeds_that_failed_once(seed: int) -> None:
    """A cut that was not on the device let the old end of a segment come back before newer segments; a stop during
    recovery left the marker of a clean one."""
    run(seed)
