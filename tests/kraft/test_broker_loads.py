"""Brokers' loads at the controller, from the counters of their loops, and whose part of it is whose."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.loop_load import TURN_COST_S, LoopCounters
from common.metrics import Metrics
from common.pacing import at_once
from kraft.balancer.load_shares import Traffic, replica_load, tenant_load
from kraft.controller.broker_loads import BrokerLoads
from kraft.controller.node_metrics import register_loads
from kraft.controller.reported_usage import ROUNDS_WAITED, ReportedUsage, describe_usage
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.records import TenantRecord
from tests.kraft.images import POLICY, partition_of, with_brokers, with_topic
from tests.kraft.usage_reports import partition_row, report, tenant_row
from wire.messages import DescribeUsageRequest

INTERVAL_S = 5.0
WAITED_S = ROUNDS_WAITED * INTERVAL_S
WAIT_S = 0.5e-3 + TURN_COST_S  # of even jobs of 1 ms, where rho / (1 - rho) is 1
ALPHA, BETA = "lkc-aaaaaa", "lkc-bbbbbb"


def loop(counters: LoopCounters) -> dict[str, Any]:
    return {
        "loop_jobs": counters.jobs,
        "loop_wait_ns": int(counters.wait_s * 1e9),
        "loop_service_ns": int(counters.service_s * 1e9),
        "loop_service_squares": counters.service_squares,
        "loop_busy_ns": int(counters.busy_s * 1e9),
    }


def steady(round_number: int, busy: float) -> dict[str, Any]:
    """Counters after so many rounds, of a loop with 1,000 even jobs of 1 ms a second and the waits of rho = 0.9."""
    seconds = 5.0 * round_number
    jobs = int(1_000 * seconds)
    return loop(LoopCounters(jobs, jobs * 9 * WAIT_S, jobs * 1e-3, jobs * 1e-6, busy * seconds))


def told(usage: ReportedUsage, image: MetadataImage, broker: int, number: int, now: float, **fields: Any) -> None:
    usage.take(image, report(broker, image.brokers[broker].epoch, number, 5_000 * number, **fields), now)


def test_a_load_is_unknown_for_the_time_that_brokers_have_to_report() -> None:
    """Also that of a broker that has reported: a mean over a few seconds would move things for a moment's peak."""
    image, usage = with_brokers(2), ReportedUsage(INTERVAL_S)
    usage.restart(100.0)
    for number in (1, 2, 3):
        told(usage, image, 0, number, 100.0 + 5 * (number - 1), **steady(number, 0.3))
    assert usage.rates_of(0, 110.0) is not None
    assert usage.loads(image, 100.0 + WAITED_S - 0.1) == {0: None, 1: None}
    known = usage.loads(image, 100.0 + WAITED_S)
    assert known == {0: pytest.approx(0.3), 1: None}, "one that never reported stays unknown"
    assert usage.load_of(0, 110.1 + WAITED_S) is None, "what a silent broker said counts no longer"


@pytest.mark.parametrize(("busy", "load"), [(0.2, 0.2), (0.5, 0.5), (0.6, 0.75), (0.8, 0.9), (1.0, 0.9)])
def test_waits_tell_the_load_of_a_busy_loop(busy: float, load: float) -> None:
    image, usage = with_brokers(1), ReportedUsage(INTERVAL_S)
    for number in range(1, 30):
        if number % 3:  # lost reports change nothing
            told(usage, image, 0, number, 5.0 * number, **steady(number, busy))
    assert usage.load_of(0, 150.0) == pytest.approx(load, abs=0.001)


NUMBERS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-3, 30_000))


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.floats(), NUMBERS), min_size=1, max_size=5))
def test_a_liar_has_a_load_from_0_to_1(said: list[tuple[int, int, int, float, int]]) -> None:
    image, usage = with_brokers(1), ReportedUsage(INTERVAL_S)
    names = ["loop_jobs", "loop_wait_ns", "loop_service_ns", "loop_service_squares", "loop_busy_ns"]
    for number, values in enumerate(said, 1):
        told(usage, image, 0, number, 100.0, **dict(zip(names, values, strict=True)))
    load = usage.load_of(0, 100.0)
    assert load is None or 0.0 <= load <= 1.0


