"""Series of clients' metrics: what is shown is what was pushed last, within the bounds, whatever clients do."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from broker.telemetry.series import LABEL_LENGTH_MAX, LABELS_MAX, OWN_LABELS, ClientSeries, Kind, Point, SeriesBounds
from common.node_settings.telemetry import TelemetrySettings
from common.pacing import SLICE_COST, Work, at_once
from tests.common.call_count import counted_calls

LIMITS = TelemetrySettings(series_max=7, tenant_series_max=5, label_values_max=3)
METRICS = st.sampled_from(["m.a", "m.b"])
LABELS = st.lists(
    st.tuples(st.sampled_from(["topic", "node-id"]), st.sampled_from("wxyz")), max_size=2, unique_by=lambda p: p[0]
)
POINTS = st.lists(
    st.builds(Point, METRICS, LABELS.map(tuple), st.sampled_from(Kind), st.integers(0, 9).map(float)), max_size=12
)


def samples(client: ClientSeries) -> list[tuple[dict[str, str], float]]:
    return [(dict(labels), value) for labels, value in (*client.gauges(), *client.counters())]


class Pushes(RuleBasedStateMachine):
    """Clients of two tenants push and go."""

    clients: Bundle[int] = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.bounds = SeriesBounds(LIMITS)
        self.series: dict[int, ClientSeries] = {}
        self.tenants: dict[int, str] = {}
        self.serial = 0

    @rule(target=clients, tenant=st.sampled_from(["", "lkc-aaaaaa"]), client_id=st.sampled_from("pqrs"))
    def come(self, tenant: str, client_id: str) -> int:
        self.serial += 1
        self.series[self.serial] = ClientSeries(self.bounds, tenant, {"client_id": client_id})
        self.tenants[self.serial] = tenant
        return self.serial

    @rule(client=clients)
    def go(self, client: int) -> None:
        self.series[client].close()
        at_once(self.bounds.releasing())

    @rule(client=clients, points=POINTS)
    def push(self, client: int, points: list[Point]) -> None:
        series, dropped = self.series[client], self.bounds.dropped
        counted = [labels for labels, _ in series.counters()]
        series.begin()
        for point in points:
            series.take(point)
        at_once(series.end())
        refused = self.bounds.dropped - dropped
        assert 0 <= refused <= len(points)
        if series.is_closed:
            assert refused == len(points) and not samples(series)
        shown = list(series.gauges())
        pushed = {point.metric for point in points if point.kind is Kind.GAUGE}
        assert {labels["metric"] for labels, _ in shown} <= pushed, "a gauge that is not in the push is gone"
        after = [labels for labels, _ in series.counters()]
        assert series.is_closed or all(labels in after for labels in counted), "a counter stays"
        if not refused:
            for point in points:
                assert any(
                    labels["metric"] == point.metric and {value for _, value in point.labels} <= set(labels.values())
                    for labels, _ in samples(series)
                )

    @invariant()
    def bounded(self) -> None:
        by_tenant: Counter[str] = Counter()
        values: dict[tuple[str, str], set[str]] = {}
        for number, series in self.series.items():
            tenant = self.tenants[number]
            for labels, _ in samples(series):
                assert labels["tenant"] == tenant
                by_tenant[tenant] += 1
                for name in labels.keys() - {"tenant", "metric"}:
                    values.setdefault((tenant, name), set()).add(labels[name])
        assert self.bounds.count == by_tenant.total() <= LIMITS.series_max
        assert max(by_tenant.values(), default=0) <= LIMITS.tenant_series_max
        assert max(map(len, values.values()), default=0) <= LIMITS.label_values_max


TestPushes = Pushes.TestCase
TestPushes.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def one(limits: TelemetrySettings | None = None) -> tuple[SeriesBounds, ClientSeries]:
    bounds = SeriesBounds(limits or TelemetrySettings())
    return bounds, ClientSeries(bounds, "", {"client_id": "c"})


def take(series: ClientSeries, *points: Point) -> None:
    series.begin()
    for point in points:
        series.take(point)
    at_once(series.end())


def test_deltas_add_up_and_totals_do_not() -> None:
    _, series = one()
    for _ in range(3):
        take(series, Point("d", (), Kind.DELTA, 2), Point("t", (), Kind.TOTAL, 2), Point("g", (), Kind.GAUGE, 2))
    assert {labels["metric"]: value for labels, value in series.counters()} == {"d": 6, "t": 2}
    assert [value for _, value in series.gauges()] == [2]


@given(st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), max_size=LABELS_MAX + 2))
def test_labels_have_names_that_prometheus_takes_and_never_hide_the_own_ones(labels: list[tuple[str, str]]) -> None:
    _, series = one()
    take(series, Point("m", tuple(labels), Kind.GAUGE, 1))
    for shown, _ in series.gauges():
        assert shown["client_id"] == "c" and shown["tenant"] == "" and shown["metric"] == "m"
        for name in shown.keys() - OWN_LABELS:
            assert name.isascii() and name.isidentifier() and name == name.lower()
            assert name not in ("le", "quantile") and not name.startswith("__")


def test_what_is_too_long_or_too_much_is_dropped_and_counted() -> None:
    bounds, series = one()
    bad: list[Any] = [
        Point("m", (("l", "v" * (LABEL_LENGTH_MAX + 1)),), Kind.GAUGE, 1),
        Point("m", tuple((f"l{n}", "v") for n in range(LABELS_MAX + 1)), Kind.GAUGE, 1),
        Point("m" * 201, (), Kind.GAUGE, 1),
        Point("", (), Kind.GAUGE, 1),
        Point('m"', (), Kind.GAUGE, 1),
        Point("m", (("", "v"),), Kind.GAUGE, 1),
    ]
    take(series, *bad)
    assert (bounds.dropped, bounds.count, samples(series)) == (len(bad), 0, [])


# many at once ----------------------------------------------------------------------------------------------

MANY = 3_000
ROOMY = TelemetrySettings(series_max=2 * MANY, tenant_series_max=2 * MANY, label_values_max=2 * MANY)


def many_points(prefix: str, count: int = MANY) -> list[Point]:
    kinds = Kind.GAUGE, Kind.TOTAL
    return [Point(f"{prefix}{number}", (("t", f"{number}"),), kinds[number % 2], 1.0) for number in range(count)]


def released(work: Work[None]) -> int:
    """Units of all steps. None of them makes many calls."""
    spent = 0
    while True:
        with counted_calls() as count:
            cost = next(work, None)
        assert count.calls < 60
        if cost is None:
            return spent
        assert cost < SLICE_COST / 10
        spent += cost


def test_clients_with_many_series_are_forgotten_at_once_and_released_in_steps() -> None:
    bounds = SeriesBounds(ROOMY)
    first, second = ClientSeries(bounds, "", {"client_id": "c"}), ClientSeries(bounds, "t", {"client_id": "d"})
    for series in (first, second):
        take(series, *many_points("m"))
    for series in (first, second):
        with counted_calls() as count:
            series.close()
        assert count.calls < 60
        assert samples(series) == []
    assert bounds.count == 2 * MANY
    works = bounds.releasing(), bounds.releasing()
    for _ in range(10):
        for work in works:  # two that are at it take turns
            next(work)
    assert bounds.count == 2 * MANY - 20
    assert sum(map(released, works)) >= 2 * MANY - 20
    assert bounds.count == 0
    take(first := ClientSeries(bounds, "", {"client_id": "c"}), *many_points("n", 2 * MANY))
    assert bounds.count == len(samples(first)) == 2 * MANY, "there is room for others"


def test_gauges_that_a_push_lacks_go_in_steps() -> None:
    bounds, series = one(ROOMY)
    take(series, *many_points("m"))
    series.begin()
    series.take(Point("m0", (("t", "0"),), Kind.GAUGE, 2.0))
    assert released(series.end()) >= MANY // 2 - 1
    assert [value for _, value in series.gauges()] == [2.0]
    assert bounds.count == len(samples(series)) == 1 + MANY // 2


def test_a_client_that_goes_while_its_push_ends_is_released_once() -> None:
    bounds, series = one(ROOMY)
    take(series, *many_points("m"))
    series.begin()
    work = series.end()
    for _ in range(10):
        next(work)
    series.close()
    at_once(work)
    at_once(bounds.releasing())
    assert (bounds.count, samples(series)) == (0, [])
