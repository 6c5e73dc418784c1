"""Tenants' shares of their quotas."""

from dataclasses import dataclass
from enum import StrEnum

from common.settings import CLUSTER_WIDE, seconds, setting


class ShareMode(StrEnum):
    """How tenants' quotas are split over brokers. OBSERVE is a dry run: as STATIC, while shares are computed."""

    DYNAMIC = "dynamic"
    STATIC = "static"
    OBSERVE = "observe"


def per_mille(ratio: float) -> int:
    return round(ratio * 1000)


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """How the active controller splits tenants' quotas over brokers. docs/quotas.md explains it."""

    # fmt: off
    mode: str = setting("tidelog.quota.shares", "string", "dynamic",
        "How tenants' quotas are split over brokers: by demand (dynamic) or evenly (static). With observe they are "
        "split evenly, and `tidelog quotas shares` shows what dynamic would give. The active controller reads it.",
        choices=tuple(ShareMode), update=CLUSTER_WIDE)
    lazy_per_mille: int = setting("tidelog.quota.lazy.ratio", "double", 0.8,
        "The part of its quota from which on a tenant has a share of it at each broker; below it, no broker throttles "
        "the tenant for its quota.", 0.1, 1, read_as=per_mille)
    share_interval_s: float = setting("tidelog.quota.share.interval.ms", "int", 10_000,
        "How often the shares of a tenant are computed.", 100, 3_600_000, read_as=seconds)
    stale_s: float = setting("tidelog.quota.stale.ms", "int", 60_000,
        "How long a broker acts on a share without hearing an active controller; then it grants an even part of the "
        "quota. The same on all nodes.", 1_000, 3_600_000, read_as=seconds)
    keep_s: float = setting("tidelog.quota.keep.ms", "int", 15_000,
        "How long a controller that has become active waits for the reports of all brokers before it computes shares.",
        0, 3_600_000, read_as=seconds)
    # fmt: on
