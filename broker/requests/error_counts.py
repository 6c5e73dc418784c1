"""How many requests of one API failed, by error: a family of `/metrics`."""

from __future__ import annotations

from common.errors import ErrorCode
from common.metrics import Metrics


class ErrorCounts:
    """Counts failed requests by Apache Kafka's error code."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, error: int) -> None:
        self._counts[error] = self._counts.get(error, 0) + 1

    def register(self, metrics: Metrics, name: str) -> None:
        metrics.family(
            name, lambda: [({"error": ErrorCode(code).name}, float(count)) for code, count in self._counts.items()]
        )
