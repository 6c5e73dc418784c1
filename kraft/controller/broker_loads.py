"""The brokers' loads from their heartbeats: soft state of the active controller. No I/O.

Loads are exponential means: a report that is one time constant old counts 1/e of a current one. So a peak of some
seconds does not affect the placement of tenants, and an hour ago is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

MEAN_OVER_S = 60.0
CPU_SHARE_MAX = 1_000.0


class MeanLoad(Struct):
    """`at_s`: time of the last heartbeat."""

    broker_epoch: int
    at_s: float
    bytes_per_second: float
    cpu_share: float

    def heard(self, bytes_per_second: float, cpu_share: float, now: float) -> None:
        """Add a heartbeat at `now`, weighted by the time since the last one."""
        weight = -math.expm1(-max(now - self.at_s, 0.0) / MEAN_OVER_S)
        self.bytes_per_second += weight * (bytes_per_second - self.bytes_per_second)
        self.cpu_share += weight * (cpu_share - self.cpu_share)
        self.at_s = now


class BrokerLoads:
    """Times are seconds of one monotonic clock. A broker that was not heard has load 0."""

    def __init__(self) -> None:
        self._means: dict[int, MeanLoad] = {}
        self._measured: Callable[[int], float | None] = lambda _: None

    def measured_by(self, load_of: Callable[[int], float | None]) -> None:
        """`load_of` returns a broker's load from how long requests wait there, None while that is unknown."""
        self._measured = load_of

    def restart(self) -> None:
        self._means.clear()

    def heard(self, broker_id: int, broker_epoch: int, bytes_per_second: float, cpu_share: float, now: float) -> None:
        """Impossible values are clamped."""
        moved = max(float(bytes_per_second), 0.0)
        cpu = min(max(cpu_share, 0.0), CPU_SHARE_MAX) if math.isfinite(cpu_share) else 0.0
        mean = self._means.get(broker_id)
        if mean is None or mean.broker_epoch != broker_epoch:
            self._means[broker_id] = MeanLoad(broker_epoch, now, moved, cpu)
            return
        mean.heard(moved, cpu, now)

    def bytes_per_second(self, broker_id: int) -> float:
        mean = self._means.get(broker_id)
        return 0.0 if mean is None else mean.bytes_per_second

    def load(self, broker_id: int) -> float:
        """From 0 to 1. While it is unknown, as for some seconds after an election, the CPU share stands in for it: a
        tenant that is to be placed does not wait for reports."""
        measured = self._measured(broker_id)
        return min(self.cpu_share(broker_id), 1.0) if measured is None else measured

    def cpu_share(self, broker_id: int) -> float:
        mean = self._means.get(broker_id)
        return 0.0 if mean is None else mean.cpu_share
