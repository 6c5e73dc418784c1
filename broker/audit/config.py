"""Settings of a broker's part of the audit, and constants."""

from __future__ import annotations

from dataclasses import dataclass

from common.backoff import UPPER_HALF, Backoff
from common.node_settings.audit import AuditSettings


@dataclass(slots=True, frozen=True)
class AuditConfig(AuditSettings):
    """Sizes in bytes, times in milliseconds."""

    linger_ms: int = 100
    batch_bytes: int = 256 << 10
    backoff_min_ms: int = 400
    backoff_max_ms: int = 30_000
    call_timeout_ms: int = 10_000

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.backoff_min_ms / 1000, self.backoff_max_ms / 1000, UPPER_HALF)
