"""The simulation of `bench.kora.cells`: requests as its formula says, and a queue that is one."""

from __future__ import annotations

import pytest

from bench.kora.cells import BROKERS, CELL, TENANTS, Costs, Given, Loop, Run

COSTS = Costs(40e-6, 8e-6, 60e-6, 10e-6, variation=0.1)
GIVEN = Given(COSTS, rate=8_000.0, producers=4, consumers=4, seconds=1.0)


@pytest.mark.parametrize("cell", [BROKERS, CELL])
def test_a_producer_sends_a_broker_what_has_lingered(cell: int) -> None:
    found = Run(GIVEN, cell, 1).run()
    rate = GIVEN.rate / TENANTS / GIVEN.producers / cell
    expected = TENANTS * GIVEN.producers * cell / (GIVEN.linger_s + 1 / rate)
    assert found["produce_requests"] == pytest.approx(expected, rel=0.05)
    assert found["batches_a_request"] == pytest.approx(GIVEN.rate / expected, rel=0.1)  # records hit many partitions


def test_cells_save_requests_and_so_load() -> None:
    together, cells = (Run(GIVEN, cell, 1).run() for cell in (BROKERS, CELL))
    for name in ("produce_requests", "follower_fetches", "busy", "cluster_load"):
        assert cells[name] < together[name], name
    assert cells["consumer_fetches"] > 0


def test_a_job_waits_for_those_before_it() -> None:
    loop = Loop()
    assert [loop.ends(now, 2.0) for now in (1.0, 2.0, 9.0)] == [3.0, 5.0, 11.0]
    assert loop.counters() == (3, 1.0, 6.0, 12.0, 6.0)
