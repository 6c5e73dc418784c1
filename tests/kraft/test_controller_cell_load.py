"""A cell's load is what is scarcest in it: processors, replicas or bandwidth, as brokers tell in their heartbeats."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.heartbeat_report import LoadMeter
from kraft.controller.broker_loads import MEAN_OVER_S, BrokerLoads
from kraft.controller.cells import Cells, decide_describe_cells
from kraft.controller.tenants import decide_create_tenant
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from tests.kraft.images import POLICY, new_topic
from tests.kraft.tenants import CELLS, alter_cell, cells_of_three, with_topics
from wire.messages import CreateTenantRequest, DescribeCellsRequest

BANDWIDTH = 250_000_000


def heard(loads: BrokerLoads, image: MetadataImage, cell: str, moved: float = 0.0, cpu: float = 0.0) -> None:
    for broker in CELLS[cell]:
        loads.heard(broker, image.brokers[broker].epoch, moved, cpu, 0.0)


def chosen(image: MetadataImage, loads: BrokerLoads) -> set[str]:
    """Where tenants go, whatever is drawn."""
    request = CreateTenantRequest(tenant_name="new", limits=[])
    return {
        decide_create_tenant(image, request, POLICY, random.Random(seed), 1, loads).reply.cell for seed in range(20)
    }


@pytest.mark.parametrize(
    ("east", "west", "lighter"),
    [
        ((0.0, 0.9), (0.0, 0.2), "west"),
        ((BANDWIDTH * 0.8, 0.1), (BANDWIDTH * 0.3, 0.7), "west"),
        ((BANDWIDTH * 0.1, 0.2), (BANDWIDTH * 0.6, 0.0), "east"),
        ((0.0, 0.0), (0.0, 0.1), "east"),
    ],
)
def test_a_tenant_goes_where_the_scarcest_thing_is_less_scarce(
    east: tuple[float, float], west: tuple[float, float], lighter: str
) -> None:
    image, loads = cells_of_three(), BrokerLoads()
    heard(loads, image, "east", *east)
    heard(loads, image, "west", *west)
    assert chosen(image, loads) == {lighter}


def test_replicas_count_beside_what_is_done() -> None:
    image, loads = cells_of_three(), BrokerLoads()
    image, _ = alter_cell(image, "east", replicas_per_broker_max=20)
    image, _ = with_topics(image, *(new_topic(f"t{n}", 1, assignments=None, factor=3) for n in range(6)))
    shares = {name: cell.replica_share for name, cell in Cells(image, POLICY, loads).by_name.items()}
    assert shares["east"] > shares["west"]
    assert chosen(image, loads) == {"west"}
    heard(loads, image, "west", cpu=0.9)
    assert chosen(image, loads) == {"east"}


@pytest.mark.parametrize("cpu", [0.0, 0.19])
def test_tenants_that_are_made_at_once_do_not_all_go_to_one_cell(cpu: float) -> None:
    """None of them does anything yet, and what brokers do at the moment is not theirs."""
    image, loads = cells_of_three(), BrokerLoads()
    heard(loads, image, "west", cpu=cpu)
    for number in range(16):
        request = CreateTenantRequest(tenant_name=f"tenant-{number}", limits=[])
        decision = decide_create_tenant(image, request, POLICY, random.Random(number), number + 1, loads)
        image = replayed(image, decision.records)
    assert {name: len(cell.tenants) for name, cell in Cells(image, POLICY, loads).by_name.items()} == {
        "east": 8,
        "west": 8,
    }


def test_the_three_parts_are_shown_and_the_load_is_the_largest() -> None:
    image, loads = cells_of_three(), BrokerLoads()
    heard(loads, image, "east", BANDWIDTH / 4, 0.75)
    image, _ = alter_cell(image, "west", bandwidth_per_broker=1_000)
    heard(loads, image, "west", 500.0, 0.25)
    rows = decide_describe_cells(image, DescribeCellsRequest(cells=None), POLICY, loads).reply.cells
    shown = {row.name: (row.broker_load, row.replica_share, row.bandwidth_share, row.load) for row in rows}
    assert shown == {"east": (0.75, 0.0, 0.25, 0.75), "west": (0.25, 0.0, 0.5, 0.5)}


def test_the_measured_load_counts_once_it_is_known_and_the_cpu_share_until_then() -> None:
    image, loads = cells_of_three(), BrokerLoads()
    heard(loads, image, "east", cpu=4.0)
    heard(loads, image, "west", cpu=0.4)
    measured: dict[int, float] = {}
    loads.measured_by(measured.get)
    assert shown(image, loads) == pytest.approx({"east": 1.0, "west": 0.4}), "a process may use several processors"
    measured |= dict.fromkeys(CELLS["east"], 0.1) | {CELLS["west"][0]: 0.7}
    others = len(CELLS["west"]) - 1
    assert shown(image, loads) == pytest.approx({"east": 0.1, "west": (0.7 + 0.4 * others) / (others + 1)})
    assert chosen(image, loads) == {"east"}


def shown(image: MetadataImage, loads: BrokerLoads) -> dict[str, float]:
    rows = decide_describe_cells(image, DescribeCellsRequest(cells=None), POLICY, loads).reply.cells
    return {row.name: row.broker_load for row in rows}


@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=True, allow_infinity=True),
            st.integers(-(1 << 62), 1 << 62),
            st.floats(0, 600),
        ),
        min_size=1,
    )
)
def test_a_mean_stays_within_what_was_said(said: list[tuple[float, int, float]]) -> None:
    loads, now = BrokerLoads(), 0.0
    for cpu, moved, passed in said:
        now += passed
        loads.heard(1, 7, moved, cpu, now)
    most = max(max(moved, 0) for _, moved, _ in said)
    assert 0.0 <= loads.bytes_per_second(1) <= most * (1 + 1e-9)
    assert math.isfinite(loads.cpu_share(1))
    assert loads.cpu_share(1) >= 0.0


def test_a_mean_forgets_slowly_and_a_new_run_of_a_broker_begins_anew() -> None:
    loads = BrokerLoads()
    loads.heard(1, 7, 1_000, 1.0, 0.0)
    loads.heard(1, 7, 0, 0.0, MEAN_OVER_S)
    assert loads.cpu_share(1) == pytest.approx(1 / math.e)
    loads.heard(1, 8, 10, 0.5, MEAN_OVER_S + 1)
    assert (loads.bytes_per_second(1), loads.cpu_share(1)) == (10, 0.5)
    loads.restart()
    assert (loads.bytes_per_second(1), loads.cpu_share(1)) == (0, 0)


def test_a_meter_tells_what_was_done_since_it_was_asked() -> None:
    seen = {"now": 5.0, "cpu": 2.0, "moved": 100}
    meter = LoadMeter(lambda: seen["now"], lambda: seen["cpu"], lambda: int(seen["moved"]))
    assert meter.look() == (0, 0.0), "no time has passed"
    seen |= {"now": 7.0, "cpu": 3.0, "moved": 1_100}
    assert meter.look() == (500, 0.5)
    seen |= {"now": 8.0}
    assert meter.look() == (0, 0.0)
