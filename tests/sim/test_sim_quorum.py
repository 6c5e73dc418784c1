"""Seeds of the quorum alone, with every loss of power a majority can stand and many it cannot: nothing may be lost."""

from __future__ import annotations

import logging

import pytest

from tests.sim.bugs import QUORUM_BUGS, planted
from tests.sim.quorum_scenario import FollowerRun, QuorumBroken, QuorumRun
from tests.sim.world import moved_memory

pytestmark = pytest.mark.simulation
SEEDS, CHUNK = 100, 25
FOLLOWER_SEEDS = 12


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


def test_whatever_happens_to_one_follower_deposes_no_leader(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)
    for seed in range(FOLLOWER_SEEDS):
        FollowerRun(seed).run()


@pytest.mark.long
@pytest.mark.parametrize("bug", QUORUM_BUGS)
def test_a_planted_mistake_of_elections_is_found(bug: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)

    def run_seeds() -> None:
        for seed in range(FOLLOWER_SEEDS):
            FollowerRun(seed).run()

    with planted(bug), pytest.raises(QuorumBroken, match="was deposed"):
        run_seeds()


def test_a_seed_runs_alike_wherever_its_objects_lie() -> None:
    hashes = set[str]()
    for padding in range(3):
        with moved_memory(padding):
            run = QuorumRun(7)
            run.run()
            hashes.add(run.hash)
    assert len(hashes) == 1
