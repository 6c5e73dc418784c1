"""What one broker does for the tier, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from common.backoff import UPPER_HALF, Backoff


@dataclass(slots=True, frozen=True)
class TierConfig:
    """Times in milliseconds. Without a `uri` a broker has no tier."""

    uri: str = ""  # tidelog.tier.uri
    interval_ms: int = 1_000  # tidelog.tier.interval.ms: how often led partitions are looked at
    copies_max: int = 4  # tidelog.tier.copy.threads: segments on their way at one time
    copy_bytes_per_second: float = 0.0  # tidelog.tier.copy.bytes.per.second; 0 is without limit
    delete_delay_ms: int = 86_400_000  # tidelog.tier.delete.delay.ms
    manifest_keep_ms: int = 3_600_000  # tidelog.tier.manifest.keep.ms
    sweep_interval_ms: int = 3_600_000  # tidelog.tier.sweep.interval.ms
    sweep_age_ms: int = 86_400_000  # tidelog.tier.sweep.age.ms
    proposals_interval_ms: int = 5_000  # tidelog.tier.proposals.interval.ms
    erase_grace_ms: int = 60_000  # tidelog.tier.erase.grace.ms
    export_interval_ms: int = 60_000  # tidelog.tier.export.interval.ms
    retention_interval_ms: int = 300_000  # log.retention.check.interval.ms
    proposals_max: int = 4  # decided at one time
    claims_max: int = 64  # on their way at one time
    deletions_max: int = 4
    starts_max: int = 4  # followers that begin from the tier at one time
    backoff_min_ms: int = 200
    backoff_max_ms: int = 30_000

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.backoff_min_ms / 1000, self.backoff_max_ms / 1000, UPPER_HALF)
