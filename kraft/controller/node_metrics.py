"""Metrics of a controller, read only when they are scraped."""

from __future__ import annotations

from typing import Protocol

from common.metrics import Metrics, Samples
from kraft.controller.balance_duties import BalanceDuties
from kraft.controller.cells import Cells
from kraft.controller.driver import ControllerDriver
from kraft.controller.health_duties import HealthDuties
from kraft.controller.liveness import BrokerLiveness
from kraft.controller.policy import ControllerPolicy
from kraft.controller.quota_coordinator import QuotaCoordinator
from kraft.controller.quota_metrics import register_quotas
from kraft.controller.reported_usage import ReportedUsage
from kraft.controller.state_machine import MetadataStateMachine
from kraft.controller.tenant_metrics import TenantMetrics
from kraft.image.metadata import MetadataImage
from kraft.quorum.quorum import RaftQuorum

VOTER_SILENCE_S = 5.0


class Measured(Protocol):
    """The parts of a controller that metrics are read from."""

    quorum: RaftQuorum
    driver: ControllerDriver
    liveness: BrokerLiveness
    machine: MetadataStateMachine
    balance: BalanceDuties
    usage: ReportedUsage
    quotas: QuotaCoordinator
    health: HealthDuties

    def now_s(self) -> float: ...

    @property
    def policy(self) -> ControllerPolicy: ...

    @property
    def image(self) -> MetadataImage: ...


def register_metrics(metrics: Metrics, node: Measured) -> None:
    _register_balance(metrics, node)
    quorum, driver = node.quorum, node.driver
    metrics.gauge("tidelog_controller_active", lambda: int(driver.is_active))
    metrics.gauge("tidelog_quorum_term", lambda: quorum.term)
    metrics.gauge("tidelog_quorum_voters", lambda: quorum.voter_count)
    metrics.gauge("tidelog_quorum_voters_reached", lambda: voters_reached(node))
    metrics.counter("tidelog_quorum_canvasses_total", lambda: quorum.canvasses)
    metrics.counter("tidelog_quorum_candidacies_total", lambda: quorum.candidacies)
    metrics.counter("tidelog_quorum_applied_total", lambda: quorum.applied_index)
    metrics.gauge("tidelog_quorum_journal_bytes", lambda: quorum.journal_bytes)
    metrics.counter("tidelog_quorum_journal_syncs_total", lambda: quorum.journal_syncs)
    metrics.counter("tidelog_quorum_snapshots_total", lambda: quorum.snapshots_written)
    metrics.gauge("tidelog_metadata_tail_batches", lambda: node.machine.log.batch_count)
    metrics.gauge("tidelog_metadata_offset", lambda: node.image.offset)
    register_cluster(metrics, node)
    _register_usage(metrics, node)
    _register_health(metrics, node)
    register_quotas(metrics, node.quotas)
    register_loads(metrics, node)
    TenantMetrics(node.usage, lambda: node.image, lambda: node.policy, node.now_s).register(metrics)


def voters_reached(node: Measured) -> int:
    """How many voters the active controller hears, itself included; 0 of others, which hear the leader alone."""
    if not node.driver.is_active:
        return 0
    silences = [follower.answered_s for follower in node.quorum.followers().values()]
    return 1 + sum(silence is not None and silence < VOTER_SILENCE_S for silence in silences)


def register_cluster(metrics: Metrics, node: Measured) -> None:
    """What the index of the metadata counts already, so that a scrape costs the same in any cluster."""

    def partitions() -> int:
        index = node.image.topics.index
        return len(index.leaderless) + sum(map(len, index.leads.values()))

    metrics.gauge("tidelog_topics", lambda: len(node.image.topics))
    metrics.gauge("tidelog_cluster_partitions", partitions)
    metrics.gauge("tidelog_cluster_offline_partitions", lambda: len(node.image.topics.index.leaderless))
    metrics.gauge("tidelog_cluster_under_replicated_partitions", lambda: len(node.image.topics.index.under_replicated))
    metrics.gauge("tidelog_cluster_reassigning_partitions", lambda: len(node.image.topics.index.moving))
    metrics.gauge("tidelog_cluster_misplaced_leaders", lambda: len(node.image.topics.index.astray))
    metrics.gauge("tidelog_brokers", lambda: len(node.image.brokers))
    metrics.gauge("tidelog_brokers_fenced", lambda: sum(broker.fenced for broker in node.image.brokers.values()))
    metrics.counter("tidelog_broker_silences_total", lambda: node.liveness.fenced_count)
    metrics.gauge("tidelog_tenants", lambda: len(node.image.tenants))


