"""For each alarm: what raises it, and what is near and does not. In promtool's notation of series."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tests.boards.objectives import OBJECTIVES, QUICK_S

NODE = 'instance="n1", job="tidelog"'
ACTIVE = {f"tidelog_controller_active{{{NODE}}}": "1x300"}
REQUESTS, QUICK = "tidelog_produce_latency_seconds_count", "tidelog_produce_latency_seconds_bucket"
FAILED = "tidelog_produce_failures_total"
LONG_STEP_MIN = 30
LONG = 4 * 24 * 60 // LONG_STEP_MIN  # steps of four days


class Case(NamedTuple):
    """`raised` and `quiet`: values by series, one each `step_min`. `at_min`: when it is looked at."""

    raised: dict[str, str]
    quiet: dict[str, str]
    at_min: int = 60
    step_min: int = 1


def over_days(raised: dict[str, str], quiet: dict[str, str]) -> Case:
    """A case of four days."""
    return Case(raised, quiet, (LONG - 2) * LONG_STEP_MIN, LONG_STEP_MIN)


def of(
    metric: str,
    raised: str,
    quiet: str,
    at_min: int = 60,
    also: Mapping[str, str] = MappingProxyType({}),
    step_min: int = 1,
) -> Case:
    """One series of one node. `also`: further metrics of it, the same in both."""
    name = metric if "{" in metric else f"{metric}{{{NODE}}}"
    others = {f"{other}{{{NODE}}}": values for other, values in also.items()}
    return Case({name: raised, **others}, {name: quiet, **others}, at_min, step_min)


def active(metric: str, raised: str, quiet: str, also: Mapping[str, str] = MappingProxyType({})) -> Case:
    """Of the active controller."""
    return of(metric, raised, quiet, 60, {"tidelog_controller_active": "1x300", **also})


CASES = {
    "TidelogNodeDown": of("up", "0x300", "1x300"),
    "TidelogNoActiveController": of("tidelog_controller_active", "0x300", "1x300"),
    "TidelogControllerMissing": active(
        "tidelog_quorum_voters_reached", "2x300", "3x300", {"tidelog_quorum_voters": "3x300"}
    ),
    "TidelogElectionsRepeat": of("tidelog_quorum_term", "1+1x300", "1x300"),
    "TidelogMetadataNotHeard": of("tidelog_metadata_heard_seconds", "6x300", "0.4x300"),
    "TidelogOfflinePartitions": active("tidelog_cluster_offline_partitions", "1x300", "0x300"),
    "TidelogUnderMinIsr": of("tidelog_under_min_isr_partitions", "1x300", "0x300"),
    "TidelogUnderReplicated": of("tidelog_under_replicated_partitions", "1x300", "0x50 1x10"),
    "TidelogBrokerFenced": active("tidelog_brokers_fenced", "1x300", "0x50 1x10"),
    "TidelogBrokerUnhealthy": Case(
        {f'tidelog_broker_health{{{NODE}, broker="2", state="slow"}}': "1x300", **ACTIVE},
        {f'tidelog_broker_health{{{NODE}, broker="2", state="healthy"}}': "1x300", **ACTIVE},
    ),
    "TidelogHealthFailSafe": of("tidelog_health_fail_safe", "1x300", "0x300"),
    "TidelogBrokerUnreached": of("tidelog_lacks_clients", "1x300", "0x300"),
    "TidelogHangingTransaction": of("tidelog_open_transaction_age_seconds", "900+60x300", "800x300"),
    "TidelogDiskFull": of("tidelog_lacks_room", "1x300", "0x300"),
    "TidelogDiskFillsSoon": of(
        "tidelog_disk_free_bytes", "30e9-4e8x70", "30e9x70", 500, {"tidelog_disk_size_bytes": "1e11x70"}, step_min=10
    ),
    # a node that ends shows it to one scrape, and is then not there
    "TidelogStorageStuck": of("tidelog_storage_stuck_seconds", "0.1x58 6 stale", "0.1x50 6 0.1x60"),
    "TidelogReplicasHeldUp": of(
        "tidelog_replicas_held_up", "1x300", "0x300", 60, {"tidelog_replicas_without_room": "0x300"}
    ),
    "TidelogBrokerSaturated": of("tidelog_broker_load", "0.9x300", "0.7x300"),
    "TidelogCellsExhausted": of("tidelog_cells_exhausted", "1x300", "0x300"),
    "TidelogLoopHeld": of(f'tidelog_loop_held_seconds_count{{{NODE}, what="m:f"}}', "0+4x300", "0+1x300"),
    "TidelogNodeRestarts": of("tidelog_process_start_timestamp_seconds", "0+60x300", "1000x300"),
    "TidelogTierRefused": of("tidelog_tier_refused_since_timestamp_seconds", "60x300", "0x300"),
    "TidelogTierUnclaimed": of("tidelog_tier_unclaimed_partitions", "2x300", "0x300"),
    "TidelogTierReadsFail": of(
        "tidelog_tier_download_failures_total", "0+2x300", "0x300", 60, {"tidelog_tier_downloads_total": "0+10x300"}
    ),
    "TidelogExportTrouble": of("tidelog_controller_export_trouble_since_timestamp_seconds", "60x300", "0x300", 90),
    "TidelogAuditLost": of("tidelog_audit_events_lost_total", "0x50 5x10", "5x300"),
    "TidelogCertificateEnds": of("tidelog_certificate_expires_seconds", "864000x300", "2592000x300", 90),
    "TidelogGroupBehind": of(
        f'tidelog_group_lag_seconds{{{NODE}, tenant="", group="g"}}', "0+60x300", "2000-10x150", 90
    ),
    "TidelogGroupsUnknown": of("tidelog_groups_lag_unknown_partitions", "3x300", "0x300"),
}


def produced(failed: str, quick: str) -> dict[str, str]:
    """A hundred requests a step, and how many of them failed and how many were quick."""
    return {
        f"{REQUESTS}{{{NODE}}}": f"0+100x{LONG}",
        f'{QUICK}{{{NODE}, le="{QUICK_S}"}}': quick,
        f'{FAILED}{{{NODE}, error="NOT_ENOUGH_REPLICAS"}}': failed,
    }


def fetched(failed: str) -> dict[str, str]:
    """A hundred answers a step, how many of them failed, and as many failures that are the clients' own."""
    return {
        f"tidelog_fetch_responses_total{{{NODE}}}": f"0+100x{LONG}",
        f'tidelog_fetch_failures_total{{{NODE}, error="OFFSET_NOT_AVAILABLE"}}': failed,
        f'tidelog_fetch_failures_total{{{NODE}, error="OFFSET_OUT_OF_RANGE"}}': f"0+50x{LONG}",
    }


