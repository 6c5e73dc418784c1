"""How one run of a plan ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.sim.plan import Plan


@dataclass(slots=True)
class Report:
    """How a run ended. `failure` is empty when all held."""

    plan: Plan
    failure: str = ""
    trace_hash: str = ""
    steps: int = 0
    acknowledged: int = 0
    shown: int = 0
    virtual_s: float = 0.0
    costliest: str = ""  # of the callbacks, if work was counted
    wall_s: float = 0.0
    coverage: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
