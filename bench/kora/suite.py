"""The rows of `python -m bench.kora`, in the order of its table."""

from __future__ import annotations

from bench.kora import (
    balance,
    cells,
    cells_real,
    expansion,
    grid,
    load,
    quotas,
    request_costs,
    slow_broker,
    stuck_disk,
)
from bench.kora.evidence import Evidence

SUITE: dict[str, Evidence] = {
    evidence.name: evidence
    for evidence in (
        load.EVIDENCE,
        grid.EVIDENCE,
        quotas.EVIDENCE,
        cells.EVIDENCE,
        cells_real.EVIDENCE,
        request_costs.EVIDENCE,
        expansion.EVIDENCE,
        balance.EVIDENCE,
        slow_broker.EVIDENCE,
        stuck_disk.EVIDENCE,
    )
}
