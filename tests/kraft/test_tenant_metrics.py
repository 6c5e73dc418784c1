"""Metrics of tenants' use over all brokers: those that use most by name, all others in one, and in stretches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from common.metrics import Metrics
from kraft.controller.quota_metrics import OTHERS, TENANTS_MAX
from kraft.controller.tenant_metrics import AT_ONCE, TenantMetrics
from kraft.controller.usage_rates import OPERATORS, Rates
from tests.kraft.images import POLICY, with_brokers

RATES = st.integers(0, 1_000)
NAMES = st.sampled_from([OPERATORS, *(f"lkc-{number}" for number in range(6))])


class Reported:
    """What brokers have reported: bytes in, by broker and tenant; as many go out, and busy is a thousandth of it."""

    def __init__(self, rates: dict[int, dict[str, float]]) -> None:
        self._rates = rates
        self.asked = 0

    def of_broker(self, broker_id: int, now: float) -> Any:
        self.asked += 1
        found = self._rates.get(broker_id)
        if found is None:
            return None
        return SimpleNamespace(tenants=found, rates_of=lambda rate: Rates(rate, rate, rate, rate / 1_000))


def metrics_of(reported: Any, clock: list[float], most: int = TENANTS_MAX) -> Metrics:
    image, metrics = with_brokers(2), Metrics()
    TenantMetrics(reported, lambda: image, lambda: POLICY, lambda: clock[0], most).register(metrics)
    return metrics


def shown(metrics: Metrics) -> dict[str, float]:
    (family,) = [
        one
        for one in text_string_to_metric_families(metrics.text().decode())
        if one.name == "tidelog_tenant_bytes_per_second"
    ]
    return {one.labels["tenant"]: one.value for one in family.samples if one.labels["direction"] == "in"}


@given(st.dictionaries(st.sampled_from([0, 1]), st.dictionaries(NAMES, RATES)), st.integers(1, 4))
def test_the_largest_are_named_and_nothing_is_lost(rates: dict[int, dict[str, float]], most: int) -> None:
    sums: dict[str, float] = {}
    for found in rates.values():
        for tenant, rate in found.items():
            if rate and tenant != OPERATORS:
                sums[tenant] = sums.get(tenant, 0) + rate
    found = shown(metrics_of(Reported(rates), [0.0], most))
    assert sum(found.values()) == pytest.approx(sum(sums.values()))
    named = {tenant: value for tenant, value in found.items() if tenant != OTHERS}
    assert sorted(named.values()) == sorted(sorted(sums.values())[-most:])
    assert all(sums[tenant] == value for tenant, value in named.items())
    assert (OTHERS in found) == (len(sums) > most)


def test_many_tenants_are_summed_in_stretches_and_once_for_a_page() -> None:
    reported = Reported({0: {f"lkc-{number}": 1.0 + number for number in range(12 * TENANTS_MAX)}})
    now = [0.0]
    metrics = metrics_of(reported, now)
    pieces = list(metrics.pieces())
    assert len(pieces) > 2 * 12 * TENANTS_MAX // AT_ONCE, "reports and sums are interrupted"
    assert reported.asked == 2, "each broker once, for three families"
    now[0] = 60.0
    assert len(shown(metrics)) == TENANTS_MAX + 1 and reported.asked == 4
