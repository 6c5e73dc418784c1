"""The quorum's node under faults in virtual time, and proof that the faults are hard enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from common.invariants import InvariantViolation
from tests.kraft.quorum_world import QuorumWorld, Violation, faults, power_cuts

BROKEN = (Violation, InvariantViolation)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("ERROR"):
        yield


def failures(run: Callable[[int], QuorumWorld], seeds: range) -> int:
    count = 0
    for seed in seeds:
        try:
            run(seed)
        except BROKEN:
            count += 1
    return count


def totals(worlds: list[QuorumWorld]) -> tuple[int, int, int, int]:
    """Acknowledged commands, terms with a leader, snapshots taken and snapshots installed over a link."""
    return (
        sum(len(world.acknowledged) for world in worlds),
        sum(len(world.leaders) for world in worlds),
        sum(world.snapshots_taken for world in worlds),
        sum(world.snapshots_installed for world in worlds),
    )


@pytest.mark.parametrize("block", range(6))
def test_three_voters_keep_their_promises_under_faults(block: int) -> None:
    acknowledged, leaders, taken, installed = totals([faults(seed) for seed in range(10 * block, 10 * block + 10)])
    assert acknowledged > 3_000
    assert leaders > 25
    assert taken > 15
    assert installed > 5


def test_five_voters_keep_their_promises_under_faults() -> None:
    acknowledged, leaders, *_ = totals([faults(seed, size=5) for seed in range(12)])
    assert acknowledged > 3_000
    assert leaders > 25


@pytest.mark.parametrize("block", range(4))
def test_promises_survive_power_cuts(block: int) -> None:
    acknowledged, leaders, taken, _ = totals([power_cuts(seed) for seed in range(10 * block, 10 * block + 10)])
    assert acknowledged > 1_500
    assert leaders > 30
    assert taken > 5


def test_without_syncs_the_power_cuts_break_promises() -> None:
    assert failures(lambda seed: power_cuts(seed, synced=False), range(12)) >= 10


def test_without_the_filter_the_faults_break_promises() -> None:
    assert failures(lambda seed: faults(seed, filtered=False), range(15)) >= 3


def test_a_run_follows_from_its_seed() -> None:
    first, second = faults(3), faults(3)
    assert first.by_index == second.by_index
    assert first.acknowledged == second.acknowledged
    assert first.random.getstate() == second.random.getstate()
