"""Cells: disjoint groups of brokers, in which tenants live."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field

from kraft.image.brokers import BrokerImage
from kraft.records import CellRecord

CELL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
DEFAULT_CELL = "default"
"""The cell of a broker that names none."""

REPLICAS_PER_BROKER_MAX = "replicas.per.broker.max"
TENANTS_MAX = "tenants.max"
BANDWIDTH_PER_BROKER = "bandwidth.per.broker"
CELL_LIMITS = (REPLICAS_PER_BROKER_MAX, TENANTS_MAX, BANDWIDTH_PER_BROKER)
"""Limits that a cell may set; the default is the setting `tidelog.cell.<limit>`."""


class CellImage(Struct, frozen=True):
    """An operator's settings of a cell. A cell without any is open, with the default limits."""

    name: str
    is_open: bool = True
    limits: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, record: CellRecord) -> CellImage:
        return cls(record.name, record.is_open, record.limits)

    def record(self) -> CellRecord:
        return CellRecord(self.name, self.is_open, dict(self.limits))


def cell_of(broker: BrokerImage) -> str:
    """The cell that a broker is in."""
    return broker.cell or DEFAULT_CELL


def cell_names(cells: Mapping[str, CellImage], brokers: Mapping[int, BrokerImage]) -> list[str]:
    """The names of all cells, created by an operator or named by a broker; sorted."""
    return sorted({*cells, *(cell_of(broker) for broker in brokers.values())})


def brokers_of(cell: str, brokers: Mapping[int, BrokerImage]) -> list[BrokerImage]:
    """The brokers of one cell, by id."""
    return [brokers[broker_id] for broker_id in sorted(brokers) if cell_of(brokers[broker_id]) == cell]
