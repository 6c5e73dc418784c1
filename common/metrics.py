"""Counters and gauges of one node, read when somebody scrapes and at no other time.

Rooms keep plain integers; they register a function that reads them. So a metric costs the hot path an integer
addition, and the Prometheus library is loaded by the first scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

Kind = Literal["counter", "gauge"]
Samples = Iterable[tuple[Mapping[str, str], float]]


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    kind: Kind
    doc: str
    read: Callable[[], Samples]


class Metrics:
    """The metrics of one node. Not global: several nodes share a process in tests."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._registry: CollectorRegistry | None = None

    def gauge(self, name: str, doc: str, read: Callable[[], float]) -> None:
        """A value that goes up and down; `name` begins with `tidelog_`."""
        self.family(name, "gauge", doc, lambda: [({}, read())])

    def counter(self, name: str, doc: str, read: Callable[[], float]) -> None:
        """A value that only grows while the process lives; its name ends in `_total`."""
        self.family(name, "counter", doc, lambda: [({}, read())])

    def family(self, name: str, kind: Kind, doc: str, read: Callable[[], Samples]) -> None:
        """A metric with labels: `read` yields (labels, value) pairs, all with the same label names."""
        if name in self._families:
            raise ValueError(f"metric {name} is registered twice")
        self._families[name] = _Family(name, kind, doc, read)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415

        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """What the Prometheus library asks of a collector."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

        for family in self._families.values():
            samples = list(family.read())
            labels = list(samples[0][0]) if samples else []
            make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = make(family.name, family.doc, labels=labels)
            for values, value in samples:
                metric.add_metric([values[label] for label in labels], value)
            yield metric
