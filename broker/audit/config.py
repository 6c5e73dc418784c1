"""What a broker does for the audit, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from common.backoff import UPPER_HALF, Backoff


@dataclass(slots=True, frozen=True)
class AuditConfig:
    """Sizes in bytes, times in milliseconds; the settings that set them stand beside."""

    journal_max_bytes: int = 64 << 20  # tidelog.audit.journal.max.bytes
    export_retention_ms: int = 7_776_000_000  # tidelog.audit.export.retention.ms; -1: for ever
    linger_ms: int = 100
    batch_bytes: int = 256 << 10
    backoff_min_ms: int = 400
    backoff_max_ms: int = 30_000
    call_timeout_ms: int = 10_000

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.backoff_min_ms / 1000, self.backoff_max_ms / 1000, UPPER_HALF)
