"""Every alarm: when it is raised, how urgent it is, and where docs/monitoring.md says what to do.

`page`: somebody is woken, because clients suffer or records are in danger. `ticket`: it can wait for the morning.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.boards.objectives import OBJECTIVES, PAGE, TICKET, burns

ACTIVE = "and on (instance) (tidelog_controller_active == 1)"
DAY_S = 86_400


class Alarm(NamedTuple):
    """`expr` holds for `lasting` before it is raised. Its section of the docs is named after `section`."""

    name: str
    severity: str
    lasting: str
    expr: str
    summary: str
    section: str


def _alarm(name: str, severity: str, lasting: str, expr: str, summary: str) -> Alarm:
    return Alarm(name, severity, lasting, expr, summary, name)


STATES = (
    _alarm(
        "TidelogNodeDown", "page", "2m", 'up{job="tidelog"} == 0',
        "{{ $labels.instance }} does not answer.",
    ),
    _alarm(
        "TidelogNoActiveController", "page", "30s", "(sum(tidelog_controller_active) or vector(0)) < 1",
        "No controller is active: no metadata change is possible, and no leader is elected.",
    ),
    _alarm(
        "TidelogControllerMissing", "ticket", "5m",
        f"(tidelog_quorum_voters - tidelog_quorum_voters_reached > 0) {ACTIVE}",
        "{{ $value }} controllers do not answer the active one; the quorum survives fewer further losses.",
    ),
    _alarm(
        "TidelogElectionsRepeat", "ticket", "0m", "max(delta(tidelog_quorum_term[15m])) > 5",
        "The quorum has had {{ $value | humanize }} terms in 15 minutes.",
    ),
    _alarm(
        "TidelogMetadataNotHeard", "page", "30s", "tidelog_metadata_heard_seconds > 5",
        "{{ $labels.instance }} has heard no controller for {{ $value | humanizeDuration }}.",
    ),
    _alarm(
        "TidelogOfflinePartitions", "page", "1m", f"(tidelog_cluster_offline_partitions > 0) {ACTIVE}",
        "{{ $value }} partitions have no leader: they can be neither read nor written.",
    ),
    _alarm(
        "TidelogUnderMinIsr", "page", "1m", "tidelog_under_min_isr_partitions > 0",
        "{{ $value }} partitions on {{ $labels.instance }} refuse producers with acks=all.",
    ),
    _alarm(
        "TidelogUnderReplicated", "ticket", "15m", "sum(tidelog_under_replicated_partitions) > 0",
        "{{ $value }} partitions lack a replica in sync.",
    ),
    _alarm(
        "TidelogBrokerFenced", "ticket", "15m", f"(tidelog_brokers_fenced > 0) {ACTIVE}",
        "{{ $value }} registered brokers do not serve.",
    ),
    _alarm(
        "TidelogBrokerUnhealthy", "ticket", "5m", f'(tidelog_broker_health{{state!="healthy"}} == 1) {ACTIVE}',
        "Broker {{ $labels.broker }} is put aside: {{ $labels.state }}.",
    ),
    _alarm(
        "TidelogHealthFailSafe", "page", "2m", "tidelog_health_fail_safe == 1",
        "The controller sees a sick broker and does nothing, because that could do harm. Decide yourself.",
    ),
    _alarm(
        "TidelogBrokerUnreached", "page", "1m", "tidelog_lacks_clients == 1",
        "Neither clients nor other brokers reach {{ $labels.instance }}.",
    ),
    _alarm(
        "TidelogHangingTransaction", "page", "5m", "tidelog_open_transaction_age_seconds > 1200",
        "A transaction on {{ $labels.instance }} has been open for {{ $value | humanizeDuration }}: readers of "
        "committed records and the tier stand still before it.",
    ),
    _alarm(
        "TidelogDiskFull", "page", "0m", "tidelog_lacks_room == 1",
        "{{ $labels.instance }} refuses Produce: its disk is full.",
    ),
    _alarm(
        "TidelogDiskFillsSoon", "ticket", "30m",
        f"(predict_linear(tidelog_disk_free_bytes[6h], {DAY_S}) < 0) and "
        "(tidelog_disk_free_bytes / tidelog_disk_size_bytes < 0.4)",
        "The disk of {{ $labels.instance }} will be full within a day.",
    ),
    _alarm(
        "TidelogStorageStuck", "page", "0m", "max_over_time(tidelog_storage_stuck_seconds[5m]) > 5",
        "The disk of {{ $labels.instance }} did not answer for {{ $value | humanizeDuration }}.",
    ),
    _alarm(
        "TidelogReplicasHeldUp", "ticket", "10m", "tidelog_replicas_held_up + tidelog_replicas_without_room > 0",
        "{{ $value }} replicas on {{ $labels.instance }} make no progress.",
    ),
    _alarm(
        "TidelogBrokerSaturated", "ticket", "15m", "tidelog_broker_load > 0.85",
        "The load of {{ $labels.instance }} is {{ $value | humanizePercentage }}.",
    ),
    _alarm(
        "TidelogCellsExhausted", "ticket", "15m", "tidelog_cells_exhausted > 0",
        "{{ $value }} cells are overloaded, and no other can take a tenant.",
    ),
    _alarm(
        "TidelogLoopHeld", "ticket", "0m", "sum by (instance) (increase(tidelog_loop_held_seconds_count[15m])) > 30",
        "{{ $labels.instance }} was held {{ $value | humanize }} times in 15 minutes by single callbacks.",
    ),
    _alarm(
        "TidelogNodeRestarts", "ticket", "0m", "changes(tidelog_process_start_timestamp_seconds[30m]) > 2",
        "{{ $labels.instance }} has started {{ $value }} times in half an hour.",
    ),
    _alarm(
        "TidelogTierRefused", "page", "1m",
        "(time() - tidelog_tier_refused_since_timestamp_seconds > 600) and "
        "(tidelog_tier_refused_since_timestamp_seconds > 0)",
        "The object store has taken nothing from {{ $labels.instance }} for {{ $value | humanizeDuration }}.",
    ),
    _alarm(
        "TidelogTierUnclaimed", "ticket", "15m", "tidelog_tier_unclaimed_partitions > 0",
        "{{ $value }} partitions of {{ $labels.instance }} are not claimed in the tier: nothing of them is copied.",
    ),
    _alarm(
        "TidelogTierReadsFail", "ticket", "15m",
        "rate(tidelog_tier_download_failures_total[15m]) > 0.1 * rate(tidelog_tier_downloads_total[15m])",
        "Reads from the tier fail on {{ $labels.instance }}.",
    ),
    _alarm(
        "TidelogExportTrouble", "ticket", "0m",
        '(time() - min by (instance) ({__name__=~"tidelog_.*export_trouble_since_timestamp_seconds"} > 0)) > 3600',
        "{{ $labels.instance }} has exported nothing to the object store for {{ $value | humanizeDuration }}.",
    ),
    _alarm(
        "TidelogAuditLost", "page", "0m", "increase(tidelog_audit_events_lost_total[1h]) > 0",
        "{{ $labels.instance }} has lost {{ $value | humanize }} events of the audit.",
    ),
    _alarm(
        "TidelogCertificateEnds", "ticket", "1h",
        f"(tidelog_certificate_expires_seconds - time() < {14 * DAY_S}) or "
        f"((tidelog_proxy_certificate_ends_seconds - time() < {14 * DAY_S}) and "
        "(tidelog_proxy_certificate_ends_seconds > 0))",
        "A certificate of {{ $labels.instance }} ends within two weeks.",
    ),
    _alarm(
        "TidelogGroupBehind", "ticket", "10m",
        "(tidelog_group_lag_seconds > 1800) and (deriv(tidelog_group_lag_seconds[30m]) > 0)",
        "Group {{ $labels.group }} of tenant {{ $labels.tenant }} is {{ $value | humanizeDuration }} behind, "
        "and falls further.",
    ),
    _alarm(
        "TidelogGroupsUnknown", "ticket", "15m", "tidelog_groups_lag_unknown_partitions > 0",
        "{{ $labels.instance }} does not learn the ends of {{ $value }} partitions that groups read.",
    ),
)  # fmt: skip

BURNS = tuple(
    Alarm(
        f"{objective.alarm}{suffix}",
        severity,
        "2m",
        burns(objective, rates),
        f"{objective.text} The error budget burns {how}: {{{{ $value | humanizePercentage }}}} went wrong.",
        objective.alarm,
    )
    for objective in OBJECTIVES
    for severity, suffix, how, rates in (
        ("page", "BurnsFast", "within days", PAGE),
        ("ticket", "BurnsSlowly", "within the month", TICKET),
    )
)
ALARMS = (*STATES, *BURNS)