def test_the_load_is_shown_with_its_parts() -> None:
    records = (TenantRecord(ALPHA, "alpha", "default", 0), TenantRecord(BETA, "beta", "default", 0))
    image, usage = replayed(with_topic(), records), ReportedUsage(INTERVAL_S)
    usage.restart(-100.0)
    topic_id = partition_of(image).topic_id
    told(
        usage, image, 0, 1, 5.0, busy_ns=4_000_000_000, bytes_in=1_000, requests=10,
        tenants=[tenant_row(ALPHA, 900, busy_ns=3_000_000_000), tenant_row(BETA, 100, busy_ns=1_000_000_000)],
        partitions=[partition_row(topic_id, 1_000)], **steady(1, 0.4),
    )  # fmt: skip
    wanted = DescribeUsageRequest(brokers=None, include_tenants=True, include_partitions=True)
    rows = {row.broker_id: row for row in at_once(describe_usage(image, wanted, usage, 5.0)).reply.brokers}
    assert rows[0].load == pytest.approx(0.4)
    assert rows[0].loop_busy == pytest.approx(0.4)
    assert rows[0].queue_wait == pytest.approx(9 * WAIT_S)
    assert {row.tenant: row.load for row in rows[0].tenants} == {ALPHA: pytest.approx(0.3), BETA: pytest.approx(0.1)}
    assert [row.load for row in rows[0].partitions] == [pytest.approx(0.4)]
    assert (rows[1].load, rows[1].queue_wait, rows[1].loop_busy) == (-1.0, -1.0, -1.0)


def test_the_cluster_is_as_loaded_as_its_most_loaded_broker_and_unknown_while_one_is() -> None:
    image, usage, loads, metrics = with_brokers(2), ReportedUsage(INTERVAL_S), BrokerLoads(), Metrics()
    usage.restart(-100.0)
    loads.measured_by(lambda broker_id: usage.load_of(broker_id, 5.0))
    node: Any = SimpleNamespace(
        usage=usage, image=image, now_s=lambda: 5.0, driver=SimpleNamespace(is_active=True),
        policy=POLICY, liveness=SimpleNamespace(loads=loads),
    )  # fmt: skip
    register_loads(metrics, node)
    told(usage, image, 0, 1, 5.0, **steady(1, 0.4))
    assert "\ntidelog_cluster_load " not in metrics.text().decode()
    told(usage, image, 1, 1, 5.0, **steady(1, 0.2))
    shown = metrics.text().decode()
    assert "tidelog_cluster_load 0.4" in shown
    assert 'tidelog_cell_load{cell="default"} 0.3' in shown
    node.driver.is_active = False
    assert "tidelog_cell_load{" not in metrics.text().decode()


AMOUNTS = st.floats(0, 1e9)


@given(st.floats(0, 1), st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=10), AMOUNTS, AMOUNTS, st.floats(0, 1e5))
def test_parts_of_partitions_add_up_to_at_most_the_load(
    load: float, partitions: list[tuple[float, float]], more_in: float, more_out: float, requests: float
) -> None:
    bytes_in, bytes_out = (math.fsum(one[side] for one in partitions) for side in (0, 1))
    broker = Traffic(bytes_in + more_in, bytes_out + more_out, requests)
    parts = [replica_load(load, Traffic(*one), broker) for one in partitions]
    assert all(part >= 0 for part in parts)
    assert math.fsum(parts) <= load * (1 + 1e-9)
    if partitions and not more_in and not more_out and bytes_in + bytes_out > 1:
        assert math.fsum(parts) == pytest.approx(load)


@given(st.floats(0, 1), st.lists(st.floats(0, 10), min_size=1, max_size=10))
def test_parts_of_tenants_add_up_to_the_load(load: float, busy: list[float]) -> None:
    parts = [tenant_load(load, one, math.fsum(busy)) for one in busy]
    assert math.fsum(parts) == pytest.approx(load if math.fsum(busy) > 0 else 0.0)
