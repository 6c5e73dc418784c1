"""Series of clients' metrics, bounded: in all, by tenant, and in how many values a label has. No I/O.

What is beyond a bound is dropped and counted. A series goes when its client goes, and a gauge also when a push of its
client has it no more.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from functools import lru_cache

from msgspec import Struct

from common.node_settings.telemetry import TelemetrySettings
from common.pacing import Work

NAME_LENGTH_MAX = 200
LABEL_LENGTH_MAX = 200
LABELS_MAX = 12  # of one data point
RELEASE_COST = 5  # units of `common.pacing`, of one series
OWN_LABELS = frozenset({
    "tenant", "metric", "client_id", "client_instance_id", "client_software_name", "client_software_version",
})  # fmt: skip
_RESERVED = frozenset({"le", "quantile"})
_METRIC = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")
_NO_LABEL = re.compile(r"[^a-z0-9_]")

Labels = tuple[tuple[str, str], ...]
_Key = tuple[str, Labels]


class Kind(Enum):
    """How a value counts."""

    GAUGE = auto()  # the present value
    DELTA = auto()  # what to add to a counter
    TOTAL = auto()  # the present value of a counter


class Point(Struct, frozen=True):
    """One value of one metric. `labels` are names and values as the client sent them."""

    metric: str
    labels: Labels
    kind: Kind
    value: float


class SeriesBounds:
    """Counts the series of all clients of a broker."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self._settings = settings
        self._by_tenant: dict[str, int] = {}
        self._values: dict[tuple[str, str], dict[str, int]] = {}  # by tenant and label: series with each value
        self._gone: deque[tuple[str, Labels, dict[_Key, float]]] = deque()  # tenant, own labels and series
        self.count = 0
        self.dropped = 0
        """Data points that belong to no series."""

    def drop(self, count: int = 1) -> None:
        self.dropped += count

    def admits(self, tenant: str, labels: Labels) -> bool:
        """Whether there is room for one more series; counts it if so."""
        limits = self._settings
        of_tenant = self._by_tenant.get(tenant, 0)
        if self.count >= limits.series_max or of_tenant >= limits.tenant_series_max:
            return False
        for name, value in labels:
            known = self._values.get((tenant, name), {})
            if value not in known and len(known) >= limits.label_values_max:
                return False
        self.count += 1
        self._by_tenant[tenant] = of_tenant + 1
        for name, value in labels:
            known = self._values.setdefault((tenant, name), {})
            known[value] = known.get(value, 0) + 1
        return True

    def release(self, tenant: str, labels: Labels) -> None:
        """A series has gone."""
        self.count -= 1
        _uncount(self._by_tenant, tenant)
        for name, value in labels:
            known = self._values[tenant, name]
            _uncount(known, value)
            if not known:
                del self._values[tenant, name]

    def release_later(self, tenant: str, own: Labels, series: dict[_Key, float]) -> None:
        """A client has gone with these series. They count until `releasing` comes to them."""
        if series:
            self._gone.append((tenant, own, series))

    def releasing(self) -> Work[None]:
        """Release the series of all clients that have gone."""
        while self._gone:
            tenant, own, series = self._gone[0]
            (_, labels), _ = series.popitem()
            if not series:
                self._gone.popleft()
            self.release(tenant, own + labels)
            yield RELEASE_COST


class ClientSeries:
    """The series of one client instance. `own` are the labels that all of them have."""

    def __init__(self, bounds: SeriesBounds, tenant: str, own: Mapping[str, str]) -> None:
        self._bounds = bounds
        self._tenant = tenant
        self._own: Labels = tuple((name, value[:LABEL_LENGTH_MAX]) for name, value in own.items())
        self._shown = {"tenant": tenant, **dict(self._own)}
        self._gauges: dict[_Key, float] = {}
        self._counters: dict[_Key, float] = {}
        self._missing: dict[_Key, None] = {}  # gauges that the present push has not had yet
        self.is_closed = False

    @property
    def count(self) -> int:
        return len(self._gauges) + len(self._counters)

    def begin(self) -> None:
        """A push begins."""
        self._missing = dict.fromkeys(self._gauges)

    def take(self, point: Point) -> None:
        labels = _labels_of(point.labels)
        if self.is_closed or labels is None or not 0 < len(point.metric) <= NAME_LENGTH_MAX:
            return self._bounds.drop()
        if not _METRIC.fullmatch(point.metric):
            return self._bounds.drop()
        key = point.metric, labels
        series, other = self._gauges, self._counters
        if point.kind is not Kind.GAUGE:
            series, other = other, series
        if key in other or (key not in series and not self._bounds.admits(self._tenant, self._own + labels)):
            return self._bounds.drop()
        self._missing.pop(key, None)
        before = series.get(key, 0.0) if point.kind is Kind.DELTA else 0.0
        series[key] = before + point.value
        return None

    def end(self) -> Work[None]:
        """The push had all its points."""
        while self._missing:
            key, _ = self._missing.popitem()
            del self._gauges[key]
            self._bounds.release(self._tenant, self._own + key[1])
            yield RELEASE_COST

    def close(self) -> None:
        """The client has gone."""
        self.is_closed = True
        for series in (self._gauges, self._counters):
            self._bounds.release_later(self._tenant, self._own, series)
        self._gauges, self._counters, self._missing = {}, {}, {}

    def gauges(self) -> Iterator[tuple[Mapping[str, str], float]]:
        return self._samples(self._gauges)

    def counters(self) -> Iterator[tuple[Mapping[str, str], float]]:
        return self._samples(self._counters)

    def _samples(self, series: Mapping[_Key, float]) -> Iterator[tuple[Mapping[str, str], float]]:
        for key in list(series):
            value = series.get(key)
            if value is not None:  # it may have gone meanwhile
                metric, labels = key
                yield {**self._shown, "metric": metric, **dict(labels)}, value


def _uncount(counts: dict[str, int], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _labels_of(given: Labels) -> Labels | None:
    """In Prometheus' form and in order, without those that a client's series have anyway; None if there is too much."""
    if len(given) > LABELS_MAX:
        return None
    found: dict[str, str] = {}
    for name, value in given:
        if not name or len(name) > LABEL_LENGTH_MAX or len(value) > LABEL_LENGTH_MAX:
            return None
        shown = _label_name(name)
        if shown not in OWN_LABELS:
            found[shown] = value
    return tuple(sorted(found.items()))


@lru_cache(maxsize=1_024)
def _label_name(name: str) -> str:
    shown = _NO_LABEL.sub("_", name.lower())
    return f"attribute_{shown}" if shown in _RESERVED or shown[0].isdigit() or shown.startswith("__") else shown
