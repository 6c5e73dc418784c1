"""Metrics of a broker, read only when they are scraped."""

from __future__ import annotations

from typing import Protocol

from broker.coordinators import Coordinators
from broker.data_plane import DataPlane
from broker.dispatch import Dispatcher
from broker.membership import Membership
from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from broker.replication.isr_changes import IsrChanges
from common.metrics import Metrics, counted
from common.pacing import Pacer
from kraft.observers.observer import MetadataObserver
from storage.directory.log_directory import LogDirectory
from wire.server import Server


class Measured(Protocol):
    """The parts of a broker that metrics are read from."""

    data_plane: DataPlane
    logs: LogDirectory
    server: Server
    dispatcher: Dispatcher
    membership: Membership
    coordinators: Coordinators
    observer: MetadataObserver
    pacer: Pacer

    @property
    def partitions(self) -> HostedPartitions: ...


def register_metrics(metrics: Metrics, node: Measured) -> None:
    """Register metrics, named after Kafka's where Kafka has the metric."""
    partitions, plane = node.partitions, node.data_plane
    metrics.gauge("tidelog_partitions", lambda: len(partitions))
    metrics.gauge("tidelog_leader_partitions", lambda: len(partitions.led))
    register_in_sync(metrics, partitions, plane.isr_changes)
    metrics.gauge("tidelog_metadata_offset", lambda: node.observer.image.offset)
    metrics.gauge("tidelog_metadata_heard_seconds", lambda: node.observer.heard_s)
    _register_replicas(metrics, node)
    metrics.gauge("tidelog_isr_changes_pending", lambda: len(plane.isr_changes))
    metrics.counter("tidelog_isr_shrinks_total", lambda: plane.isr_changes.shrinks)
    metrics.counter("tidelog_isr_expansions_total", lambda: plane.isr_changes.expansions)
    metrics.gauge("tidelog_fetch_sessions", lambda: len(plane.sessions))
    metrics.counter("tidelog_fetch_session_evictions_total", lambda: plane.sessions.evictions)
    _register_logs(metrics, node)
    transactions = plane.duties.open_transactions
    metrics.gauge("tidelog_open_transaction_partitions", lambda: len(transactions))
    metrics.gauge("tidelog_open_transaction_age_seconds", lambda: transactions.age_s)
    register_connections(metrics, node.server)
    node.dispatcher.register(metrics)
    plane.produce.register(metrics)
    plane.fetch.answers.register(metrics)
    plane.traces.register(metrics)
    metrics.counter("tidelog_long_requests_seconds_total", lambda: node.pacer.clients_worked_s)


def register_in_sync(metrics: Metrics, partitions: HostedPartitions, isr_changes: IsrChanges) -> None:
    """Which led partitions lack replicas in sync."""

    def in_doubt() -> set[Partition]:
        """Led partitions whose ISR is incomplete or may be: unsettled, or with a pending ISR change, except quiet
        ones."""
        return {*partitions.unsettled_partitions, *isr_changes.partitions} - partitions.quiet_partitions.keys()

    metrics.family(
        "tidelog_under_replicated_partitions",
        lambda: counted(
            in_doubt(),
            lambda one: one.replica_set is not None and one.replica_set.is_under_replicated,
            len(partitions.quiet_partitions) - len(partitions.quiet_moves),
        ),
    )
    metrics.family(
        "tidelog_under_min_isr_partitions",
        lambda: counted(
            in_doubt(),
            lambda one: one.replica_set is not None and one.replica_set.is_starved,
            sum(partitions.quiet_partitions.values()),
        ),
    )


def _register_replicas(metrics: Metrics, node: Measured) -> None:
    partitions, plane = node.partitions, node.data_plane
    metrics.gauge("tidelog_replicas_without_leader", lambda: plane.fetchers.lagging_count)
    metrics.gauge("tidelog_stray_logs", lambda: node.logs.stray_count)
    metrics.gauge("tidelog_replicas_held_up", lambda: plane.fetchers.held_up_count)
    metrics.gauge("tidelog_replicas_without_room", lambda: len(partitions.roomless))
    node.coordinators.register(metrics)
    metrics.gauge("tidelog_lacks_room", lambda: node.membership.room.is_lacking)
    metrics.gauge("tidelog_lacks_clients", lambda: node.membership.network.is_silent)
    metrics.counter("tidelog_replication_received_bytes_total", lambda: plane.fetchers.received_bytes)


def _register_logs(metrics: Metrics, node: Measured) -> None:
    plane, logs = node.data_plane, node.logs.context
    metrics.gauge("tidelog_open_files", lambda: node.logs.open_file_count)
    metrics.gauge("tidelog_pinned_files", lambda: logs.open_files.pinned)
    metrics.counter("tidelog_files_opened_total", lambda: logs.open_files.opened_count)
    metrics.counter("tidelog_log_flushes_total", lambda: logs.flusher.flush_count)
    metrics.counter("tidelog_disk_slowdowns_total", lambda: logs.writer.slow_count)
    metrics.gauge("tidelog_uncleanable_partitions", lambda: plane.duties.uncleanable_count)
    metrics.gauge("tidelog_producers", lambda: logs.producers.count)
    metrics.counter("tidelog_producers_forgotten_total", lambda: logs.producers.forgotten_count)
    metrics.gauge("tidelog_unwritten_bytes", lambda: node.logs.unwritten_bytes)


def register_connections(metrics: Metrics, server: Server) -> None:
    """Register metrics of any node with listeners."""
    metrics.gauge("tidelog_connections", lambda: len(server.connections))
    metrics.gauge("tidelog_connection_openings", lambda: server.openings)
    metrics.family(
        "tidelog_connections_refused_total",
        lambda: [({"cause": cause}, float(count)) for cause, count in server.failures.counts.items()],
    )
    server.register_certificates(metrics)
