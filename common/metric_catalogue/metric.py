"""How a metric is declared: its name, kind, labels, meaning, and what to do about it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["counter", "gauge", "histogram", "summary"]
BROKERS_MAX = 1_000
NAMED_MAX = 1_001
"""Of labels that name what may grow, such as tenants: the thousand that a page names, and one for all others."""
KINDS_MAX = 200  # values that the code fixes: causes, reasons, error codes


class Label(Struct, frozen=True):
    """A label of a metric. `values`: how many one page has at most, whatever clients send."""

    name: str
    meaning: str
    values: int


class Metric(Struct, frozen=True):
    """One metric. `act` is what an operator does about it; `own_labels`: has further labels, which clients name, and a
    bound on its series as a whole. `buckets` are a histogram's, but for the last one, which has no end."""

    name: str
    kind: Kind
    meaning: str
    act: str
    labels: tuple[Label, ...] = ()
    own_labels: bool = False
    buckets: tuple[float, ...] = ()

    @property
    def unit(self) -> str:
        """As the name says it; "" of a number."""
        name = self.name.removesuffix("_total")
        if name.endswith("bytes_per_second"):
            return "bytes per second"
        return next((unit for unit in ("seconds", "bytes", "ratio") if unit in name.split("_")), "")


class Area(Struct, frozen=True):
    """Metrics that are read together; `title` and `text` begin their section of the docs."""

    title: str
    text: str
    metrics: tuple[Metric, ...]


def gauge(name: str, meaning: str, act: str, *labels: Label) -> Metric:
    """A value that goes up and down."""
    return Metric(name, "gauge", meaning, act, labels)


def counter(name: str, meaning: str, act: str, *labels: Label) -> Metric:
    """A value that only grows while the process lives; its name ends in `_total`."""
    return Metric(name, "counter", meaning, act, labels)


def info(meaning: str) -> str:
    """The `act` of a metric that explains others and asks for nothing by itself."""
    return f"Nothing by itself: {meaning}"


BROKER = Label("broker", "the broker's id", BROKERS_MAX)
TENANT = Label("tenant", "the tenant's id, or `others` for those that a page has no room to name", NAMED_MAX)
DIRECTION = Label("direction", "`in` from clients, `out` to them", 2)
