"""Metrics of one node, read only by a scrape. What each is, the catalogue says (`common/metric_catalogue`).

Rooms keep plain integers and register functions that read them. So a metric costs the hot path an integer addition, and
the first scrape loads the Prometheus library.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from common.metric_catalogue.catalogue import METRICS
from common.metric_catalogue.metric import Kind, Metric

if TYPE_CHECKING:
    from prometheus_client.core import Metric as MetricFamily

SAMPLES_AT_ONCE = 500
COUNTED_AT_ONCE = 2_000
_HEAD_LINES = 2  # of a family's text: help and type

T = TypeVar("T")
Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float] | None]
"""Labels and value; None where the work of finding the next sample may be interrupted."""
Totals = Iterable[tuple[Labels, tuple[int, float]]]


def counted(things: Iterable[T], holds: Callable[[T], bool], found: int = 0) -> Samples:
    """For `Metrics.family`: a gauge of how many of `things` it holds for, and `found` more. Interrupted now and then,
    because things may be many. They must not change meanwhile."""
    for number, thing in enumerate(things, 1):
        found += holds(thing)
        if number % COUNTED_AT_ONCE == 0:
            yield None
    yield {}, float(found)


class Histogram:
    """Counts by the bucket of a value. `bounds` are the upper ends of all buckets but the last."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """One value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class _Series(Struct, frozen=True):
    metric: Metric
    read: Callable[[], Samples]


class _Summary(Struct, frozen=True):
    metric: Metric
    read: Callable[[], Totals]


class _Buckets(Struct, frozen=True):
    metric: Metric
    read: Callable[[], Histogram]


class Metrics:
    """The metrics of one node. Not global: several nodes share a process in tests."""

    def __init__(self, catalogue: Mapping[str, Metric] = METRICS) -> None:
        self._catalogue = catalogue
        self._shown: dict[str, _Series | _Summary | _Buckets] = {}

    @property
    def names(self) -> list[str]:
        """Those that are registered."""
        return list(self._shown)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """A value that goes up and down."""
        metric = self._declared(name, "gauge")
        self._shown[name] = _Series(metric, lambda: [({}, read())])

    def counter(self, name: str, read: Callable[[], float]) -> None:
        """A value that only grows while the process lives."""
        metric = self._declared(name, "counter")
        self._shown[name] = _Series(metric, lambda: [({}, read())])

    def family(self, name: str, read: Callable[[], Samples]) -> None:
        """A gauge or counter with labels: `read` yields (labels, value) pairs. It may go on yielding while values
        change."""
        self._shown[name] = _Series(self._declared(name, "gauge", "counter"), read)

    def summary(self, name: str, read: Callable[[], Totals]) -> None:
        """Counts and sums with labels: `read` yields (labels, (count, sum)) pairs."""
        self._shown[name] = _Summary(self._declared(name, "summary"), read)

    def histogram(self, name: str, read: Callable[[], Histogram]) -> None:
        """Counts by buckets, those of the catalogue."""
        self._shown[name] = _Buckets(self._declared(name, "histogram"), read)

    def _declared(self, name: str, *kinds: Kind) -> Metric:
        metric = self._catalogue.get(name)
        if metric is None or metric.kind not in kinds:
            raise ValueError(f"metric {name} is not in the catalogue as a {' or '.join(kinds)}")
        if name in self._shown:
            raise ValueError(f"metric {name} is registered twice")
        return metric

    @staticmethod
    def prepare() -> None:
        """Import the library that writes the text. Call it in a thread: the first call takes tens of milliseconds."""
        import prometheus_client.core  # noqa: PLC0415, F401

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """`text` in pieces of at most `SAMPLES_AT_ONCE` samples, so that other work of the loop fits between them."""
        for shown in self._shown.values():
            if isinstance(shown, _Series):
                yield from _series_text(shown)
            elif isinstance(shown, _Summary):
                yield _summary_text(shown)
            else:
                yield _histogram_text(shown)


def _series_text(series: _Series) -> Iterator[bytes]:
    from prometheus_client import generate_latest  # noqa: PLC0415
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

    declared = series.metric
    make = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
    samples, is_first, is_last = iter(series.read()), True, False
    while not is_last:
        part, is_last = _stretch(samples)
        if not part and not is_last:
            yield b""
            continue
        family = make(declared.name, declared.meaning)
        for labels, value in part:
            family.add_sample(declared.name, dict(labels), value)
        text = generate_latest(_Page(family))
        yield text if is_first else text.split(b"\n", _HEAD_LINES)[_HEAD_LINES]
        is_first = False


def _stretch(samples: Iterator[tuple[Labels, float] | None]) -> tuple[list[tuple[Labels, float]], bool]:
    """Samples up to the next pause, and whether they were the last."""
    found: list[tuple[Labels, float]] = []
    for one in samples:
        if one is None:
            return found, False
        found.append(one)
        if len(found) == SAMPLES_AT_ONCE:
            return found, False
    return found, True


def _summary_text(summary: _Summary) -> bytes:
    from prometheus_client import generate_latest  # noqa: PLC0415
    from prometheus_client.core import SummaryMetricFamily  # noqa: PLC0415

    name = summary.metric.name
    family = SummaryMetricFamily(name, summary.metric.meaning)
    for labels, (count, total) in summary.read():
        family.add_sample(name + "_count", dict(labels), count)
        family.add_sample(name + "_sum", dict(labels), total)
    return generate_latest(_Page(family))


def _histogram_text(buckets: _Buckets) -> bytes:
    from prometheus_client import generate_latest  # noqa: PLC0415
    from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415

    found, bounds = buckets.read(), [*map(str, buckets.metric.buckets), "+Inf"]
    family = HistogramMetricFamily(buckets.metric.name, buckets.metric.meaning)
    family.add_metric([], list(zip(bounds, accumulate(found.counts), strict=True)), found.sum)
    return generate_latest(_Page(family))


class _Page:
    """The Prometheus library's protocol of a registry, with one metric."""

    def __init__(self, metric: MetricFamily) -> None:
        self._metric = metric

    def collect(self) -> Iterable[MetricFamily]:
        return [self._metric]
