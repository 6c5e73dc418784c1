"""Counters and gauges of one node, read only by a scrape.

Rooms keep plain integers and register functions that read them. So a metric costs the hot path an integer addition, and
the first scrape loads the Prometheus library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

Kind = Literal["counter", "gauge"]
Samples = Iterable[tuple[Mapping[str, str], float]]
Totals = Iterable[tuple[Mapping[str, str], tuple[int, float]]]


class _Family(Struct, frozen=True):
    name: str
    kind: Kind
    doc: str
    read: Callable[[], Samples]


class _Summary(Struct, frozen=True):
    name: str
    doc: str
    read: Callable[[], Totals]


class Metrics:
    """The metrics of one node. Not global: several nodes share a process in tests."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._summaries: dict[str, _Summary] = {}
        self._registry: CollectorRegistry | None = None

    def gauge(self, name: str, doc: str, read: Callable[[], float]) -> None:
        """A value that goes up and down; `name` begins with `tidelog_`."""
        self.family(name, "gauge", doc, lambda: [({}, read())])

    def counter(self, name: str, doc: str, read: Callable[[], float]) -> None:
        """A value that only grows while the process lives; its name ends in `_total`."""
        self.family(name, "counter", doc, lambda: [({}, read())])

    def family(self, name: str, kind: Kind, doc: str, read: Callable[[], Samples]) -> None:
        """A metric with labels: `read` yields (labels, value) pairs, all with the same label names."""
        self._check_new(name)
        self._families[name] = _Family(name, kind, doc, read)

    def summary(self, name: str, doc: str, read: Callable[[], Totals]) -> None:
        """Counts and sums with labels: `read` yields (labels, (count, sum)) pairs."""
        self._check_new(name)
        self._summaries[name] = _Summary(name, doc, read)

    def _check_new(self, name: str) -> None:
        if name in self._families or name in self._summaries:
            raise ValueError(f"metric {name} is registered twice")

    @staticmethod
    def prepare() -> None:
        """Import the library that writes the text. Call it in a thread: the first call takes tens of milliseconds."""
        import prometheus_client.core  # noqa: PLC0415, F401

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415

        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """The Prometheus library's protocol of a collector."""
        from prometheus_client.core import (  # noqa: PLC0415
            CounterMetricFamily,
            GaugeMetricFamily,
            SummaryMetricFamily,
        )

        for family in self._families.values():
            samples = list(family.read())
            labels = list(samples[0][0]) if samples else []
            make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = make(family.name, family.doc, labels=labels)
            for values, value in samples:
                metric.add_metric([values[label] for label in labels], value)
            yield metric
        for summary in self._summaries.values():
            totals = list(summary.read())
            labels = list(totals[0][0]) if totals else []
            found = SummaryMetricFamily(summary.name, summary.doc, labels=labels)
            for values, (count, total) in totals:
                found.add_metric([values[label] for label in labels], count, total)
            yield found
