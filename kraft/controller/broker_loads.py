"""How much each broker does, as its heartbeats say: soft state of the active controller. Pure.

What is kept is a mean that forgets: what was said a time constant ago counts 1/e of what is said now. So a peak of some
seconds draws no tenant away, and an hour ago is forgotten.
"""

from __future__ import annotations

import math

from msgspec import Struct

MEAN_OVER_S = 60.0
CPU_SHARE_MAX = 1_000.0


class MeanLoad(Struct):
    """`at_s` is when it was last heard of."""

    broker_epoch: int
    at_s: float
    bytes_per_second: float
    cpu_share: float

    def heard(self, bytes_per_second: float, cpu_share: float, now: float) -> None:
        """Count what a heartbeat at `now` says, by how long the last one is ago."""
        weight = -math.expm1(-max(now - self.at_s, 0.0) / MEAN_OVER_S)
        self.bytes_per_second += weight * (bytes_per_second - self.bytes_per_second)
        self.cpu_share += weight * (cpu_share - self.cpu_share)
        self.at_s = now


class BrokerLoads:
    """Times are seconds of one monotonic clock. A broker that was not heard of does nothing."""

    def __init__(self) -> None:
        self._means: dict[int, MeanLoad] = {}

    def restart(self) -> None:
        self._means.clear()

    def heard(self, broker_id: int, broker_epoch: int, bytes_per_second: float, cpu_share: float, now: float) -> None:
        """What no broker can do counts as nothing, or as the most there is."""
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

    def cpu_share(self, broker_id: int) -> float:
        mean = self._means.get(broker_id)
        return 0.0 if mean is None else mean.cpu_share