OFFLINE, ALL = f"tidelog_cluster_offline_partitions{{{NODE}}}", f"tidelog_cluster_partitions{{{NODE}}}"
UNFAIR = f'tidelog_tenant_unfair_throttle_seconds_total{{{NODE}, tenant="t"}}'
LATE = f"tidelog_tier_copy_lag_seconds{{{NODE}}}"
FAST = {
    "produce_availability": Case(produced("0+10x300", "0+100x300"), produced("0+0.01x300", "0+100x300"), 75),
    "produce_latency": Case(produced("0x300", "0+50x300"), produced("0x300", "0+99.9x300"), 75),
    "fetch_availability": Case(fetched("0+10x300"), fetched("0+0.01x300"), 75),
    "partitions_online": Case({OFFLINE: "5x300", ALL: "100x300"}, {OFFLINE: "0x300", ALL: "100x300"}, 75),
    "fairness": Case({UNFAIR: "0+6x300"}, {UNFAIR: "0x300"}, 75),
    "tier_freshness": Case({LATE: "1000x300"}, {LATE: "10x300"}, 75),
}
SLOW = {
    "produce_availability": over_days(
        produced(f"0+0.4x{LONG}", f"0+100x{LONG}"), produced(f"0+0.05x{LONG}", f"0+100x{LONG}")
    ),
    "produce_latency": over_days(produced(f"0x{LONG}", f"0+96x{LONG}"), produced(f"0x{LONG}", f"0+99.5x{LONG}")),
    "fetch_availability": over_days(fetched(f"0+0.4x{LONG}"), fetched(f"0+0.05x{LONG}")),
    "partitions_online": over_days(
        {OFFLINE: f"1x{LONG}", ALL: f"2500x{LONG}"}, {OFFLINE: f"0x{LONG}", ALL: f"2500x{LONG}"}
    ),
    "fairness": over_days({UNFAIR: f"0+7x{LONG}"}, {UNFAIR: f"0+0.9x{LONG}"}),
    "tier_freshness": over_days({LATE: f"1000x{LONG}"}, {LATE: f"10x{LONG}"}),
}
CASES |= {f"{one.alarm}BurnsFast": FAST[one.slo] for one in OBJECTIVES}
CASES |= {f"{one.alarm}BurnsSlowly": SLOW[one.slo] for one in OBJECTIVES}
