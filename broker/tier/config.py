"""Settings of a broker's work for the tier, and constants."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from common.backoff import UPPER_HALF, Backoff
from common.node_settings.tier import TierSettings
from common.node_settings.topics import BrokerLogSettings
from common.settings import same
from tiering.manifests.manifest import PAGING, Paging


class WorkKind(Enum):
    """Kinds of work on a partition; each kind has its own limit."""

    CLAIM = "claim"
    COPY = "copy"
    DELETE = "delete"


@dataclass(slots=True, frozen=True)
class TierConfig(TierSettings):
    """Times in milliseconds. Without a `uri` a broker has no tier."""

    retention_interval_ms: int = same(BrokerLogSettings, "log_retention_check_interval_ms")
    proposals_max: int = 4  # decided at a time
    claims_max: int = 64  # claims in flight
    deletions_max: int = 4
    starts_max: int = 4  # followers that start from the tier at a time
    backoff_min_ms: int = 200
    backoff_max_ms: int = 30_000
    paging: Paging = PAGING  # of manifests

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.backoff_min_ms / 1000, self.backoff_max_ms / 1000, UPPER_HALF)

    @property
    def places(self) -> dict[WorkKind, int]:
        """How many partitions may be at each kind of work at a time."""
        return {
            WorkKind.CLAIM: self.claims_max,
            WorkKind.COPY: self.copies_max,
            WorkKind.DELETE: self.deletions_max,
        }