def _register_health(metrics: Metrics, node: Measured) -> None:
    metrics.family(
        "tidelog_broker_health",
        lambda: [
            ({"broker": str(broker.broker_id), "state": broker.health.state.name.lower()}, 1.0)
            for broker in node.image.brokers.values()
        ],
    )
    metrics.family(
        "tidelog_mitigations_total",
        lambda: [({"state": state}, float(count)) for state, count in node.health.mitigations.items()],
    )
    metrics.gauge("tidelog_health_fail_safe", lambda: int(node.driver.is_active and bool(node.health.fail_safe)))


def register_loads(metrics: Metrics, node: Measured) -> None:
    """Of the active controller; the others know of no load."""

    def of_cluster() -> Samples:
        loads = node.usage.loads(node.image, node.now_s())
        known = [load for load in loads.values() if load is not None]
        return [({}, max(known))] if known and len(known) == len(loads) else []

    def of_cells() -> Samples:
        if not node.driver.is_active:
            return []
        cells = Cells(node.image, node.policy, node.liveness.loads, living={})
        return [({"cell": name}, cell.load) for name, cell in cells.by_name.items()]

    metrics.family("tidelog_cluster_load", of_cluster)
    metrics.family("tidelog_cell_load", of_cells)


def _register_usage(metrics: Metrics, node: Measured) -> None:
    """Of the active controller; the others know of no use."""
    metrics.family(
        "tidelog_usage_reports_received_total",
        lambda: [({"verdict": verdict}, float(count)) for verdict, count in node.usage.verdicts.items()],
    )
    metrics.gauge(
        "tidelog_usage_known", lambda: int(node.driver.is_active and node.usage.is_known(node.image, node.now_s()))
    )
    metrics.family(
        "tidelog_broker_client_bytes_per_second",
        lambda: [
            ({"broker": str(broker_id), "direction": direction}, value)
            for broker_id in node.image.brokers
            if (rates := node.usage.rates_of(broker_id, node.now_s())) is not None
            for direction, value in (("in", rates.bytes_in), ("out", rates.bytes_out))
        ],
    )
    metrics.family(
        "tidelog_broker_client_busy_ratio",
        lambda: [
            ({"broker": str(broker_id)}, rates.busy)
            for broker_id in node.image.brokers
            if (rates := node.usage.rates_of(broker_id, node.now_s())) is not None
        ],
    )


def _register_balance(metrics: Metrics, node: Measured) -> None:
    balance = node.balance
    metrics.gauge("tidelog_balance_operations", lambda: sum(1 for _ in node.image.balance.current()))
    metrics.gauge("tidelog_balance_moves_running", lambda: len(node.image.balance.running))
    metrics.counter("tidelog_balance_moves_begun_total", lambda: sum(balance.begun.values()))
    metrics.counter("tidelog_balance_moves_done_total", lambda: balance.ended["done"])
    metrics.counter(
        "tidelog_balance_moves_undone_total", lambda: balance.ended["cancelled"] + balance.ended["overtaken"]
    )
    metrics.counter("tidelog_balance_bytes_total", lambda: balance.bytes_to_copy)
    metrics.counter("tidelog_balance_tenant_moves_total", lambda: balance.tenants_moved)
    metrics.gauge(
        "tidelog_cells_exhausted", lambda: len(balance.status.cells.exhausted) if node.driver.is_active else 0
    )
    metrics.gauge("tidelog_balance_uneven_goals", lambda: len(balance.status.look.looks))
