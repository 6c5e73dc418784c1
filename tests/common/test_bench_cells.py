"""The simulation of `bench.kora.cells`: requests as its formula says, loops that work in turns, and what is charged."""

from __future__ import annotations

import pytest

from bench.kora.simulated_brokers import Costs, Given, Run

COSTS = Costs(20e-6, 30e-6, 8e-6, 40e-6, 10e-6, 40e-6, 10e-6, 20e-6, 8e-6, variation=0.1)
FREE = Costs(*[0.0] * 12)
GIVEN = Given(
    COSTS, rate=2_000.0, brokers=8, tenants=2, partitions=160, producers=4, consumers=4, seconds=1.0, linger_s=0.01
)
CELL = 4


@pytest.mark.parametrize("cell", [GIVEN.brokers, CELL])
def test_a_producer_sends_a_broker_what_has_lingered(cell: int) -> None:
    found = Run(GIVEN, cell, 1).run()
    rate = GIVEN.rate / GIVEN.tenants / GIVEN.producers / cell
    expected = GIVEN.tenants * GIVEN.producers * cell / (GIVEN.linger_s + 1 / rate)
    assert found["produce_requests"] == pytest.approx(expected, rel=0.05)
    assert found["batches_a_request"] == pytest.approx(GIVEN.rate / expected, rel=0.1)  # records hit many partitions


def test_cells_save_requests_and_so_load() -> None:
    together, cells = (Run(GIVEN, cell, 1).run() for cell in (GIVEN.brokers, CELL))
    for name in ("produce_requests", "follower_fetches", "busy", "cluster_load"):
        assert cells[name] < together[name], name
    assert cells["consumer_fetches"] > 0


def test_a_client_that_sends_each_partition_alone_saves_no_requests_in_cells() -> None:
    given = GIVEN._replace(one_each=True)
    together, cells = (Run(given, cell, 1).run() for cell in (given.brokers, CELL))
    assert together["batches_a_request"] == cells["batches_a_request"] == 1
    assert cells["produce_requests"] == pytest.approx(together["produce_requests"], rel=0.1)


@pytest.mark.parametrize(
    ("cost", "requests"),
    [("produce", "produce"), ("fetch", "fetch"), ("replicate", "follower"), ("follow", "follower")],
)
def test_each_request_is_charged_once(cost: str, requests: str) -> None:
    """An exchange in halves, with its fetch and with its answer."""
    run = Run(GIVEN._replace(costs=FREE._replace(**{cost: 50e-6})), CELL, 1)
    run.run()
    assert sum(broker.spent_s for broker in run.brokers) == pytest.approx(run.requests[requests] * 50e-6, rel=0.02)


def test_a_partition_is_charged_wherever_it_is_named() -> None:
    """While nothing else takes time, each batch passes alone: twice over followers, once over a consumer."""
    part = 10e-6
    costs = FREE._replace(produce_partition=part, fetch_partition=part, replicate_partition=part, follow_partition=part)
    found = Run(GIVEN._replace(costs=costs), CELL, 1).run()
    batches = found["produce_requests"] * found["batches_a_request"]
    assert found["busy"] == pytest.approx(batches * part * (1 + 1 + 2 + 2) / GIVEN.brokers, rel=0.05)


def test_a_busy_broker_has_more_frames_in_a_turn_and_more_batches_in_an_answer() -> None:
    given = GIVEN._replace(linger_s=0.001, seconds=0.5)
    idle, busy = (Run(given._replace(rate=rate), CELL, 1).run() for rate in (500.0, 40_000.0))
    assert idle["busy"] < 0.1
    assert busy["busy"] > 0.5
    assert busy["frames_a_turn"] > 1.1 * idle["frames_a_turn"]
    assert busy["follower_fetches"] / (busy["produce_requests"] * busy["batches_a_request"]) < 0.9 * 2


def test_the_busiest_broker_is_the_cluster_s_load() -> None:
    found = Run(GIVEN, CELL, 1).run()
    assert 0 < found["mean_load"] <= found["cluster_load"] <= 1
