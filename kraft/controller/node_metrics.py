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
from kraft.image.metadata import MetadataImage
from kraft.quorum.quorum import RaftQuorum


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
    metrics.gauge("tidelog_controller_active", "1 on the active controller.", lambda: int(driver.is_active))
    metrics.gauge("tidelog_quorum_term", "The consensus term, which is the controller epoch.", lambda: quorum.term)
    metrics.counter(
        "tidelog_quorum_canvasses_total",
        "Pre-votes that this voter asked for, having no leader.",
        lambda: quorum.canvasses,
    )
    metrics.counter(
        "tidelog_quorum_candidacies_total", "Elections that this voter stood for.", lambda: quorum.candidacies
    )
    metrics.counter("tidelog_quorum_applied_total", "Entries that this voter applied.", lambda: quorum.applied_index)
    metrics.gauge("tidelog_quorum_journal_bytes", "Bytes of this voter's journal.", lambda: quorum.journal_bytes)
    metrics.counter("tidelog_quorum_journal_syncs_total", "Syncs of the journal.", lambda: quorum.journal_syncs)
    metrics.counter("tidelog_quorum_snapshots_total", "Snapshots of the state.", lambda: quorum.snapshots_written)
    metrics.gauge(
        "tidelog_metadata_tail_batches",
        "Committed batches kept in memory for brokers to fetch.",
        lambda: node.machine.log.batch_count,
    )
    metrics.gauge("tidelog_metadata_offset", "The end of the committed metadata.", lambda: node.image.offset)
    metrics.gauge("tidelog_topics", "Topics of the cluster.", lambda: len(node.image.topics))
    metrics.gauge(
        "tidelog_brokers_fenced",
        "Registered brokers that are fenced.",
        lambda: sum(broker.fenced for broker in node.image.brokers.values()),
    )
    metrics.counter(
        "tidelog_broker_silences_total", "Brokers fenced for their silence.", lambda: node.liveness.fenced_count
    )
    _register_usage(metrics, node)
    _register_health(metrics, node)
    register_quotas(metrics, node.quotas)
    register_loads(metrics, node)


def _register_health(metrics: Metrics, node: Measured) -> None:
    metrics.family(
        "tidelog_broker_health",
        "gauge",
        "1 for the state that a broker's health is in.",
        lambda: [
            ({"broker": str(broker.broker_id), "state": broker.health.state.name.lower()}, 1.0)
            for broker in node.image.brokers.values()
        ],
    )
    metrics.family(
        "tidelog_mitigations_total",
        "counter",
        "Brokers that this controller has put aside by itself, by state.",
        lambda: [({"state": state}, float(count)) for state, count in node.health.mitigations.items()],
    )
    metrics.gauge(
        "tidelog_health_fail_safe",
        "1 on the active controller while it does nothing about a sick broker, because that could do harm.",
        lambda: int(node.driver.is_active and bool(node.health.fail_safe)),
    )


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

    metrics.family(
        "tidelog_cluster_load",
        "gauge",
        "Load of the most loaded live broker, from 0 to 1; missing while a live broker's is unknown.",
        of_cluster,
    )
    metrics.family(
        "tidelog_cell_load",
        "gauge",
        "Load of a cell: the largest of its brokers' mean load and its shares of replicas and bandwidth.",
        of_cells,
    )


def _register_usage(metrics: Metrics, node: Measured) -> None:
    """Of the active controller; the others know of no use."""
    metrics.family(
        "tidelog_usage_reports_received_total",
        "counter",
        "Requests with brokers' reports of their clients' use, by what became of them.",
        lambda: [({"verdict": verdict}, float(count)) for verdict, count in node.usage.verdicts.items()],
    )
    metrics.gauge(
        "tidelog_usage_known",
        "1 on the active controller once every live broker has reported its use, or had the time to.",
        lambda: int(node.driver.is_active and node.usage.is_known(node.image, node.now_s())),
    )
    metrics.family(
        "tidelog_broker_client_bytes_per_second",
        "gauge",
        "Bytes a second that a broker's clients send (in) and are sent (out), as it reported last.",
        lambda: [
            ({"broker": str(broker_id), "direction": direction}, value)
            for broker_id in node.image.brokers
            if (rates := node.usage.rates_of(broker_id, node.now_s())) is not None
            for direction, value in (("in", rates.bytes_in), ("out", rates.bytes_out))
        ],
    )
    metrics.family(
        "tidelog_broker_client_busy_ratio",
        "gauge",
        "Share of a broker's event loop that its clients' requests take, as it reported last.",
        lambda: [
            ({"broker": str(broker_id)}, rates.busy)
            for broker_id in node.image.brokers
            if (rates := node.usage.rates_of(broker_id, node.now_s())) is not None
        ],
    )


def _register_balance(metrics: Metrics, node: Measured) -> None:
    balance = node.balance
    metrics.gauge(
        "tidelog_balance_operations",
        "The balancer's operations that have not ended.",
        lambda: sum(1 for _ in node.image.balance.current()),
    )
    metrics.gauge("tidelog_balance_moves_running", "Moves that run.", lambda: len(node.image.balance.running))
    metrics.counter(
        "tidelog_balance_moves_begun_total",
        "Moves that this controller began while it was active.",
        lambda: sum(balance.begun.values()),
    )
    metrics.counter("tidelog_balance_moves_done_total", "Moves that came to their end.", lambda: balance.ended["done"])
    metrics.counter(
        "tidelog_balance_moves_undone_total",
        "Moves that were cancelled, or overtaken by another request.",
        lambda: balance.ended["cancelled"] + balance.ended["overtaken"],
    )
    metrics.counter(
        "tidelog_balance_bytes_total", "Bytes of the replicas that moves were to copy.", lambda: balance.bytes_to_copy
    )
    metrics.counter(
        "tidelog_balance_tenant_moves_total",
        "Tenants whose move off an overloaded cell this controller began while it was active.",
        lambda: balance.tenants_moved,
    )
    metrics.gauge(
        "tidelog_cells_exhausted",
        "Overloaded cells, as the active controller's last look found them, of which no other cell can take a tenant.",
        lambda: len(balance.status.cells.exhausted) if node.driver.is_active else 0,
    )
    metrics.gauge(
        "tidelog_balance_uneven_goals",
        "Goals that the active controller's last look found beyond their trigger.",
        lambda: len(balance.status.look.looks),
    )
