"""Seeds of the quorum alone, with every loss of power a majority can stand and many it cannot: nothing may be lost."""

from __future__ import annotations

import logging

import pytest

from tests.sim.quorum_scenario import QuorumRun
from tests.sim.world import moved_memory

pytestmark = pytest.mark.simulation
SEEDS, CHUNK = 100, 25


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nothing_acknowledged_is_lost(first: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)
    acknowledged = terms = 0
    for seed in range(first, first + CHUNK):
        run = QuorumRun(seed)
        try:
            run.run()
        except Exception as error:
            pytest.fail(f"quorum seed {seed}: {type(error).__name__}: {error}")
        acknowledged += len(run.agreement.acknowledged)
        terms += len(run.agreement.leaders)
    assert acknowledged > 50 * CHUNK
    assert terms > CHUNK


def test_a_seed_runs_alike_wherever_its_objects_lie() -> None:
    hashes = set[str]()
    for padding in range(3):
        with moved_memory(padding):
            run = QuorumRun(7)
            run.run()
            hashes.add(run.hash)
    assert len(hashes) == 1
